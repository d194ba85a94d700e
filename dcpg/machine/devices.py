"""The torch device of a run, and what it can do."""

from __future__ import annotations

import os
import platform
from functools import cache

import torch

from dcpg.config.schema import Config
from dcpg.errors import BadInput
from dcpg.torchrun import processes_here

NATIVE = {"avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}  # flags of /proc/cpuinfo
COMPUTE_CAPABILITY = 8  # from which GPUs compute bfloat16


def device_of(config: Config) -> torch.device:
    """The device of a run; one that this machine does not have is refused."""
    return checked_device(config.machine.device)


def checked_device(name: str) -> torch.device:
    """The device of this process that a name means; one that this machine does not have is refused."""
    device = device_named(name)
    if device.type == "cuda" and processes_here() > 1:
        if device.index is not None:
            raise BadInput(f"machine.device is {name!r}, but torchrun gives each process its own; use cuda.")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"machine.device is {name!r}, but torch sees {torch.cuda.device_count()} cuda devices; use cpu.")
    return device


def device_named(name: str) -> torch.device:
    """cpu, cuda or cuda:N; `auto` is cuda if torch has it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"machine.device must be auto, cpu, cuda or cuda:N; got {name!r}.") from None
    if device.type == "mps":
        raise BadInput("machine.device=mps is not supported: the kernels and exact resume need cpu or cuda; use cpu.")
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"machine.device must be auto, cpu, cuda or cuda:N; got {name!r}.")
    return device


def prepare(device: torch.device) -> None:
    """Set how a GPU computes float32, whatever its environment variables say; docs/decisions.md has the reasons."""
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True


def wait_for_gpu() -> None:
    """Let the GPU finish what it was given, so that a clock tells how long it took; nothing on the CPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def has_bf16(device: torch.device) -> bool:
    """Whether the device computes bfloat16 natively; others emulate it, many times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] >= COMPUTE_CAPABILITY
    return bool(native_bf16()) and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def bf16_pays(device: torch.device) -> bool:
    """Whether bfloat16 is faster than float32 on the device, by what it is known to be; nothing is timed."""
    return has_bf16(device) and not (device.type == "cpu" and slow_bf16())


@cache
def slow_bf16() -> bool:
    """Whether this is an Intel processor made for AMX whose AMX is not there, as in many virtual machines.

    From Sapphire Rapids on (the first with AVX512-FP16), AVX512-BF16 does half of float32's work per second.
    """
    lacks_amx = "AVX512-BF16" in native_bf16() and "AMX" not in native_bf16()
    return lacks_amx and _cpuinfo("vendor_id") == "GenuineIntel" and "avx512_fp16" in _cpuinfo("flags").split()


@cache
def native_bf16() -> tuple[str, ...]:
    """The processor's instructions for bfloat16, by name; none are known outside Linux."""
    return tuple(name for flag, name in NATIVE.items() if flag in _cpuinfo("flags").split())


def cpu_name() -> str:
    """The processor, as the system names it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(field: str) -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")
    except OSError:
        return ""

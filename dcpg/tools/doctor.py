"""`dcpg doctor`: checks the installation and says how to repair it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

NEEDED = (
    "torch", "numpy", "gymnasium", "procgen-mirror", "typer", "rich", "tensorboard", "safetensors", "zstandard",
    "matplotlib", "av", "pillow", "psutil", "plotly", "msgspec",
)  # fmt: skip
OPTIONAL = {
    "wandb": "pip install 'dcpg[wandb]'   (logging to Weights & Biases)",
    "ray": "pip install 'dcpg[ray]'   (sweeps on a Ray cluster)",
}


def checks() -> list[tuple[str, bool, str]]:
    """The checks: (what is checked, whether it passed, what was found or what to do)."""
    rows = [
        ("python", (3, 11) <= tuple(map(int, platform.python_version_tuple()[:2])) < (3, 13), platform.python_version())
    ]
    for name in NEEDED:
        try:
            rows.append((name, True, version(name)))
        except PackageNotFoundError:
            rows.append((name, False, f"missing: pip install {name}"))
    for name, advice in OPTIONAL.items():
        try:
            rows.append((name, True, version(name)))
        except PackageNotFoundError:
            rows.append((name, True, f"not installed, optional: {advice}"))
    if all(passed for _, passed, _ in rows):
        rows += [_procgen(), _device(), _bfloat16()]
    free = shutil.disk_usage(".").free / 1e9
    rows.append(
        ("disk", free > 1, f"{free:.0f} GB free here" + ("" if free > 1 else ": make room, a run needs up to 1 GB"))
    )
    rows.append(("cores", True, str(os.cpu_count())))
    return rows


def _procgen() -> tuple[str, bool, str]:
    try:
        import numpy as np

        from dcpg.envs.procgen import Procgen

        env = Procgen(2, "coinrun", seed=0)
        env.step(np.zeros(2, np.int64))
        env.close()
        return "procgen runs", True, "two environments made one step"
    except Exception as error:
        return (
            "procgen runs",
            False,
            f"{type(error).__name__}: {error}; try: pip install --force-reinstall procgen-mirror==0.10.7",
        )


def _device() -> tuple[str, bool, str]:
    import torch

    from dcpg.machine.devices import cpu_name

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        return "device", True, f"cuda: {name}; dcpg doctor --device cuda says whether its numbers are right"
    return "device", True, f"cpu: {cpu_name()}, {torch.get_num_threads()} threads"


def _bfloat16() -> tuple[str, bool, str]:
    from dcpg.machine.devices import device_named, has_bf16, native_bf16

    device = device_named("auto")
    if not has_bf16(device):
        return "bfloat16", True, f"not native on this {device.type}: machine.precision=auto means fp32"
    how = f" ({', '.join(native_bf16())})" if device.type == "cpu" else ""
    return "bfloat16", True, f"native{how}: machine.precision=auto means bf16 with --preset laptop"


def device_checks(name: str) -> Iterator[tuple[str, bool, str]]:
    """A small stored case of every method on a device, in float32, against the numbers of a CPU."""
    from dcpg.machine.devices import checked_device
    from dcpg.tools.reference import TOLERANCE, differences

    for method, difference in differences(checked_device(name)):
        yield f"{method} on {name}", difference <= TOLERANCE, f"off by {difference:.1e}, at most {TOLERANCE:g} allowed"

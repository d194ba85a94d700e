"""`dcpg doctor`: checks the installation and says how to repair it."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

from dcpg.errors import BadInput
from dcpg.extras import EXTRAS
from dcpg.text import counted

NEEDED = (
    "torch", "numpy", "gymnasium", "typer", "rich", "tensorboard", "safetensors", "zstandard", "psutil", "msgspec",
)  # fmt: skip


def checks() -> list[tuple[str, bool, str]]:
    """The checks: (what is checked, whether it passed, what was found or what to do)."""
    rows = [("python", sys.version_info >= (3, 11), platform.python_version())]
    for name in NEEDED:
        found = _version(name)
        rows.append((name, found is not None, found or f"missing: pip install {name}"))
    for extra, (use, packages) in EXTRAS.items():
        for name in packages:
            found = _version(name)
            advice = f"not installed, optional ({use}): pip install 'dcpg[{extra}]'"
            if (name, True, found or advice) not in rows:
                rows.append((name, True, found or advice))
    if all(passed for _, passed, _ in rows):
        rows += [*_procgen(), _device(), _bfloat16()]
    free = shutil.disk_usage(".").free / 1e9
    rows.append(
        ("disk", free > 1, f"{free:.0f} GB free here" + ("" if free > 1 else ": make room, a run needs up to 1 GB"))
    )
    rows.append(("cores", True, str(os.cpu_count())))
    return rows


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _procgen() -> Iterator[tuple[str, bool, str]]:
    from dcpg.envs.library import known_pictures, library

    try:
        used = library()
        yield "procgen", True, f"{used.origin}, C interface {used.loaded.interface}, library's sha256 {used.sha256}"
        known = {_hash(table[case] for case in different()): build for build, table in known_pictures().items()}
        found = drawing()
        whose = f"as {known[found]} draws them" if found in known else "of a build that is not known here"
        yield "pictures", True, f"{found}: {whose}"
    except Exception as error:
        yield "procgen", False, str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"


def different() -> list[str]:
    """The games, in easy mode, that the known builds of Procgen draw differently."""
    from dcpg.envs.library import known_pictures

    first, *others = known_pictures().values()
    return [case for case in first if case.endswith("easy") and any(first[case] != table[case] for table in others)]


def drawing() -> str:
    """One fingerprint of how the library draws the games in which builds differ."""
    from dcpg.envs.procgen import pictures

    return _hash(pictures(*case.split()) for case in different())


def _hash(fingerprints: Iterable[str]) -> str:
    return hashlib.sha256("".join(fingerprints).encode()).hexdigest()[:16]


def _device() -> tuple[str, bool, str]:
    import torch

    from dcpg.machine.devices import cpu_name

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        return "device", True, f"cuda: {name}; dcpg doctor --device cuda says whether its numbers are right"
    return "device", True, f"cpu: {cpu_name()}, {counted(torch.get_num_threads(), 'thread')}"


def _bfloat16() -> tuple[str, bool, str]:
    from dcpg.machine.devices import bf16_pays, device_named, has_bf16, native_bf16

    device = device_named("auto")
    if not has_bf16(device):
        return "bfloat16", True, f"not native on this {device.type}: machine.precision=auto means fp32"
    how = f" ({', '.join(native_bf16())})" if device.type == "cpu" else ""
    if not bf16_pays(device):
        half = "half as fast as float32 on an Intel processor without AMX"
        return "bfloat16", True, f"native{how}, {half}: machine.precision=auto means fp32"
    return "bfloat16", True, f"native{how}: machine.precision=auto means bf16 with --preset laptop"


def device_checks(name: str) -> Iterator[tuple[str, bool, str]]:
    """A small stored case of every method on a device, in float32, against the numbers of a CPU."""
    from dcpg.machine.devices import checked_device
    from dcpg.tools.reference import TOLERANCE, differences

    for method, difference in differences(checked_device(name)):
        yield f"{method} on {name}", difference <= TOLERANCE, f"off by {difference:.1e}, at most {TOLERANCE:g} allowed"

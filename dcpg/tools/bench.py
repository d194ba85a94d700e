"""`dcpg bench`: what methods cost on this machine, each measured in a process of its own, and the figures as tables."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from dcpg.config.resolve import resolve
from dcpg.errors import BadInput, DcpgError
from dcpg.machine.devices import device_of
from dcpg.tools.measurement import PARTS, Measurement

DEFAULT_METHODS = ("ppo", "ppg", "dcpg", "ddcpg")
GAME = "starpilot"  # its frames compress worst of all games, so B is at its largest


def bench(methods: Sequence[str], preset: str, settings: Mapping[str, Any], memory: bool) -> dict[str, Any]:
    """The figures of several methods, each measured in a process of its own."""
    for name in methods:  # wrong input is refused before anything is measured
        if device_of(resolve(name, GAME, preset=preset, settings=settings)).type != "cpu":
            raise BadInput("dcpg bench measures CPUs only, so far.")
    found: dict[str, Any] = {"machine": {}, "methods": {}}
    for number, name in enumerate(methods, 1):
        print(f"Measuring {name} ({number} of {len(methods)}) ...", file=sys.stderr)
        asked = {"method": name, "preset": preset, "settings": dict(settings), "memory": memory}
        command = [sys.executable, "-m", "dcpg.tools.bench", json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (this interpreter)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise DcpgError(f"The measurement of {name} failed: {last[0]}")
        found["methods"][name] = result = json.loads(done.stdout.splitlines()[-1])
        found["machine"] = result.pop("machine")
    if not memory:
        found["machine"]["matmul_gflops"] = median(m["matmul_gflops"] for m in found["methods"].values())
    return found


def main(asked: str) -> None:
    """`python -m dcpg.tools.bench {...}`: one method, as JSON."""
    a = json.loads(asked)
    measurement = Measurement(resolve(a["method"], GAME, preset=a["preset"], settings=a["settings"]))
    result = measurement.memory() if a["memory"] else measurement.costs()
    print(json.dumps({"machine": {"threads": torch.get_num_threads(), "cpu": cpu_name()}, **result}))


def cpu_name() -> str:
    """The processor, as the system names it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def shown(found: dict[str, Any]) -> str:
    """The figures as tables."""
    machine, methods = found["machine"], found["methods"]
    title = f"{machine['cpu']}, {machine['threads']} threads"

    def table(columns: Mapping[str, str], form: str, group: str = "") -> list[str]:
        """Columns are heading -> key of a method's figures, or of a group of them."""
        width = int(form.partition(".")[0])
        rows = {name: m[group] if group else m for name, m in methods.items()}
        head = f"{'':14s}" + "".join(f"{heading:>{width}s}" for heading in columns)
        return [head, *(f"{n:14s}" + "".join(f"{row[k]:{form}}" for k in columns.values()) for n, row in rows.items())]

    if "matmul_gflops" not in machine:
        columns = {"peak GB": "peak_memory_gb", "of it B": "buffer_gb", "bound": "bound_gb"}
        return "\n".join([title, *table(columns, "12.2f")])
    columns = {
        "steps/s": "steps_per_s", "MFLOP/step": "mflop_per_step", "x naive": "speedup_over_naive",
        "GB (B short)": "peak_memory_gb", "matmul": "matmul_gflops",
    }  # fmt: skip
    lines = [
        f"{title}, {machine['matmul_gflops']:.0f} GFLOP/s in a matrix multiply",
        "\nmilliseconds per environment step",
        *table({part: part for part in (*PARTS, "cycle")}, "12.3f", "ms_per_step"),
        "\nshare of the matrix-multiply rate (61 MFLOP a frame forward, 183 a training pass)",
        *table({part: part for part in ("training_pass", "acting", "cycle")}, "14.0%", "ratio"),
        "",
        *table(columns, "14.2f"),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1])

"""`dcpg bench`: what methods cost on this machine, each measured in a process of its own, and the figures as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from dcpg.config.resolve import resolve
from dcpg.errors import DcpgError
from dcpg.machine.automatic import settled
from dcpg.machine.devices import cpu_name, device_of, has_bf16
from dcpg.methods.plugins import load_sent, to_send
from dcpg.text import counted, say
from dcpg.tools.measurement import DTYPES, PARTS, Measurement

DEFAULT_METHODS = ("ppo", "ppg", "dcpg", "ddcpg")
GAME = "starpilot"  # its frames compress worst of all games, so B is at its largest


def bench(methods: Sequence[str], preset: str, settings: Mapping[str, Any], memory: bool) -> dict[str, Any]:
    """The figures of several methods in both precisions, each measured in a process of its own.

    A method's own figures are in float32 unless the settings name a precision. bfloat16 is measured where it is native,
    or asked for: elsewhere it is emulated, and takes many times as long.
    """
    settings = {"machine.precision": "fp32"} | dict(settings)
    configs = [settled(resolve(name, GAME, preset=preset, settings=settings)) for name in methods]  # refuses bad input
    device, asked = device_of(configs[0]), configs[0].machine.precision
    precisions = [asked, *(p for p in DTYPES if p != asked and (p == "fp32" or has_bf16(device)))]
    if "bf16" not in precisions:
        say("Only float32 is measured: this device does not compute bfloat16 natively.", to=sys.stderr)
    found: dict[str, Any] = {"machine": {}, "methods": {}}
    for number, (name, config) in enumerate(zip(methods, configs, strict=True), 1):
        figures: dict[str, Any] = {}
        for precision in precisions:
            say(f"Measuring {name} in {precision} ({number} of {len(methods)}) ...", to=sys.stderr)
            own = {**settings, "machine.precision": precision}
            asked_of = {"method": name, "preset": preset, "settings": own, "memory": memory}
            plugins = to_send(name, config.network.encoder)
            figures[precision] = _measured({**asked_of, "plugins": plugins})
            found["machine"] = figures[precision].pop("machine")
        found["methods"][name] = {**figures[asked], "precisions": figures}
    if not memory:
        found["machine"]["matmul_gflops"] = median(m["matmul_gflops"] for m in found["methods"].values())
    return found


def _measured(asked: Mapping[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "dcpg.tools.bench", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (this interpreter)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise DcpgError(f"The measurement of {asked['method']} failed: {last[0]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(asked: str) -> None:
    """`python -m dcpg.tools.bench {...}`: one method in one precision, as JSON."""
    a = json.loads(asked)
    load_sent(a["plugins"])
    measurement = Measurement(resolve(a["method"], GAME, preset=a["preset"], settings=a["settings"]))
    result = measurement.memory() if a["memory"] else measurement.costs()
    device = measurement.device
    machine: dict[str, Any] = {"threads": torch.get_num_threads(), "cpu": cpu_name()}
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    print(json.dumps({"machine": machine, **result}))


def shown(found: dict[str, Any]) -> str:
    """The figures as tables, with a row for each method and precision."""
    machine = found["machine"]
    rows = {(n, p): figures for n, method in found["methods"].items() for p, figures in method["precisions"].items()}
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    title = f"{machine['cpu']}, {counted(machine['threads'], 'thread')}{gpu}"

    def table(columns: Mapping[str, str], form: str, group: str = "") -> list[str]:
        """Columns are heading -> key of a row's figures, or of a group of them."""
        width = int(form.partition(".")[0])
        head = f"{'':20s}" + "".join(f"{heading:>{width}s}" for heading in columns)
        lines = [head]
        for (name, precision), figures in rows.items():
            of = figures[group] if group else figures
            lines.append(f"{name:14s}{precision:6s}" + "".join(f"{of[k]:{form}}" for k in columns.values()))
        return lines

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
        "\nshare of the matrix-multiply rate in the same precision (61 MFLOP a frame forward, 183 a training pass)",
        *table({part: part for part in ("training_pass", "acting", "cycle")}, "14.0%", "ratio"),
        "",
        *table(columns, "14.2f"),
        *_comparison(found["methods"]),
    ]
    return "\n".join(lines)


def _comparison(methods: Mapping[str, Any]) -> list[str]:
    """What bfloat16 takes of float32's time, had the machine multiplied float32 matrices at one rate throughout."""
    both = {name: m["precisions"] for name, m in methods.items() if set(DTYPES) <= set(m["precisions"])}
    if not both:
        return []
    cost = {
        name: {p: figures["ms_per_step"]["cycle"] * figures["matmul_fp32_gflops"] for p, figures in of.items()}
        for name, of in both.items()
    }
    shares = "".join(f"   {name} {c['bf16'] / c['fp32']:.2f}" for name, c in cost.items())
    return ["", f"a cycle in bf16 takes, of its time in fp32 at equal rates:{shares}"]


if __name__ == "__main__":
    main(sys.argv[1])

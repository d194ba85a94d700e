"""The commands that start and resume a run, made from its configuration."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Any

from dcpg.config.automatic import as_in, cpu_chunk, is_automatic, wants_bf16
from dcpg.config.build import known_spaces
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config, Machine
from dcpg.settings import dotted

_OPTIONS = ("method", "game", "seed", "preset", "steps")


def train_command(config: Config, out: Path | None = None) -> str:
    """`dcpg train ...` with every setting that differs from the defaults of the method and the preset."""
    usual = usual_values(config.method, config.preset)
    words = ["dcpg", "train", config.method, "--game", config.game.removeprefix(OWN), "--preset", config.preset]
    if config.steps != usual["steps"]:
        words += ["--steps", str(config.steps)]
    words += ["--seed", str(config.seed)]
    usual = usual | {"machine.device": None, "machine.chunk": _usual_chunk(config)}
    for name, value, _ in dotted(config):
        if name not in _OPTIONS and value != usual[name] and not is_automatic(name, value):
            words += ["--set", f"{name}={written(value)}"]
    if out is not None:
        words += ["--out", str(out)]
    return shlex.join(words)


def _usual_chunk(config: Config) -> int | None:
    """The chunk that the same configuration gets everywhere if none is given."""
    spaces = known_spaces(config)
    if spaces is None or config.machine.device != "cpu":
        return None
    return cpu_chunk(spaces.shape, config.machine.threads)


@functools.cache
def usual_values(method: str, preset: str) -> dict[str, Any]:
    """The default settings of a method under a preset; they are the same for every game.

    Where `auto` may mean either precision, neither is usual.
    """
    config = resolve(method, "bigfish", preset=preset)
    spaces = known_spaces(config)
    assert spaces is not None
    if not wants_bf16(config, spaces.shape):
        config = as_in(config, Machine(device="auto", precision="fp32"))
    return {name: value for name, value, _ in dotted(config)}


def written(value: Any) -> str:
    """A value as the text that `--set` parses."""
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def resume_command(directory: Path, processes: int) -> str:
    """`dcpg resume ...`, under torchrun if the run has several processes."""
    program = "dcpg" if processes == 1 else f"torchrun --nproc-per-node {processes} -m dcpg"
    return f"{program} resume {directory}"

"""The commands that start and resume a run, made from its configuration."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Any

from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config
from dcpg.settings import dotted

_OPTIONS = ("method", "game", "seed", "preset", "steps")


def train_command(config: Config, out: Path | None = None) -> str:
    """`dcpg train ...` with every setting that differs from the defaults of the method and the preset."""
    usual = usual_values(config.method, config.preset)
    words = ["dcpg", "train", config.method, "--game", config.game.removeprefix(OWN), "--preset", config.preset]
    if config.steps != usual["steps"]:
        words += ["--steps", str(config.steps)]
    words += ["--seed", str(config.seed)]
    for name, value, _ in dotted(config):
        if name not in _OPTIONS and value != usual[name]:
            words += ["--set", f"{name}={written(value)}"]
    if out is not None:
        words += ["--out", str(out)]
    return shlex.join(words)


@functools.cache
def usual_values(method: str, preset: str) -> dict[str, Any]:
    """The default settings of a method under a preset; they are the same for every game."""
    return {name: value for name, value, _ in dotted(resolve(method, "bigfish", preset=preset))}


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

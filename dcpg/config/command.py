"""The commands that start and resume a run, made from its configuration."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from dcpg.config.automatic import as_in, cpu_chunk, is_automatic, wants_bf16
from dcpg.config.build import known_spaces
from dcpg.config.environments import Environment, EnvMaker
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config, Machine
from dcpg.methods.plugins import used
from dcpg.settings import dotted
from dcpg.text import for_audience

_OPTIONS = ("method", "game", "seed", "preset", "steps")


def train_command(
    config: Config,
    out: Path | None = None,
    environment: Environment | None = None,  # the user's own, as a run records it
    plugins: Iterable[Mapping[str, Any]] = (),  # as a run records them
) -> str:
    """`dcpg train ...` with every setting that differs from the defaults of the method and the preset."""
    usual = usual_values(config.method, config.preset)
    words = ["dcpg", "train", config.method]
    if environment is None:
        words += ["--game", config.game.removeprefix(OWN)]
    else:
        words += ["--env", environment.id]
        words += ["--test-env", environment.test_id] if environment.test_id is not None else []
        words += ["--name", environment.name]
    words += ["--preset", config.preset]
    if config.steps != usual["steps"]:
        words += ["--steps", str(config.steps)]
    words += ["--seed", str(config.seed)]
    usual = usual | {"machine.device": None, "machine.chunk": _usual_chunk(config)}
    for name, value, _ in dotted(config):
        if name not in _OPTIONS and value != usual[name] and not is_automatic(name, value):
            words += ["--set", f"{name}={written(value)}"]
    for plugin in dict.fromkeys(one["plugin"] for one in plugins):
        words += ["--plugin", plugin]
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


def resume_command(config: Config, directory: Path, processes: int = 1, maker: EnvMaker | None = None) -> str:
    """What resumes a run: `dcpg resume ...`, or the Python call if the run was started from Python."""
    registered = maker is None or all(id_ is None or id_ in gymnasium.registry for id_ in maker.ids)
    own = "" if registered else ", env=..."
    own += ", test_env=..." if own and maker is not None and maker.test is not None else ""
    python = f'dcpg.resume("{directory}"{own})'
    options = maker.options if own and maker is not None else ""
    for plugin in dict.fromkeys(one["plugin"] for one in used(config.method, config.network.encoder)):
        options += f" --plugin {shlex.quote(plugin)}"
    command = f"dcpg resume {directory}{options}"
    return started_by(processes, command) if processes > 1 else for_audience(command, python)


def started_by(processes: int, command: str) -> str:
    """A command with so many processes, under torchrun if there are several."""
    return command if processes == 1 else f"torchrun --nproc-per-node {processes} -m {command}"

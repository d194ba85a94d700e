"""Resolves defaults, a preset and the given settings into the configuration of a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dcpg.config.presets import PRESETS
from dcpg.config.schema import Config
from dcpg.errors import BadInput, unknown
from dcpg.methods import METHODS
from dcpg.methods.drac import CHOICES
from dcpg.methods.plugins import find_method
from dcpg.settings import Section, dotted, override
from dcpg.text import for_audience
from dcpg.torchrun import processes, processes_here


def resolve(
    method: str,
    game: str,
    *,
    preset: str = "paper",
    steps: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """The defaults, overridden by the preset, by what defines the method and by what was given, in this order."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    spec = find_method(method)
    values = dict(PRESETS[preset])
    base = _Draft(algorithm=spec.settings())
    known = {name for name, _, _ in dotted(base)}
    values = {name: value for name, value in values.items() if name in known} | dict(spec.fixed)
    for name in ("method", "game", "seed", "preset"):
        if settings and name in settings:
            raise BadInput(f"{name} is no setting; it is given by itself, beside {for_audience('--set', 'settings=')}.")
    values |= dict(settings or {})
    _check_effect(settings or {}, values)
    if steps is not None:
        values["steps"] = steps
    draft = override(base, values)
    if draft.machine.threads == 0:
        draft = override(draft, {"machine.threads": max(available_cores() // processes_here(), 1)})
    if processes() > 1 and "shards" not in (settings or {}):
        draft = override(draft, {"shards": processes()})
    plain = {f.name: getattr(draft, f.name) for f in dataclasses.fields(draft)}
    return Config(**plain | {"method": method, "game": game, "seed": seed, "preset": preset})


# settings that have an effect only while another one has one of these values
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "drac.alpha_r": ("augment", CHOICES[1:]),
    "drac.c": ("augment", ("ucb",)),
    "drac.window": ("augment", ("ucb",)),
    "levels.beta": ("levels.sampler", ("prioritised",)),
    "levels.rho": ("levels.sampler", ("prioritised",)),
}


def _check_effect(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuse a setting that would have no effect, because the user expects one."""
    defaults = {name: value for name, value, _ in dotted(_Draft())}
    for name in given.keys() & NEEDS.keys():
        other, useful = NEEDS[name]
        value = values.get(other, defaults[other])
        if value not in useful:
            raise BadInput(f"{name} has no effect while {other}={value}; it needs {other}={useful[0]}.")


@dataclass(frozen=True)
class _Draft(Config):
    """An unfinished configuration: settings are checked against each other only when it becomes a Config."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)


def origins(config: Config, settings: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Every dotted name, its value, and where that value comes from."""
    preset = PRESETS.get(config.preset, {})
    rows = []
    for name, value, origin in dotted(config):
        if name in METHODS[config.method].fixed:
            origin = f"method {config.method}"
        elif name in settings:
            origin = "given"
        elif name in preset:
            origin = f"preset {config.preset}"
        rows.append((name, value, origin))
    return rows


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""config.json: the configuration of a run as its first process wrote it down, in the schema of its time."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.config.migrate import migrated
from dcpg.config.presets import PRESETS
from dcpg.config.schema import (
    OWN,
    SCHEMA,
    UNDECISIVE,
    Checkpoints,
    Config,
    Env,
    Evaluation,
    Levels,
    Machine,
)
from dcpg.core.encoders import Net
from dcpg.envs.library import OVERRIDE, installed
from dcpg.envs.procgen import library_of
from dcpg.errors import BadInput, unknown
from dcpg.methods import METHODS
from dcpg.methods.drac import DrAC
from dcpg.settings import Section
from dcpg.storage.rundir import RunDirectory

EXPORT = "export"  # the key that makes a folder an export, and says which weights it holds
PROCGEN, LATER = "procgen", "procgen_later"  # the library at the start, and others after a resume
BESIDES = ("schema", "preset_values", "init", "versions", PROCGEN, LATER, EXPORT)  # in the file besides settings


@dataclass(frozen=True)
class Written:
    """What config.json of a run holds: the configuration, and facts about how the run was started."""

    plain: dict[str, Any]  # as it is in the file
    config: Config  # in today's schema
    preset_values: dict[str, Any]  # dotted name -> what the preset set when the run was made
    init: str | None  # the run whose weights it started from
    versions: dict[str, str]  # what computed it
    libraries: list[dict[str, Any]]  # that drew its frames; several after a resume with another one

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the result, in the schema in which it was written: checkpoints name it."""
        return fingerprint(self.plain)


def read_written(run: RunDirectory) -> Written:
    """The configuration of a run on disk."""
    return parse_written(run.read_config(), run.config)


def parse_written(plain: Mapping[str, Any], where: Path | str = "config.json") -> Written:
    """A configuration from the data of a config.json; anything unknown or missing is refused."""
    try:
        today = migrated(plain)
        config = _config(today)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{where} is not a run's configuration ({type(error).__name__}: {error}).") from None
    versions, preset, init = today.get("versions"), today.get("preset_values", {}), today.get("init")
    if not isinstance(preset, dict):
        raise BadInput(f"{where}: preset_values is {preset!r}, not a table of settings.")
    return Written(
        plain=dict(plain),
        config=config,
        preset_values=dict(preset),
        init=str(init) if init else None,
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        libraries=_libraries(today, where),
    )


def _libraries(plain: Mapping[str, Any], where: Path | str) -> list[dict[str, Any]]:
    """Empty for your own environment."""
    first, later = plain.get(PROCGEN), plain.get(LATER) or []
    found = [*([] if first is None else [first]), *(later if isinstance(later, list) else [later])]
    for one in found:
        if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in ("library", "pictures")):
            raise BadInput(f"{where}: procgen does not say which library drew the frames.")
    return found


def from_json(plain: Mapping[str, Any], where: Path | str = "config.json") -> Config:
    """The configuration in the data of a config.json, without the facts beside it."""
    return parse_written(plain, where).config


def to_write(config: Config, init: Path | None) -> dict[str, Any]:
    """The data of a new run's config.json."""
    preset = json.loads(json.dumps(PRESETS[config.preset]))
    own = {"preset_values": preset, "init": str(init) if init else None, "versions": dict(versions())}
    return {"schema": SCHEMA, **config.to_json(), **own, PROCGEN: library_today(config)}


def library_today(config: Config) -> dict[str, Any] | None:
    """The library that draws a run's frames in this process; None for your own environment."""
    return None if config.game.startswith(OWN) else library_of(config.game, config.env.mode)


def other_library(written: Written) -> dict[str, Any] | None:
    """The library of this process if it draws the run's game otherwise than the one that the run saw last."""
    today = library_today(written.config) if written.libraries else None
    return None if today is None or today["pictures"] == written.libraries[-1]["pictures"] else today


def fingerprint(plain: Mapping[str, Any]) -> str:
    """A hash of all that decides a run's result at a given number of steps."""
    decisive = {name: value for name, value in plain.items() if name not in (*UNDECISIVE, *BESIDES)}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _config(plain: Mapping[str, Any]) -> Config:
    name = plain["method"]
    if name not in METHODS:
        raise unknown("method", str(name), METHODS)
    sections: dict[str, Section] = {
        "algorithm": METHODS[name].settings(), "env": Env(), "levels": Levels(), "drac": DrAC(), "network": Net(),
        "evaluation": Evaluation(), "checkpoints": Checkpoints(), "machine": Machine(),
    }  # fmt: skip
    values = {k: v for k, v in plain.items() if k not in BESIDES}
    _check_complete(values, Config)
    for key, section in sections.items():
        _check_complete(values[key], type(section), f"{key}.")
        values[key] = section.with_values(values[key])
    return Config(**values)


def _check_complete(values: Mapping[str, Any], section: type[Section], prefix: str = "") -> None:
    known, given = {f.name for f in dataclasses.fields(section)}, set(values)
    for name in sorted(given - known):
        raise unknown("setting", f"{prefix}{name}", [f"{prefix}{k}" for k in known])
    for name in sorted(known - given):
        raise BadInput(f"{prefix}{name} is missing.")


@functools.cache
def versions() -> dict[str, str]:
    """The versions of what computes a run."""
    from importlib.metadata import version

    procgen = None if os.environ.get(OVERRIDE) else installed()
    names = ["dcpg", "torch", "numpy", *([procgen[0]] if procgen else []), "gymnasium"]
    return {"python": platform.python_version(), **{name: version(name) for name in names}}

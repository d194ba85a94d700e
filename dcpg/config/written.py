"""A configuration as a run wrote it down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dcpg.config.schema import SCHEMA, Checkpoints, Config, Env, Evaluation, Levels, Machine, Net
from dcpg.errors import BadInput, unknown
from dcpg.methods import METHODS
from dcpg.methods.drac import DrAC
from dcpg.settings import Section


def from_json(plain: Mapping[str, Any], where: Path | str = "config.json") -> Config:
    """A configuration as it was written down; anything unknown or missing is refused."""
    if plain.get("schema", SCHEMA) != SCHEMA:
        raise BadInput(f"{where} has schema {plain['schema']!r}; this program reads schema {SCHEMA}.")
    try:
        name = plain["method"]
        if name not in METHODS:
            raise unknown("method", str(name), METHODS)
        sections: dict[str, Section] = {
            "algorithm": METHODS[name].settings(), "env": Env(), "levels": Levels(), "drac": DrAC(), "network": Net(),
            "evaluation": Evaluation(), "checkpoints": Checkpoints(), "machine": Machine(),
        }  # fmt: skip
        values = {k: v for k, v in plain.items() if k not in ("schema", "init", "versions", "export")}
        _complete(values, Config)
        for key, section in sections.items():
            _complete(values[key], type(section), f"{key}.")
            values[key] = section.with_values(values[key])
        return Config(**values)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{where} is not a run's configuration ({type(error).__name__}: {error}).") from None


def _complete(values: Mapping[str, Any], section: type[Section], prefix: str = "") -> None:
    known, given = {f.name for f in dataclasses.fields(section)}, set(values)
    for name in sorted(given - known):
        raise unknown("setting", f"{prefix}{name}", [f"{prefix}{k}" for k in known])
    for name in sorted(known - given):
        raise BadInput(f"{prefix}{name} is missing.")

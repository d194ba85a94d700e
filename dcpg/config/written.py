"""config.json: the configuration of a run as its first process wrote it down, in the schema of its time."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import platform
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.config.build import known_spaces
from dcpg.config.environments import Environment, in_any_folder
from dcpg.config.explain import explain
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
from dcpg.envs.base import Spaces
from dcpg.envs.library import OVERRIDE, installed
from dcpg.envs.procgen import library_of
from dcpg.errors import BadInput, unknown
from dcpg.methods import METHODS, Method
from dcpg.methods.drac import DrAC
from dcpg.methods.plugins import TABLES, changed, find_method, load_everything, missing, parse_used, used
from dcpg.settings import Section, dotted
from dcpg.storage.files import dump, parse_json
from dcpg.storage.rundir import MOST_CONFIGURATION, RunDirectory
from dcpg.text import LONGEST, printable, say

EXPORT = "export"  # the key that makes a folder an export, and says which weights it holds
PROCGEN, LATER = "procgen", "procgen_later"  # the library at the start, and others after a resume
ENVIRONMENT, PLUGINS = "environment", "plugins"  # the user's own
MOST_VALUES = 1000  # settings of a method or a preset
LONGEST_VALUE = 10_000  # characters of one that a preset sets
LONG = 500  # characters of a setting that a checkpoint does not repeat
BESIDES = (  # in the file besides settings
    "schema", "preset_values", "init", "versions", PROCGEN, LATER, ENVIRONMENT, PLUGINS, "method_values", "explained",
    EXPORT,
)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """What config.json of a run holds: the configuration, and facts about how the run was started."""

    plain: dict[str, Any]  # as it is in the file
    config: Config  # in today's schema
    preset_values: dict[str, Any]  # dotted name -> what the preset set when the run was made
    init: str | None  # the run whose weights it started from, and from release 0.3 on a hash of them
    versions: dict[str, str]  # what computed it
    libraries: list[dict[str, Any]]  # that drew its frames; several after a resume with another one
    environment: Environment | None = None  # the user's own
    plugins: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # what was declared outside of dcpg
    # what the settings of a method from a plugin are if none is given
    method_values: dict[str, Any] = dataclasses.field(default_factory=dict)
    explained: str = ""  # the algorithm of a plugin's method

    @property
    def spaces(self) -> Spaces | None:
        """The spaces of the environments, if they are known without making one."""
        return self.environment.spaces if self.environment is not None else known_spaces(self.config)

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the result, in the schema in which it was written: checkpoints name it."""
        return fingerprint(self.plain)

    @property
    def origin(self) -> str:
        """A hash of what a run began with besides its settings: weights, your environment, plugins."""
        own = self.environment
        began = [*in_any_folder((own.id, own.test_id)), *own.sha256[:1]] if own is not None else []
        return digest([self.init, began, [[one["kind"], one["name"], one["sha256"]] for one in self.plugins]])


def read_written(run: RunDirectory) -> Written:
    """The configuration of a run on disk."""
    return parse_written(run.read_config(), run.config)


def parse_written(plain: Mapping[str, Any], where: Path | str = "config.json", code: bool = True) -> Written:
    """A configuration from the data of a config.json; anything unknown or missing is refused.

    Without `code`, a method or an encoder that nobody declared here is no error: the configuration is a `Recorded` one.
    """
    try:
        today = migrated(plain)
        plugins = parse_used(today.get(PLUGINS) or [])
        environment = today.get(ENVIRONMENT)
        own = Environment.parse(environment) if environment is not None else None
        preset = _table(today.get("preset_values", {}), "preset_values")
        method_values = _with_tuples(_table(today.get("method_values") or {}, "method_values"))
        _check_sizes(preset, "preset_values")
        config = _config(today, plugins, code)
        if own is not None and config.game != OWN + own.name:
            raise BadInput(f"game is {printable(config.game)}, the environment's name {printable(own.name)}.")
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{where} is not a run's configuration ({type(error).__name__}: {error}).") from None
    versions, init = today.get("versions"), today.get("init")
    return Written(
        plain=dict(plain),
        config=config,
        preset_values=preset,
        init=str(init) if init else None,
        versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {},
        libraries=_libraries(today, where),
        environment=own,
        plugins=plugins,
        method_values=method_values,
        explained=_printable_text(today.get("explained") or ""),
    )


def _table(found: Any, key: str) -> dict[str, Any]:
    if not isinstance(found, dict) or len(found) > MOST_VALUES:
        raise BadInput(f"{key} is {printable(found)!r}, not a table of at most {MOST_VALUES} settings.")
    return dict(found)


def _check_sizes(found: Mapping[str, Any], key: str) -> None:
    """Every comparison has a preset's values, which are short; a plugin's own may be as long as it likes."""
    for name, value in found.items():
        if len(name) > LONGEST or len(str(value)) > LONGEST_VALUE:
            raise BadInput(f"{key} has {printable(name, 40)}, which is longer than a setting.")


def _with_tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def _printable_text(found: Any) -> str:
    """Several lines of text from a file that may be anybody's."""
    return "\n".join(printable(line) for line in str(found)[:50_000].split("\n"))


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


def to_write(config: Config, init: str | None, environment: Environment | None = None) -> dict[str, Any]:
    """The data of a new run's config.json; `init` says whose weights it begins with."""
    preset = json.loads(json.dumps(PRESETS[config.preset]))
    found = {"preset_values": preset, "init": init, "versions": dict(versions())}
    found |= {PROCGEN: library_today(config), ENVIRONMENT: environment.plain() if environment else None}
    plugins = used(config.method, config.network.encoder)
    if plugins:  # enough for a report to show the run without them
        found |= {PLUGINS: plugins, "method_values": _method_values(config), "explained": explain(config)}
    return readable({"schema": SCHEMA, **config.to_json(), **found})


def readable(plain: dict[str, Any]) -> dict[str, Any]:
    """The same; what could not be read again, such as a whole number of more than 64 bits in a plugin, is refused."""
    try:
        data = dump(plain, indent=2)
        if len(data) > MOST_CONFIGURATION:
            raise BadInput(f"it has {len(data):,} bytes, more than {MOST_CONFIGURATION:,}.")
        parse_written(parse_json(data))
    except (BadInput, ValueError, OverflowError) as error:
        raise BadInput(f"This run's configuration could not be read again: {printable(error)}") from None
    return plain


def to_show(config: Config) -> dict[str, Any]:
    """As much of a config.json as is needed to show a run that has not begun, without the plugins that it uses."""
    plugins = used(config.method, config.network.encoder)
    return {"schema": SCHEMA, **config.to_json(), PLUGINS: plugins, "method_values": _method_values(config)}


def _method_values(config: Config) -> dict[str, Any]:
    """The values of the method's settings if none is given: its defaults, the preset's values, and what defines it."""
    spec = find_method(config.method)
    values = {f"algorithm.{name}": value for name, value, _ in dotted(spec.settings())}
    values |= {name: value for name, value in PRESETS[config.preset].items() if name in values} | dict(spec.fixed)
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def check_plugins(written: Written, what: str) -> None:
    """Refuse a run whose method or encoder was changed since it began."""
    for sentence in changed(written.plugins):
        raise BadInput(f"{what}: {sentence}. Bring that file back, or start a new run.")


def warn_of_plugins(written: Written) -> None:
    """Say on standard error if a run's method or encoder was changed since it was trained."""
    for sentence in changed(written.plugins):
        say(f"warning: {sentence}.", to=sys.stderr)


def library_today(config: Config) -> dict[str, Any] | None:
    """The library that draws a run's frames in this process; None for your own environment."""
    return None if config.game.startswith(OWN) else library_of(config.game, config.env.mode)


def other_library(written: Written) -> dict[str, Any] | None:
    """The library of this process if it draws the run's game otherwise than the one that the run saw last."""
    today = library_today(written.config) if written.libraries else None
    return None if today is None or today["pictures"] == written.libraries[-1]["pictures"] else today


def fingerprint(plain: Mapping[str, Any]) -> str:
    """A hash of all that decides a run's result at a given number of steps."""
    return digest(_decisive(plain))


def _decisive(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if name not in (*UNDECISIVE, *BESIDES)}


def digest(value: Any) -> str:
    """A hash of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def decisive_settings(config: Config) -> dict[str, Any]:
    """What decides a run's result, by dotted name, for checkpoints to name; of a long list of levels only a hash."""
    found: dict[str, Any] = {}
    for name, value in _decisive(config.to_json()).items():
        found |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return {name: f"a list with the hash {digest(v)[:12]}" if len(str(v)) > LONG else v for name, v in found.items()}


def changed_settings(before: Any, config: Config) -> list[str]:
    """How a configuration differs from the settings that a checkpoint names, one clause per setting."""
    if not isinstance(before, dict):  # by a release that did not name them
        return []
    return [
        f"{name} was {printable(json.dumps(before[name]))} and is {printable(json.dumps(now))}"
        for name, now in decisive_settings(config).items()
        if name in before and before[name] != now
    ]


@dataclass(frozen=True)
class Recorded(Config):
    """The configuration of a run whose method or encoder is not declared in this process: it can be shown, not run."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        self.check_levels()

    def declared(self) -> Method:
        raise BadInput(f"{self.method} or {self.network.encoder} is not declared here; load its plugin.")


@dataclass(frozen=True)
class _Values(Section):
    """The settings of a method that is not declared here."""

    @classmethod
    def of(cls, plain: Any) -> Section:
        taken = {*dir(cls), "self"}
        # Python takes two names for one that are the same in this form
        values = _with_tuples(_table(plain, "algorithm"))
        names = [unicodedata.normalize("NFKC", name) for name in values]
        if names != [*values] or not all(name.isidentifier() and name not in taken for name in names):
            raise BadInput("algorithm is not a table of settings.")
        if not all(isinstance(v, bool | int | float | str | tuple | None) for v in values.values()):
            raise BadInput("algorithm has values that are no settings.")
        kind = dataclasses.make_dataclass("_Values", [(name, Any) for name in values], bases=(cls,), frozen=True)
        found: Section = kind(**values)
        return found


def _known(kind: str, name: Any, plugins: list[dict[str, Any]], code: bool) -> bool:
    """Whether a method or an encoder is declared here, after a look for plugins if code may be loaded."""
    table = TABLES[kind]
    if not isinstance(name, str):
        raise BadInput(f"{kind} is {printable(name)!r}, not a name.")
    if name not in table and code:
        load_everything()
        if name not in table:
            raise missing(kind, name, plugins)
    if name not in table and (kind, name) not in {(one["kind"], one["name"]) for one in plugins}:
        raise unknown(kind, name, table)
    return name in table


def _config(plain: Mapping[str, Any], plugins: list[dict[str, Any]], code: bool) -> Config:
    name = plain["method"]
    known = _known("method", name, plugins, code)
    if not known and not plain.get("method_values"):
        raise BadInput(f"the values of {printable(name)} are not recorded.")
    knows_encoder = _known("encoder", plain["network"]["encoder"], plugins, code)
    kind = Config if known and knows_encoder else Recorded
    algorithm = METHODS[name].settings() if known else _Values.of(plain["algorithm"])
    sections: dict[str, Section] = {
        "algorithm": algorithm, "env": Env(), "levels": Levels(), "drac": DrAC(), "network": Net(),
        "evaluation": Evaluation(), "checkpoints": Checkpoints(), "machine": Machine(),
    }  # fmt: skip
    values = {k: v for k, v in plain.items() if k not in BESIDES}
    _check_complete(values, Config)
    for key, section in sections.items():
        _check_complete(values[key], type(section), f"{key}.")
        values[key] = section if isinstance(section, _Values) else section.with_values(values[key])
    return kind(**values)


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

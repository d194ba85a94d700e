"""The plan of a sweep: from a small TOML file to the runs that it describes.

methods = ["ppg", "dcpg"]       # or one name
games = "all"                   # all 16, or a list of names
envs = ["CartPole-v1", {env = "maze.py:make", test_env = "maze.py:make_test", name = "maze"}]    # your own
seeds = 3                       # 0, 1, 2; or a list
steps = 8_000_000
preset = "paper"
levels = [1, 10, 200]           # numbers of training levels: one run for each
analyse_after = ["levels"]      # analyses of each run when it is trained; or a table, method -> analyses
[set]                           # the same for every run
machine.device = "cuda"
[grid]                          # one run for each value, and for each combination
algorithm.beta_pi = [0.5, 1.0]
[grid."ppg+dr"]                 # for one method only; likewise [set."METHOD"]
algorithm.gamma = [0.98, 0.99]
[variants.dcpg]                 # one run for each name, with its settings; [variants] without a method: for all
plain = {}
wide = {network.width = 2}
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcpg.analysis.analyse import DoesNotApply, check_applies
from dcpg.config.build import known_spaces, spaces_of
from dcpg.config.command import written
from dcpg.config.environments import EnvMaker, find
from dcpg.config.presets import PRESETS
from dcpg.config.resolve import resolve
from dcpg.config.schema import ANALYSES, OWN, Config
from dcpg.envs.base import Spaces
from dcpg.envs.procgen import GAMES, check_game
from dcpg.errors import BadInput, unknown
from dcpg.methods import METHODS
from dcpg.methods.plugins import find_method, used
from dcpg.settings import MOST, dotted
from dcpg.sweep.directory import RUN_NAME, check_name

NAMED_SWEEPS = Path(__file__).parent / "named"
KEYS = ("methods", "games", "envs", "seeds", "steps", "preset", "levels", "analyse_after", "set", "grid", "variants")
ENV_KEYS = ("env", "test_env", "name")
OWN_KEYS = {"method": "methods", "game": "games", "seed": "seeds", "preset": "preset"}  # setting -> key of a sweep
MAX_FILE_SIZE = 1_000_000  # bytes
MAX_RUNS = 10_000  # of a sweep; also the most entries of one of its lists
Games = dict[str, "OwnEnvironment | None"]  # game -> the user's own environment; None: Procgen
LABEL_PART = re.compile(r"[a-z0-9+=.,_-]{1,40}")


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str  # also of its directory
    config: Config
    label: str  # the method, and the settings that the sweep varies
    own: OwnEnvironment | None = None  # None: Procgen
    analyses: tuple[str, ...] = ()  # when it is trained

    @property
    def spaces(self) -> Spaces:
        """The spaces of its environments, which need not be made for that again."""
        known = known_spaces(self.config)
        if known is None:
            assert self.own is not None
            known = self.own.spaces(self.config)
        return known


@dataclass(frozen=True)
class OwnEnvironment:
    """The user's own environment in a sweep: what other processes are told, and how it is made here."""

    maker: EnvMaker
    sent: dict[str, str | None] = field(compare=False)  # as `find` takes it, and the folder to look for modules in
    found: dict[int, Spaces] = field(default_factory=dict, compare=False)

    def spaces(self, config: Config) -> Spaces:
        """The spaces with a run's stack of frames; the environment is made and checked once for each."""
        stack = config.env.frame_stack
        if stack not in self.found:
            self.found[stack] = spaces_of(config, self.maker)
            self.maker.check_test(self.found[stack], config.seed, stack)
        return self.found[stack]


@dataclass(frozen=True)
class Plan:
    """A sweep and all of its runs."""

    name: str
    source: dict[str, Any]  # as it was read
    jobs: tuple[Job, ...]

    @property
    def plugins(self) -> list[str]:
        """The sources of the plugins that its runs need."""
        pairs = dict.fromkeys((job.config.method, job.config.network.encoder) for job in self.jobs)
        return list(dict.fromkeys(one["plugin"] for pair in pairs for one in used(*pair)))


def one_per_label(jobs: Sequence[Job]) -> dict[tuple[str, int], Job]:
    """One run for each label and number of steps; runs that differ only in game or seed need the same resources."""
    return {(job.label, job.config.steps): job for job in jobs}


def named_sweeps() -> dict[str, Path]:
    """The sweeps that come with the package, by their names."""
    return {path.stem: path for path in sorted(NAMED_SWEEPS.glob("*.toml"))}


def read(given: str, settings: Mapping[str, Any] | None = None, own: Mapping[str, str | None] | None = None) -> Plan:
    """A sweep from a file, or one that comes with the package; `settings` take precedence over [set] for every method.

    `own` (env, test_env, name) is an environment instead of the file's games and environments.
    """
    path = Path(given)
    if not path.is_file():
        if path.suffix == ".toml" or len(path.parts) != 1:
            raise BadInput(f"There is no file {given}.")
        if given not in named_sweeps():
            raise unknown("sweep", given, named_sweeps())
        path = named_sweeps()[given]
    try:
        if path.stat().st_size > MAX_FILE_SIZE:
            raise BadInput(f"{path} has {path.stat().st_size:,} bytes; a sweep is a small file.")
        source = _overridden(tomllib.loads(path.read_bytes().decode()), settings or {})
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # of TOML and of UTF-8
        raise BadInput(f"{path} is not TOML ({error}).") from None
    name = re.sub(r"[^a-z0-9+=,_-]+", "-", path.stem.lower()).strip("-")[:100] or "sweep"
    typed = {key: value for key, value in (own or {}).items() if value is not None}
    if typed and "env" not in typed:
        find(None, typed.get("test_env"), typed.get("name"))  # says that it goes with --env
    if typed:
        source = {key: value for key, value in source.items() if key not in ("games", "envs")} | {"envs": [typed]}
    return expand(name, source, path, Path.cwd() if typed else path.absolute().parent)


def _overridden(source: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a file holds, with settings from the command line instead of its own; a variant that has one is refused."""
    typed, table = dict(given), source.get("set", {})
    variants = _flat(source["variants"]) if isinstance(source.get("variants"), dict) else {}
    for name in typed:
        if any(key.endswith(f".{name}") for key in variants):
            raise BadInput(f"{name} is given on the command line and in [variants]; choose one.")
    if "steps" in typed:  # a key of its own, outside [set]
        steps = typed.pop("steps")
        source = source | {"steps": int(steps) if str(steps).isdecimal() else steps}
    if not typed or not isinstance(table, dict):
        return source
    kept: dict[str, Any] = {}
    for name, value in table.items():
        own = name in METHODS and isinstance(value, dict)
        left = {key: one for key, one in _flat(value if own else {name: value}).items() if key not in typed}
        kept |= ({name: left} if left or not value else {}) if own else left
    return source | {"set": kept | typed}


def expand(name: str, source: dict[str, Any], where: Path | str, folder: Path | None = None) -> Plan:
    """Every run that a sweep describes; BadInput names whatever is wrong with it.

    Files of environments are looked for in `folder`, and then in the current one.
    """
    try:
        return Plan(name, source, tuple(_jobs(source, folder or Path.cwd())))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except RecursionError:
        raise BadInput(f"{where}: its tables are nested too deeply.") from None


def _jobs(source: Mapping[str, Any], folder: Path) -> list[Job]:
    for key in source:
        if key not in KEYS:
            raise unknown("key of a sweep", key, KEYS)
    methods = _names(source, "methods")
    for method in methods:
        find_method(method)
    games: Games = {}
    if "games" in source or "envs" not in source:
        names = list(GAMES) if source.get("games") == "all" else [check_game(game) for game in _names(source, "games")]
        games |= dict.fromkeys(names)
    games |= _environments(source.get("envs", []), folder)
    if not games:
        raise BadInput("envs is empty.")
    seeds = _integers(source.get("seeds", 1), "seeds")
    if isinstance(source.get("seeds", 1), int):
        if seeds[0] < 1:
            raise BadInput("seeds is 0; give a list of seeds, or their number.")
        if seeds[0] > MAX_RUNS:
            raise BadInput(f"seeds is {seeds[0]:,}: a sweep has at most {MAX_RUNS:,} runs.")
        seeds = list(range(seeds[0]))
    preset = source.get("preset", "paper")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    axes = {method: _Axes(source, methods, method, preset) for method in methods}
    runs = len(games) * len(seeds) * sum(each.size for each in axes.values())
    if runs > MAX_RUNS:
        shown = f"{runs:,}" if runs < MOST else f"more than {MOST:,}"
        raise BadInput(f"this sweep has {shown} runs; the most is {MAX_RUNS:,}.")
    # seeds are outermost, so that the first finished runs make whole comparisons
    found = [job for seed in seeds for method in methods for job in axes[method].jobs(games, seed)]
    seen: dict[str, Job] = {}
    for job in found:
        if job.name in seen:
            raise BadInput(f"two of its runs would both be {job.name}; name each value once.")
        seen[job.name] = job
    return found


def _environments(given: Any, folder: Path) -> Games:
    """Game -> the user's own environment, for each entry of `envs`."""
    found: Games = {}
    for entry in _entries(given, "envs"):
        table = {"env": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict) or "env" not in table or not all(isinstance(v, str) for v in table.values()):
            raise BadInput(
                f"envs must be names such as 'CartPole-v1' and 'maze.py:make', or tables with {', '.join(ENV_KEYS)}; "
                f"got {entry!r}."
            )
        for key in table:
            if key not in ENV_KEYS:
                raise unknown("key of envs", key, ENV_KEYS)
        env, test_env = (_absolute(table[key], folder) if key in table else None for key in ("env", "test_env"))
        maker = find(env, test_env, table.get("name"))
        sent = {"env": env, "test_env": test_env, "name": maker.name, "folder": os.getcwd()}
        if OWN + maker.name in found:
            raise BadInput(f"two of its envs are named {maker.name}; give each a name of its own.")
        found[OWN + maker.name] = OwnEnvironment(maker, sent)
    return found


def _absolute(text: str, folder: Path) -> str:
    """An environment's text with the absolute path of its file, so that it means the same everywhere."""
    file, colon, function = text.rpartition(":")
    if not colon or not (file.endswith(".py") or os.sep in file):
        return text
    place = folder / file if (folder / file).is_file() else Path(file).absolute()
    return f"{place}:{function}"


class _Axes:
    """The settings that the runs of one method share, and those that vary."""

    def __init__(self, source: Mapping[str, Any], methods: list[str], method: str, preset: str) -> None:
        self.method, self.preset = method, preset
        fixed, varied = (_settings_of(source.get(key, {}), key, methods, method) for key in ("set", "grid"))
        _check_tables(fixed, varied)
        self.short = _short_names(list(varied))
        for key, name in (("steps", "steps"), ("levels", "levels.count")):
            if key not in source:
                continue
            if name in fixed or name in varied:
                raise BadInput(f"{key} is given at the top and {name} in [set] or [grid]; choose one.")
            values = _integers(source[key], key)
            if key == "levels" and isinstance(source[key], list):
                varied = {name: values, **varied}
                self.short[name] = "levels"
            elif isinstance(source[key], list):
                raise BadInput(f"steps must be one number; for several, write them as steps under [grid]: {values}.")
            else:
                fixed[name] = values[0]
        if "machine.threads" not in (*varied, *PRESETS[preset]):
            fixed.setdefault("machine.threads", 1)  # not all cores: results must not depend on the machine
        if "shards" not in varied:
            fixed.setdefault("shards", 1)  # nor on the number of processes
        threads = [fixed.get("machine.threads"), *varied.get("machine.threads", ())]
        if any(number in (0, "0") for number in threads):
            raise BadInput("machine.threads=0 means all cores of whatever machine it is; give a number.")
        self.fixed, self.varied = fixed, varied
        self.analyses = _analyses_of(source.get("analyse_after", []), methods, method)
        self.variants = _variants_of(source.get("variants", {}), methods, method)
        for variant, settings in self.variants.items():
            twice = [name for name in settings if name in varied or name in OWN_KEYS]
            if twice:
                raise BadInput(f"{twice[0]} of the variant {variant} is also in [grid], or belongs at the top.")
        self.size = len(self.variants) * math.prod(len(values) for values in varied.values())
        self._first: dict[tuple[str, int], Config] = {}  # game, place in the grid -> that of the first seed

    def jobs(self, games: Games, seed: int) -> Iterator[Job]:
        for place, ((variant, own), *values) in enumerate(
            itertools.product(self.variants.items(), *self.varied.values())
        ):
            settings = self.fixed | dict(zip(self.varied, values, strict=True)) | own
            for game, environment in games.items():
                if (game, place) not in self._first:
                    self._first[game, place] = self._config(game, seed, settings)
                config = dataclasses.replace(self._first[game, place], seed=seed)
                label = self._label(config, variant if own else "")
                name = check_name(f"{game.removeprefix(OWN).lower()}-{label}-{seed}")
                job = Job(name, config, label, environment, self.analyses)
                _check_analyses(job)
                if environment is not None:
                    environment.spaces(config)  # one that cannot be made is refused here
                yield job

    def _config(self, game: str, seed: int, settings: Mapping[str, Any]) -> Config:
        try:
            return resolve(self.method, game, preset=self.preset, seed=seed, settings=settings)
        except BadInput:
            for name in [name for name in settings if name not in _setting_names(self.method)]:
                others = [method for method in METHODS if name in _setting_names(method)]
                if others:
                    raise BadInput(
                        f'{self.method} has no setting {name}; put it under [set."METHOD"] or [grid."METHOD"] of the '
                        f"methods that have it, such as {others[0]}."
                    ) from None
            raise

    def _label(self, config: Config, variant: str) -> str:
        values = {name: value for name, value, _ in dotted(config)}
        parts = [variant] if variant else []
        parts += [_part(self.short[name], written(values[name])) for name in self.varied]
        label = "-".join([self.method, *parts])
        if len(label) > 150 or not RUN_NAME.fullmatch(label):
            label = f"{self.method}-{_digest(label)}"
        return label


def _check_tables(fixed: Mapping[str, Any], varied: Mapping[str, Any]) -> None:
    for name in (*fixed, *varied):
        if name in OWN_KEYS:
            raise BadInput(f"{name} belongs at the top of a sweep, as {OWN_KEYS[name]}.")
    for name, values in varied.items():
        if not isinstance(values, list) or not values:
            raise BadInput(f"[grid] {name} must be a list of values; got {values!r}.")
        if name in fixed:
            raise BadInput(f"{name} is both in [set] and in [grid]; choose one.")


def _part(name: str, value: str) -> str:
    part = f"{name}={value}".lower()
    return part if LABEL_PART.fullmatch(part) and ".." not in part else f"{name[:20].lower()}={_digest(value)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _short_names(names: list[str]) -> dict[str, str]:
    """The last part of each dotted name where it is unambiguous."""
    last = [name.rsplit(".", 1)[-1] for name in names]
    times = Counter(last)
    return {name: short if times[short] == 1 else name for name, short in zip(names, last, strict=True)}


def _setting_names(method: str) -> set[str]:
    return {name for name, _, _ in dotted(resolve(method, GAMES[0]))}


def _settings_of(table: Any, key: str, methods: list[str], method: str) -> dict[str, Any]:
    """The settings of a table for one method, flat; those under the method's name take precedence over the others."""
    if not isinstance(table, dict):
        raise BadInput(f"[{key}] must be a table; got {table!r}.")
    common, own = dict[str, Any](), dict[str, Any]()
    for name, value in table.items():
        if name in METHODS:
            if name not in methods:
                raise BadInput(f'[{key}."{name}"] is for a method that this sweep does not train.')
            if not isinstance(value, dict) or not value:
                raise BadInput(f'[{key}."{name}"] must be a table of settings; got {value!r}.')
            own |= _flat(value) if name == method else {}
        else:
            common |= _flat({name: value})
    return common | own


def _variants_of(table: Any, methods: list[str], method: str) -> dict[str, dict[str, Any]]:
    """Name -> settings of one method's variants; a single one without settings if there are none."""
    if not isinstance(table, dict):
        raise BadInput(f"[variants] must be a table; got {table!r}.")
    found: dict[str, dict[str, Any]] = {}
    for name, value in table.items():
        if name in METHODS and name not in methods:
            raise BadInput(f'[variants."{name}"] is for a method that this sweep does not train.')
        if name in METHODS and not isinstance(value, dict):
            raise BadInput(f'[variants."{name}"] must be a table of variants; got {value!r}.')
        for variant, settings in (value if name in METHODS else {name: value}).items():
            if not LABEL_PART.fullmatch(variant) or not isinstance(settings, dict):
                raise BadInput(
                    f"the variant {variant!r} must be a short name in small letters and a table of settings."
                )
            if name not in METHODS or name == method:
                found[variant] = _flat(settings)
    return found or {"": {}}


def _analyses_of(given: Any, methods: list[str], method: str) -> tuple[str, ...]:
    """The analyses of one method's runs: the same for all methods, or a table with the methods that have any."""
    key = "analyse_after"
    if isinstance(given, dict):
        for name in given:
            if name not in methods:
                raise unknown("method of [analyse_after]", name, methods)
        given, key = given.get(method, []), f'[analyse_after] "{method}"'
    names = given if isinstance(given, list) else [given]
    for name in names:
        if not isinstance(name, str) or name not in ANALYSES:
            raise unknown(f"analysis in {key}", str(name), ANALYSES)
    _check_unique(names, key)
    return tuple(names)


def _check_analyses(job: Job) -> None:
    for analysis in job.analyses:
        try:
            check_applies(job.config, analysis)
        except DoesNotApply as error:
            raise BadInput(
                f"analyse_after: {error} Give a table instead, [analyse_after], with the methods that have it."
            ) from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict) and value:  # an empty table is refused later, by its name
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _names(source: Mapping[str, Any], key: str) -> list[str]:
    if key not in source:
        raise BadInput(f"{key} is missing.")
    values = _entries(source[key], key)
    if not values:
        raise BadInput(f"{key} is empty.")
    for value in values:
        if not isinstance(value, str):
            raise BadInput(f"{key} must be names; got {value!r}.")
    _check_unique(values, key)
    return values


def _integers(given: Any, key: str) -> list[int]:
    values = _entries(given, key)
    if not values:
        raise BadInput(f"{key} is empty.")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadInput(f"{key} must be whole numbers, 0 or more; got {value!r}.")
    _check_unique(values, key)
    return values


def _entries(given: Any, key: str) -> list[Any]:
    """The entries of a list, or the only one; refused if there are more than a sweep has runs."""
    found = given if isinstance(given, list) else [given]
    if len(found) > MAX_RUNS:
        raise BadInput(f"{key} has {len(found):,} entries: a sweep has at most {MAX_RUNS:,} runs.")
    return found


def _check_unique(values: list[Any], key: str) -> None:
    for value, times in Counter(values).items():
        if times > 1:
            raise BadInput(f"{key} names {value!r} twice.")

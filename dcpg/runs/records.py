"""Runs as the report sees them: read from disk with suspicion, and what is wrong with them said."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dcpg.config.command import usual_values
from dcpg.config.presets import PRESETS
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config
from dcpg.config.written import from_json
from dcpg.envs.procgen import ALL_LEVELS
from dcpg.errors import BadInput, unknown
from dcpg.settings import dotted
from dcpg.storage.files import read_regular
from dcpg.storage.rows import parse_rows
from dcpg.storage.rundir import RunDirectory

SPLITS = ("train", "test")


VALUES = ("predicted_value", "true_value", "true_value_own_gamma")


NEWEST = 3  # evaluations whose single episodes are kept


MOST_ANALYSIS = 64_000_000  # bytes


LARGEST = 1e100  # a greater return is no return, and its square is not finite


STIFFNESS = {  # what is measured -> its column of metrics.jsonl
    "stiffness": "stiffness", "sign_free": "stiffness_sign_free", "sign_agreement": "stiffness_sign_agreement",
}  # fmt: skip


# what may differ between two runs that are compared: the method itself, and how a run is computed or watched
_OF_THE_METHOD = ("algorithm.", "levels.sampler", "levels.beta", "levels.rho", "augment", "drac.")


_OF_THE_COMPUTER = (
    "seed", "game", "method", "preset", "steps", "shards", "keep_every", "analyse", "check_room", "wandb",
    "checkpoints.", "machine.", "env.timeout", "evaluation.every",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What the runs of one comparison have in common."""

    steps: int  # of whole rollouts
    preset: str = field(compare=False)  # its sizes count, not its name
    levels: tuple[tuple[str, Any], ...]  # the training levels
    rest: tuple[tuple[str, Any], ...]  # network, environments, evaluation

    @property
    def level_count(self) -> int:
        """How many training levels."""
        plain = dict(self.levels)
        return len(plain["levels.seeds"]) or int(plain["levels.count"])

    def sentence(self) -> str:
        """For people."""
        return f"{self.steps:,} steps, preset {self.preset}, {self.level_count or 'all'} training levels"

    @property
    def is_paper_size(self) -> bool:
        """Whether the paper's own figures can be set beside such runs."""
        return self == papers_setting()


def setting_of(config: Config) -> Setting:
    """A run's. What the preset changes in methods belongs to it, for `variant_of` does not name it."""
    every = {name: value for name, value, _ in dotted(config)}
    common = {n: v for n, v in every.items() if not n.startswith((*_OF_THE_METHOD, *_OF_THE_COMPUTER))}
    levels = tuple((n, v) for n, v in common.items() if n.startswith("levels."))
    preset = {n: v for n, v in PRESETS.get(config.preset, {}).items() if n.startswith(_OF_THE_METHOD)}
    rest = tuple((n, v) for n, v in (common | preset).items() if not n.startswith("levels."))
    return Setting(config.rollouts * config.rollout_size, config.preset, levels, rest)


@cache
def papers_setting() -> Setting:
    """The paper's own."""
    return setting_of(resolve("ppo", "bigfish"))


def variant_of(config: Config) -> str:
    """The method's name, and what was set otherwise than the method and the preset have it."""
    usual = usual_values(config.method, config.preset)
    other = [
        f"{name.rsplit('.', 1)[-1]}={value}"
        for name, value, _ in dotted(config)
        if name.startswith(_OF_THE_METHOD) and usual.get(name) != value
    ]
    return f"{config.method} [{', '.join(other)}]" if other else config.method


@dataclass(frozen=True)
class Record:
    """One run."""

    path: Path
    config: Config
    versions: Mapping[str, str]
    evaluations: list[dict[str, Any]]
    stiffness: list[dict[str, float]]  # of rows of metrics.jsonl that have it
    analyses: dict[str, dict[str, Any]] = field(default_factory=dict)  # what `dcpg analyse` kept of the newest weights
    init: bool = False  # it began with the weights of another run

    @cached_property
    def setting(self) -> Setting:
        """What it can be compared with."""
        return setting_of(self.config)

    @cached_property
    def label(self) -> str:
        """The method and its variant; a run that began with trained weights is no run of the method itself."""
        return f"{variant_of(self.config)} [init]" if self.init else variant_of(self.config)

    @property
    def steps(self) -> int:
        """At the newest evaluation."""
        return int(self.evaluations[-1]["steps"]) if self.evaluations else 0

    @property
    def finished(self) -> bool:
        """Whether the evaluation after the last rollout is there."""
        return self.steps >= self.setting.steps

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.label} on {self.config.game}, seed {self.config.seed}"


@dataclass(frozen=True)
class Problem:
    """Something that was found and what was done about it."""

    path: Path
    text: str


Cache = dict[Path, tuple[tuple[Any, ...], tuple[Record, list[str]]]]  # run -> its files' sizes and times, what was read


def read(directories: Iterable[Path], cache: Cache | None = None) -> tuple[list[Record], list[Problem]]:
    """Every run at or below the directories. Links are not followed; a run is read once however often it is named.

    With a cache, a run is read again only when its files have changed.
    """
    records, problems, seen = list[Record](), list[Problem](), set[Path]()
    for top in directories:
        if not top.is_dir():
            raise BadInput(f"There is no directory {top}.")
        found = sorted(_run_directories(top, problems))
        if not found:
            raise BadInput(f"{top} holds no run: no config.json at or below it.")
        for path in found:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                record, notes = read_run(path) if cache is None else _read_cached(path, cache)
            except BadInput as error:
                problems.append(Problem(path, f"left out: {error}"))
                continue
            problems += [Problem(path, note) for note in notes]
            records.append(record)
    return without_duplicates(records, problems), problems


def _run_directories(top: Path, problems: list[Problem]) -> Iterable[Path]:
    def note(error: OSError) -> None:
        problems.append(Problem(Path(error.filename), f"left out: it cannot be looked into ({error.strerror})"))

    for folder, below, files in os.walk(top, onerror=note):
        # some other program's config.json may stand above the runs
        if "config.json" in files and (not below or {*files, *below} & {"eval.jsonl", "checkpoints"}):
            below.clear()
            yield Path(folder)


def without_duplicates(records: list[Record], problems: list[Problem]) -> list[Record]:
    """One run for each method, game, seed and setting: the one that is furthest and has most measured on it.

    Who computed it and how often it was looked at makes no second seed of it. The others are noted.
    """
    best: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=lambda r: (-r.steps, -len(r.stiffness), -len(r.analyses))):
        key = (record.setting, record.label, record.config.game, record.config.seed)
        if key in best:
            problems.append(
                Problem(record.path, f"left out: the same method, game, seed and settings as {best[key].path}")
            )
        else:
            best[key] = record
    kept = {id(record) for record in best.values()}
    return [record for record in records if id(record) in kept]


def _read_cached(path: Path, cache: Cache) -> tuple[Record, list[str]]:
    names = ("config.json", "eval.jsonl", "metrics.jsonl", "analysis/levels.json", "analysis/ood-actions.json")
    files = [path / name for name in names if (path / name).exists()]
    now = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    if path not in cache or cache[path][0] != now:
        cache[path] = (now, read_run(path))
    return cache[path][1]


def read_run(path: Path) -> tuple[Record, list[str]]:
    """A run and what is odd about it; one whose numbers cannot be trusted is refused."""
    run, notes = RunDirectory(path), list[str]()
    try:
        plain = run.read_config()
        config = from_json(plain, "config.json")
    except (OverflowError, RecursionError) as error:
        raise BadInput(f"config.json is not a run's configuration ({error}).") from None
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    evaluations = _rows(run.evaluations.path, notes)
    for number, row in enumerate(evaluations, 1):
        _check_evaluation(row, number, config)
    for row in evaluations[:-NEWEST]:  # a report over thousands of runs has no room for every episode
        for split in SPLITS:
            row.pop(f"{split}_returns", None)
            row.pop(f"{split}_levels", None)
    steps = [row["steps"] for row in evaluations]
    if steps != sorted(set(steps)):
        raise BadInput("eval.jsonl: steps do not grow from row to row.")
    last = config.rollouts * config.rollout_size
    if steps and steps[-1] > last:
        raise BadInput(f"eval.jsonl: an evaluation at {steps[-1]:,} steps, but the run is one of {last:,}.")
    versions = plain.get("versions")
    versions = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    analyses = _analyses(run, config, steps[-1] if steps else 0, notes)
    return Record(
        path, config, versions, evaluations, _stiffness(run, config, notes), analyses, bool(plain.get("init"))
    ), notes


def _stiffness(run: RunDirectory, config: Config, notes: list[str]) -> list[dict[str, float]]:
    """The measurements of a run that was asked for them: other runs' metrics are long and have none."""
    if "stiffness" not in config.analyse:
        return []
    names = ("steps", *STIFFNESS.values())
    rows = [row for row in _rows(run.metrics.path, notes) if "stiffness" in row]
    return [
        {name: _number(row.get(name), f"metrics.jsonl, measurement {number}: {name}") for name in names}
        for number, row in enumerate(rows, 1)
    ]


def _rows(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        data = read_regular(path) if path.exists() else b""
        rows = parse_rows(data)
    except (OSError, RecursionError) as error:
        raise BadInput(f"{path.name} cannot be read ({error}).") from None
    lines = len(data.splitlines())
    if lines > len(rows):
        notes.append(f"{path.name} is torn: {lines - len(rows)} of {lines} lines were passed over")
    return rows


def _check_evaluation(row: dict[str, Any], number: int, config: Config) -> None:
    where = f"eval.jsonl, row {number}"
    steps = row.get("steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadInput(f"{where}: steps is {_short(steps)}, not a number of steps.")
    own = config.game.startswith(OWN)
    for split in SPLITS:
        if f"{split}_return" not in row:
            if own and split == "test":
                continue  # an environment of one's own may have no unseen levels
            raise BadInput(f"{where}: {split}_return is missing.")
        mean = _number(row[f"{split}_return"], f"{where}: {split}_return")
        for name in VALUES:
            _number(row.get(f"{split}_{name}"), f"{where}: {split}_{name}")
        returns, levels = row.get(f"{split}_returns"), row.get(f"{split}_levels")
        if not isinstance(returns, list) or not isinstance(levels, list) or len(returns) != len(levels) or not returns:
            raise BadInput(f"{where}: {split}_returns and {split}_levels are not lists of equal length.")
        if not all(type(r) in (int, float) and abs(r) <= LARGEST for r in returns):
            odd = next(r for r in returns if not (type(r) in (int, float) and abs(r) <= LARGEST))
            raise BadInput(f"{where}: {split}_returns has {_short(odd)}, which is not a number.")
        if not all(_is_level(level, own) for level in levels):
            raise BadInput(f"{where}: {split}_levels are not level seeds.")
        if not math.isclose(mean, sum(returns) / len(returns), rel_tol=1e-6, abs_tol=1e-6):
            raise BadInput(
                f"{where}: {split}_return is {mean:g}, but its episodes' mean is {sum(returns) / len(returns):g}."
            )


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
        raise BadInput(f"{where} is {_short(value)}, not a number.")
    return float(value)


def _is_level(value: Any, own: bool) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and (own or 0 <= value < ALL_LEVELS)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _analyses(run: RunDirectory, config: Config, steps: int, notes: list[str]) -> dict[str, dict[str, Any]]:
    """What `dcpg analyse` kept of this run's newest weights, where it has the form that the report reads."""
    found: dict[str, dict[str, Any]] = {}
    for name, check in (("ood-actions", _check_ood_actions), ("levels", _check_levels)):
        path = run.path / "analysis" / f"{name}.json"
        if not path.exists():
            continue
        try:
            plain = json.loads(read_regular(path, MOST_ANALYSIS))
            whose = {"analysis": name, "method": config.method, "game": config.game, "seed": config.seed}
            if {key: plain[key] for key in whose} != whose:
                raise BadInput("it is of another run")
            check(plain)
            if plain["steps"] < steps:
                raise BadInput(f"it is of the weights at {plain['steps']:,} steps; run `dcpg analyse {name}` again")
            found[name] = plain
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, BadInput) as error:
            notes.append(f"analysis/{name}.json was passed over ({error})")
    return found


def _check_ood_actions(plain: Any) -> None:
    for name in ("mean", "std", "raw_mean", "raw_std", "transitions", "left_out", "steps"):
        if _number(plain[name], name) < 0:
            raise BadInput(f"{name} is {_short(plain[name])}")
    if plain["transitions"] < 1:
        raise BadInput("no transition was counted")


def _check_levels(plain: Any) -> None:
    _number(plain["steps"], "steps")
    for split in SPLITS:
        levels, returns = plain[split]["levels"], plain[split]["returns"]
        if len(levels) != len(returns) or not all(_is_level(level, False) for level in levels):
            raise BadInput(f"{split} has not one return a level")
        for value in returns:
            _number(value, f"{split} returns")

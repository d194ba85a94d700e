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

from dcpg.config import Config, from_json, resolve
from dcpg.errors import BadInput
from dcpg.rundir import RunDirectory, read_rows
from dcpg.settings import dotted

SPLITS = ("train", "test")
VALUES = ("predicted_value", "true_value", "true_value_own_gamma")
STIFFNESS = ("stiffness", "stiffness_sign_free", "stiffness_sign_agreement")
# what may differ between two runs that are compared: the method itself, and how a run is computed or watched
_OF_THE_METHOD = ("algorithm.", "levels.sampler", "levels.beta", "levels.rho", "augment", "drac.")
_OF_THE_COMPUTER = (
    "seed", "game", "method", "preset", "steps", "keep_every", "analyse", "check_room", "wandb", "checkpoints.",
    "machine.", "env.timeout", "evaluation.every",
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
    """A run's."""
    every = {name: value for name, value, _ in dotted(config)}
    common = {n: v for n, v in every.items() if not n.startswith((*_OF_THE_METHOD, *_OF_THE_COMPUTER))}
    levels = tuple((n, v) for n, v in common.items() if n.startswith("levels."))
    rest = tuple((n, v) for n, v in common.items() if not n.startswith("levels."))
    return Setting(config.rollouts * config.rollout_size, config.preset, levels, rest)


@cache
def papers_setting() -> Setting:
    """The paper's own."""
    return setting_of(resolve("ppo", "bigfish"))


@cache
def _usual(method: str, preset: str) -> dict[str, Any]:
    return {name: value for name, value, _ in dotted(resolve(method, "bigfish", preset=preset))}


def variant_of(config: Config) -> str:
    """The method's name, and what was set otherwise than the method and the preset have it."""
    usual = _usual(config.method, config.preset)
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
    stiffness: list[dict[str, float]]  # rows of metrics.jsonl that have it
    analyses: dict[str, dict[str, Any]] = field(default_factory=dict)  # what `dcpg analyse` kept

    @cached_property
    def setting(self) -> Setting:
        """What it can be compared with."""
        return setting_of(self.config)

    @cached_property
    def label(self) -> str:
        """The method, and its variant."""
        return variant_of(self.config)

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


def read(directories: Iterable[Path]) -> tuple[list[Record], list[Problem]]:
    """Every run at or below the directories. Links are not followed; a run is read once however often it is named."""
    records, problems, seen = list[Record](), list[Problem](), set[Path]()
    for top in directories:
        if not top.is_dir():
            raise BadInput(f"There is no directory {top}.")
        found = sorted(_run_directories(top))
        if not found:
            raise BadInput(f"{top} holds no run: no config.json at or below it.")
        for path in found:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                record, notes = read_run(path)
            except BadInput as error:
                problems.append(Problem(path, f"left out: {error}"))
                continue
            problems += [Problem(path, note) for note in notes]
            records.append(record)
    return without_duplicates(records, problems), problems


def _run_directories(top: Path) -> Iterable[Path]:
    for folder, below, files in os.walk(top):
        if "config.json" in files:
            below.clear()
            yield Path(folder)


def without_duplicates(records: list[Record], problems: list[Problem]) -> list[Record]:
    """One run for each configuration, game and seed: the one that is furthest; the others are noted."""
    best: dict[tuple[Any, ...], Record] = {}
    for record in sorted(records, key=lambda r: -r.steps):
        key = (record.config.fingerprint(), record.setting.steps)
        if key in best:
            problems.append(
                Problem(record.path, f"left out: the same method, game, seed and settings as {best[key].path}")
            )
        else:
            best[key] = record
    kept = {id(record) for record in best.values()}
    return [record for record in records if id(record) in kept]


def read_run(path: Path) -> tuple[Record, list[str]]:
    """A run and what is odd about it; one whose numbers cannot be trusted is refused."""
    run, notes = RunDirectory(path), list[str]()
    plain = run.read_config()
    config = from_json(plain, "config.json")
    evaluations = _rows(run.evaluations.path, notes)
    for number, row in enumerate(evaluations, 1):
        _check_evaluation(row, number, config)
    steps = [row["steps"] for row in evaluations]
    if steps != sorted(set(steps)):
        raise BadInput("eval.jsonl: steps do not grow from row to row.")
    stiffness = [row for row in _rows(run.metrics.path, notes) if "stiffness" in row]
    for number, row in enumerate(stiffness, 1):
        for name in (*STIFFNESS, "steps"):
            _number(row.get(name), f"metrics.jsonl, measurement {number}: {name}")
    versions = plain.get("versions")
    versions = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    return Record(path, config, versions, evaluations, stiffness, _analyses(run, notes)), notes


def _rows(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        rows = read_rows(path)
        lines = len(path.read_bytes().splitlines()) if path.exists() else 0
    except (OSError, RecursionError) as error:
        raise BadInput(f"{path.name} cannot be read ({error}).") from None
    if lines > len(rows):
        notes.append(f"{path.name} is torn: {lines - len(rows)} of {lines} lines were passed over")
    return rows


def _check_evaluation(row: dict[str, Any], number: int, config: Config) -> None:
    where = f"eval.jsonl, row {number}"
    steps = row.get("steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadInput(f"{where}: steps is {_short(steps)}, not a number of steps.")
    if "train_return" not in row:
        raise BadInput(f"{where}: train_return is missing.")
    for split in SPLITS:
        if f"{split}_return" not in row:
            continue  # an environment of one's own without unseen levels
        mean = _number(row[f"{split}_return"], f"{where}: {split}_return")
        for name in VALUES:
            _number(row.get(f"{split}_{name}"), f"{where}: {split}_{name}")
        returns, levels = row.get(f"{split}_returns"), row.get(f"{split}_levels")
        if not isinstance(returns, list) or not isinstance(levels, list) or len(returns) != len(levels) or not returns:
            raise BadInput(f"{where}: {split}_returns and {split}_levels are not lists of equal length.")
        values = [_number(r, f"{where}: {split}_returns") for r in returns]
        if not all(isinstance(level, int) for level in levels):
            raise BadInput(f"{where}: {split}_levels are not level seeds.")
        if not math.isclose(mean, sum(values) / len(values), rel_tol=1e-6, abs_tol=1e-6):
            raise BadInput(
                f"{where}: {split}_return is {mean:g}, but its episodes' mean is {sum(values) / len(values):g}."
            )


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(f"{where} is {_short(value)}, not a number.")
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _analyses(run: RunDirectory, notes: list[str]) -> dict[str, dict[str, Any]]:
    """What `dcpg analyse` kept, where it has the form that the report reads."""
    found: dict[str, dict[str, Any]] = {}
    for name, check in (("ood-actions", _check_ood_actions), ("levels", _check_levels)):
        path = run.path / "analysis" / f"{name}.json"
        if not path.exists():
            continue
        try:
            plain = json.loads(path.read_bytes())
            check(plain)
            found[name] = plain
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, BadInput) as error:
            notes.append(f"analysis/{name}.json was passed over ({error})")
    return found


def _check_ood_actions(plain: Any) -> None:
    for name in ("mean", "std", "raw_mean", "raw_std", "transitions", "steps"):
        _number(plain[name], name)


def _check_levels(plain: Any) -> None:
    _number(plain["steps"], "steps")
    for split in SPLITS:
        levels, returns = plain[split]["levels"], plain[split]["returns"]
        if len(levels) != len(returns) or not all(isinstance(level, int) for level in levels):
            raise BadInput(f"{split} has not one return a level")
        for value in returns:
            _number(value, f"{split} returns")

"""Runs as reports and analyses read them: strictly, with a note about everything that was left out."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dcpg.config.presets import PRESETS
from dcpg.config.schema import OWN, Config
from dcpg.config.written import Written, parse_written
from dcpg.envs.procgen import ALL_LEVELS
from dcpg.errors import BadInput, unknown
from dcpg.runs.comparable import Setting, setting_of, variant_of
from dcpg.storage.files import read_json, read_regular
from dcpg.storage.rows import (
    MOST_COUNT,
    MOST_ROWS,
    SPLITS,
    VALUES,
    Evaluation,
    Metrics,
    Summary,
    Timing,
    count_lines,
    each_row,
    hash_of_first,
    parse,
)
from dcpg.storage.rundir import RunDirectory
from dcpg.text import counted, is_name, printable
from dcpg.training.owner import is_of

PUBLISHED = "published.json"  # tells published rows from a run, and keeps what was noted about it
FILES = (  # that a record is made from
    "config.json", "eval.jsonl", "metrics.jsonl", "summary.json", "analysis/levels.json", "analysis/ood-actions.json",
    PUBLISHED,
)  # fmt: skip
NEWEST = 3  # evaluations that keep their single episodes
# What a run with its settings can have. Files of other releases must be read too, so that bounds are generous.
GENEROUS = 4  # times the episodes and levels of the settings
MOST_EVALUATIONS = 200_000  # of any run
MOST_LEVELS = 100_000  # analysed, of a run that is trained on all levels
ROW_BYTES, EPISODE_BYTES = 4_000, 100  # of an evaluation without its episodes; of an episode of both splits
LONGEST_METRICS = 100_000  # bytes of a row without its episodes
MOST_ANALYSIS, LEVEL_BYTES = 1_000_000, 200  # bytes without levels; of a level of both splits
LARGEST_RETURN = 1e70  # or a value or a measurement: the squares of variances are finite
MOST_NOTES = 20  # of published rows
LONGEST_LABEL = 2000  # characters of a method and its variant

STIFFNESS = {  # field of a Measurement -> column of metrics.jsonl
    "stiffness": "stiffness", "sign_free": "stiffness_sign_free", "sign_agreement": "stiffness_sign_agreement",
}  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """The value stiffness that a run measured on one rollout."""

    steps: int
    stiffness: float
    sign_free: float
    sign_agreement: float


@dataclass(frozen=True)
class Record:
    """One run: its configuration, its evaluations, and what was measured on it."""

    path: Path
    written: Written
    evaluations: list[Evaluation]
    stiffness: list[Measurement]
    analyses: dict[str, dict[str, Any]] = field(default_factory=dict)  # `dcpg analyse` of the newest weights, by name
    game: str = ""  # with the id behind its name if runs on another environment have the same name
    usual_precision: str = ""  # that of most runs, if both are compared: the other one makes a variant

    def __post_init__(self) -> None:
        object.__setattr__(self, "game", self.game or self.config.game)

    @property
    def config(self) -> Config:
        return self.written.config

    @cached_property
    def setting(self) -> Setting:
        return setting_of(self.config, self.written.preset_values)

    @cached_property
    def label(self) -> str:
        """The method and its variant; a run that started from trained weights is not a run of the method itself."""
        variant = variant_of(self.config, self.written.preset_values, self.written.method_values, self.usual_precision)
        return f"{variant} [init]" if self.written.init else variant

    def check_label(self) -> None:
        """Refuse a run whose name no table could show."""
        if len(self.label) > LONGEST_LABEL:
            raise BadInput(f"config.json: the variant {printable(self.label)!r} has {len(self.label):,} characters.")

    @property
    def steps(self) -> int:
        """The steps at the newest evaluation."""
        return self.evaluations[-1].steps if self.evaluations else 0

    @property
    def finished(self) -> bool:
        """Whether the evaluation after the last rollout is there."""
        return self.steps >= self.setting.steps

    @property
    def name(self) -> str:
        return f"{self.label} on {self.game.removeprefix(OWN)}, seed {self.config.seed}"


def read_run(path: Path, every_row: bool = False) -> tuple[Record, list[str]]:
    """A run, and notes about what was passed over; a run with numbers that cannot be trusted is refused.

    `every_row` looks for changes in rows that no report needs, too.
    """
    run, notes = RunDirectory(path), list[str]()
    written = parse_written(run.read_config(), "config.json", code=False)
    config = written.config
    if not is_name(config.game):
        raise BadInput(f"config.json: game is {printable(config.game)!r}, which is no name.")
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    setting_of(config, written.preset_values)  # refuses values that could not be compared
    if (own := written.environment) is not None and (len(own.sha256) > 1 or own.later):
        notes.append("its environment was changed while it trained")
    summary = _summary(run, written, notes)  # first: a run that ends meanwhile has more evaluations than it says
    evaluations = _evaluations(run, config, notes)
    whole = config.rollouts * config.rollout_size  # of what is asked for now: a run may have been made longer
    if summary is not None and summary.status == "finished" and _last(evaluations) < summary.steps == whole:
        notes.append(f"eval.jsonl has lost rows: the run has finished, with {counted(summary.steps, 'step')}")
    if summary is not None and summary.status != "finished" and _last(evaluations) >= whole:
        summary = _summary(run, written, notes)  # it may have ended meanwhile
        if summary is not None and summary.status != "finished":
            notes.append("its evaluations go to the end, but summary.json says that it has not finished")
    stiffness, rows = _measurements(run, config, evaluations, notes)
    counted_rows = count_lines(run.metrics.path) if every_row else rows or None  # a report reads no others
    notes += map(changed_rows, _altered(run, summary, evaluations, counted_rows) if summary is not None else [])
    found = Record(path, written, evaluations, stiffness, _analyses(run, written, evaluations, notes))
    notes += [note for note in _noted_before(path) if note not in notes]
    found.check_label()
    return found, notes


def _last(evaluations: list[Evaluation]) -> int:
    return evaluations[-1].steps if evaluations else 0


def _noted_before(path: Path) -> list[str]:
    """What was noted about a run when its rows were published."""
    try:
        found = read_json(path / PUBLISHED, MOST_ANALYSIS).get("notes", [])
        return [printable(note) for note in found[:MOST_NOTES]] if isinstance(found, list) else []
    except (OSError, ValueError, TypeError, AttributeError):  # there are none
        return []


def _summary(run: RunDirectory, written: Written, notes: list[str]) -> Summary | None:
    """What a run has come to. Files of two runs in one folder, as of two people's that were merged, are refused."""
    try:
        found = Summary.parse(read_json(run.summary, MOST_ANALYSIS))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        notes.append(f"summary.json was passed over ({printable(error)})")
        return None
    if not is_of(written, found.plain()):
        about = printable(f"{found.method} on {found.game}, seed {found.seed}")
        raise BadInput(
            f"summary.json is of another run ({about}), or config.json was changed; a resume writes it anew."
        )
    return found


def changed_rows(name: str) -> str:
    """The note about a file."""
    return f"{name}: rows were changed after the run had written them"


def _altered(run: RunDirectory, summary: Summary, evaluations: list[Evaluation], metrics: int | None) -> list[str]:
    """The files that a resume found changed, and those that are not as they were when the summary was written.

    A run that goes on has more rows than its summary says, or has dropped the last evaluation of its shorter form.
    `metrics` is None where their rows were not read.
    """
    found = [printable(name) for name in summary.altered] if summary.altered is not UNSET else []
    counts = {} if summary.rows is UNSET else summary.rows
    hashes = {} if summary.rows_sha256 is UNSET else summary.rows_sha256
    measured = sum(one.steps <= summary.steps for one in evaluations)
    ended = summary.status == "finished" and _last(evaluations) == summary.steps
    known = measured if ended else counts.get("eval", 0)  # the evaluation whose returns the summary has
    if 0 < known <= measured:
        ends = {"train": summary.train_return, "test": summary.test_return}
        if any(ends[name] not in (None, split.mean) for name, split in evaluations[known - 1].splits.items()):
            raise BadInput(
                "eval.jsonl and summary.json have different returns of one evaluation: they are of two runs."
            )
    there = {"metrics": metrics, "eval": measured}
    for name, rows in run.rows.items():
        count, kept = counts.get(name, 0), there[name]
        if kept is None or count == 0:
            continue
        if (ended and kept < count) or (count <= kept and hash_of_first(rows.path, count) != hashes.get(name)):
            found.append(rows.path.name)
    return list(dict.fromkeys(found))


def _rows(path: Path, notes: list[str], most: int, longest: int = MOST_ROWS) -> Iterator[dict[str, Any]]:
    """The rows of a file one after the other: `most` of at most `longest` bytes, or the run is refused."""
    try:
        data = read_regular(path, min(most * longest, MOST_ROWS))
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"{path.name} cannot be read ({error.strerror or error}).") from None
    lines = 0
    for lines, line in enumerate(io.BytesIO(data), 1):
        if len(line) > longest:  # before it takes many times its size
            raise BadInput(
                f"{path.name}, row {lines} has {len(line):,} bytes: more than a run with these settings writes."
            )
    rows = 0
    for rows, row in enumerate(each_row(data), 1):
        if rows > most:
            raise BadInput(
                f"{path.name} has more than {counted(most, 'row')}, which no run with these settings writes."
            )
        yield row
    if lines > rows:
        notes.append(f"{path.name} is torn: {lines - rows} of {counted(lines, 'line')} were passed over")


def _evaluations(run: RunDirectory, config: Config, notes: list[str]) -> list[Evaluation]:
    """Only the newest keep their episodes: a report over thousands of runs has no memory for all."""
    found = list[Evaluation]()
    longest = ROW_BYTES + GENEROUS * EPISODE_BYTES * config.evaluation.most_episodes
    rows = _rows(run.evaluations.path, notes, min(config.rollouts, MOST_EVALUATIONS), longest)
    for number, row in enumerate(rows, 1):
        found.append(_evaluation(row, f"eval.jsonl, row {number}", config))
        if number > NEWEST:
            found[-NEWEST - 1] = _without_episodes(found[-NEWEST - 1])
    _check_steps(found, config)
    return found


def _evaluation(row: Mapping[str, Any], where: str, config: Config) -> Evaluation:
    """A row, checked against the configuration too: the splits that must be there, and the range of level seeds."""
    found, own = parse(row, Evaluation, where), config.game.startswith(OWN)
    for split in SPLITS:
        if split not in found.splits and not (own and split == "test"):  # your own may have no unseen levels
            raise BadInput(f"{where}: {split}_return is missing.")
    for split, episodes in found.splits.items():
        for column, value in (("return", episodes.mean), *((name, getattr(episodes, name)) for name in VALUES)):
            if abs(value) > LARGEST_RETURN:
                raise BadInput(f"{where}: {split}_{column} is {value:g}, which is not a return.")
        most = GENEROUS * config.evaluation.most_episodes
        if len(episodes.returns or ()) > most:
            raise BadInput(
                f"{where}: {split}_returns has {len(episodes.returns or ()):,} episodes, more than {most:,}."
            )
        if not own and not all(0 <= level < ALL_LEVELS for level in episodes.levels or ()):
            raise BadInput(f"{where}: {split}_levels are not level seeds.")
    return found


def _check_steps(evaluations: list[Evaluation], config: Config) -> None:
    steps, last = [evaluation.steps for evaluation in evaluations], config.rollouts * config.rollout_size
    if steps != sorted(set(steps)):
        raise BadInput("eval.jsonl: steps do not grow from row to row.")
    if steps and steps[-1] > last:
        raise BadInput(f"eval.jsonl: an evaluation at {steps[-1]:,} steps, but the run is one of {last:,}.")


def _without_episodes(evaluation: Evaluation) -> Evaluation:
    splits = {name: replace(split, returns=None, levels=None) for name, split in evaluation.splits.items()}
    return replace(evaluation, splits=splits)


def _measurements(
    run: RunDirectory, config: Config, evaluations: list[Evaluation], notes: list[str]
) -> tuple[list[Measurement], int]:
    """The stiffness of a run that was asked to measure it, and the rows it was read from.

    The metrics of other runs are long and have none. Those of a part of the training would be another average.
    """
    if "stiffness" not in config.analyse:
        return [], 0
    found, number, last = [], 0, None
    for number, row in enumerate(_metrics(run, config, notes), 1):
        last = row.get("steps")
        if "stiffness" in row:
            where = f"metrics.jsonl, row {number}"
            metrics = parse(row, Metrics, where)
            values = {n: _number(metrics.more.get(column), f"{where}: {column}") for n, column in STIFFNESS.items()}
            found.append(Measurement(metrics.steps, **values))
    if evaluations and not (isinstance(last, int) and last >= _last(evaluations)):
        notes.append(
            f"metrics.jsonl ends before the evaluation at {_last(evaluations):,} steps; its stiffness is left out"
        )
        return [], 0
    return found, number


def _metrics(run: RunDirectory, config: Config, notes: list[str]) -> Iterator[dict[str, Any]]:
    longest = LONGEST_METRICS + GENEROUS * EPISODE_BYTES * config.rollout_size
    return _rows(run.metrics.path, notes, min(config.rollouts, MOST_COUNT), longest)


def metrics_of(run: RunDirectory, config: Config) -> Iterator[Metrics]:
    """The rows of metrics.jsonl one after the other, no more and no longer ones than a run with its settings has."""
    for number, row in enumerate(_metrics(run, config, []), 1):
        found = parse(row, Metrics, f"metrics.jsonl, row {number}")
        if len(found.episode_returns) > GENEROUS * config.rollout_size:
            raise BadInput(f"metrics.jsonl, row {number}: {len(found.episode_returns):,} episodes in one rollout.")
        yield found


def timing_of(run: RunDirectory, config: Config) -> list[Timing]:
    """The rows of timing.jsonl, within the same bounds."""
    rows = _rows(run.timing.path, [], GENEROUS * min(config.rollouts, MOST_COUNT), ROW_BYTES)
    return [parse(row, Timing, f"timing.jsonl, row {number}") for number, row in enumerate(rows, 1)]


def _analyses(
    run: RunDirectory, written: Written, evaluations: list[Evaluation], notes: list[str]
) -> dict[str, dict[str, Any]]:
    """The results of `dcpg analyse` for this run's newest weights, if they have the form that the report reads."""
    found: dict[str, dict[str, Any]] = {}
    config, steps = written.config, _last(evaluations)
    most = _most_levels(config)
    for name, check in (("ood-actions", _check_ood_actions), ("levels", partial(_check_levels, most=most))):
        try:
            plain = read_json(run.analysis / f"{name}.json", most_bytes(config))
            if plain["analysis"] != name or not is_of(written, plain):
                raise BadInput("it is of another run")
            kept = check(plain)
            if kept["steps"] < steps:
                raise BadInput(f"it is of the weights at {kept['steps']:,} steps; run `dcpg analyse {name}` again")
            found[name] = kept | {"asked": _options(plain.get("asked", {}))}
        except FileNotFoundError:
            continue
        except (ValueError, TypeError, KeyError, AttributeError, BadInput) as error:
            notes.append(f"analysis/{name}.json was passed over ({error})")
    return found


def _options(asked: Mapping[str, Any]) -> str:
    """The options of an analysis in words."""
    return printable(", ".join(f"{name}={value}" for name, value in sorted(asked.items()))) or "options unknown"


def _most_levels(config: Config) -> int:
    return GENEROUS * min(len(config.levels.seeds) or config.levels.count or MOST_LEVELS, MOST_LEVELS)


def most_bytes(config: Config) -> int:
    """Of an analysis or a summary."""
    return MOST_ANALYSIS + _most_levels(config) * LEVEL_BYTES


def _check_ood_actions(plain: Any) -> dict[str, Any]:
    """The columns that are checked, and no others."""
    kept = {name: plain[name] for name in ("mean", "std", "raw_mean", "raw_std", "transitions", "left_out", "steps")}
    for name, value in kept.items():
        if _number(value, name) < 0:
            raise BadInput(f"{name} is {printable(repr(value), 40)}")
    if kept["transitions"] < 1:
        raise BadInput("no transition was counted")
    return kept


def _check_levels(plain: Any, most: int) -> dict[str, Any]:
    """The columns that are checked, and no others."""
    _number(plain["steps"], "steps")
    kept: dict[str, Any] = {"steps": plain["steps"]}
    for split in SPLITS:
        levels, returns = plain[split]["levels"], plain[split]["returns"]
        if len(levels) > most:
            raise BadInput(f"{split} has {len(levels):,} levels, more than {most:,}")
        if len(levels) != len(returns) or not all(type(n) is int and 0 <= n < ALL_LEVELS for n in levels):
            raise BadInput(f"{split} does not have one return per level")
        kept[split] = {"levels": list(levels), "returns": [_number(value, f"{split} returns") for value in returns]}
    return kept


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_RETURN:
        raise BadInput(f"{where} is {printable(repr(value), 40)}, not a number.")
    return float(value)

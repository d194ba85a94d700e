"""The runs of one comparison by method, game and seed: final returns and learning curves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcpg.envs.procgen import GAMES
from dcpg.methods import METHODS
from dcpg.report.likeness import PAPERS_STIFFNESS_STEPS, PICTURES, STEPS, Difference, differences
from dcpg.report.statistics import HARD_RANGES, RANGES, Scores
from dcpg.runs.comparable import Setting
from dcpg.runs.folders import Problem
from dcpg.runs.records import Record
from dcpg.storage.rows import SPLITS
from dcpg.text import counted, printable

Array = NDArray[Any]
T = TypeVar("T")
MOST_STARTS = 5  # runs that others began from, named together


@dataclass(frozen=True)
class Curve:
    """A quantity over training: mean, standard deviation and number of seeds at each evaluation."""

    steps: Array  # [points]
    mean: Array  # [points]
    std: Array  # [points], over seeds; 0 for a single one
    seeds: Array  # [points]


@dataclass(frozen=True)
class Fair:
    """Methods with a score, the games that it covers, and the games that other methods lack."""

    methods: list[str]
    games: list[str]
    lacking: dict[str, list[str]]


class Comparison:
    """Runs of one setting. Final returns are of finished runs only; curves are of all runs."""

    def __init__(
        self, records: list[Record], setting: Setting, ranges: Mapping[str, tuple[float, float]] = RANGES
    ) -> None:
        self.setting = setting
        # lowest and highest returns for min-max scores, of the mode that was played
        self.ranges = HARD_RANGES if dict(setting.rest).get("env.mode") == "hard" else ranges
        self._memo: dict[Hashable, Any] = {}
        mine = [record for record in records if record.setting == setting]
        self.records = [record for record in mine if record.evaluations]
        self.waiting = [record for record in mine if not record.evaluations]  # for their first evaluation

    @cached_property
    def unlike(self) -> list[Difference]:
        """What sets these runs apart from the paper's."""
        return differences(self.records)

    @property
    def like_paper(self) -> bool:
        """Whether the paper's numbers may stand beside these runs: all but steps, seeds and pictures is as there.

        Other pictures, a few sprites in seven games, are named in the caption.
        """
        return bool(set(self.games) & set(GAMES)) and all(one.name in (STEPS, PICTURES) for one in self.unlike)

    @property
    def is_papers(self) -> bool:
        """Whether these runs are as long as the paper's, too."""
        return self.like_paper and all(one.name == PICTURES for one in self.unlike)

    @property
    def caption(self) -> str:
        """What sets these runs apart, as a sentence; empty if nothing does, or on environments of your own alone."""
        return caption_of(self.unlike)

    def sentence(self) -> str:
        """The size of the runs; the number of training levels is known of Procgen's alone."""
        if set(self.games) & set(GAMES):
            return self.setting.sentence()
        return f"{self.setting.steps:,} steps, preset {self.setting.preset}"

    @cached_property
    def labels(self) -> list[str]:
        """Methods and variants that have a run, in the paper's order."""
        order = {method: place for place, method in enumerate(METHODS)}  # those of plugins come last
        found = {record.label: record.config.method for record in self.records}
        return sorted(found, key=lambda label: (order.get(found[label], len(order)), label))

    @cached_property
    def games(self) -> list[str]:
        """Games that have a run, in the paper's order; your own environments come last."""
        found = {record.game for record in self.records}
        return sorted(found, key=lambda g: (GAMES.index(g) if g in GAMES else len(GAMES), g))

    @cached_property
    def _by_cell(self) -> dict[tuple[str, str], list[Record]]:
        cells: dict[tuple[str, str], list[Record]] = {}
        for record in sorted(self.records, key=lambda r: r.config.seed):
            cells.setdefault((record.label, record.game), []).append(record)
        return cells

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute what several tables and figures share only once: a bootstrap takes a second."""
        if key not in self._memo:
            self._memo[key] = compute()
        found: T = self._memo[key]
        return found

    def runs(self, label: str, game: str) -> list[Record]:
        """The runs of a method on a game, ordered by seed."""
        return self._by_cell.get((label, game), [])

    def finals(self, label: str, game: str, split: str) -> Array:
        """The final returns of the finished runs, [seeds]."""
        last = [r.evaluations[-1].splits for r in self.runs(label, game) if r.finished]
        return np.array([splits[split].mean for splits in last if split in splits], float)

    def gaps(self, label: str, game: str) -> Array:
        """The final return on training levels minus that on unseen ones, of runs that have both, [seeds]."""
        last = [r.evaluations[-1].splits for r in self.runs(label, game) if r.finished]
        both = [(splits["train"].mean, splits["test"].mean) for splits in last if splits.keys() >= SPLITS.keys()]
        return np.array([train - test for train, test in both], float)

    def scores(self, label: str, split: str, games: list[str] | None = None) -> Scores:
        """Game -> final returns, for the games that have a finished run."""
        found = {game: self.finals(label, game, split) for game in (self.games if games is None else games)}
        return {game: values for game, values in found.items() if len(values)}

    def fair(self, labels: list[str], split: str, games: list[str]) -> Fair:
        """The methods that can have a score over games, and the games that it covers.

        A score covers every game of `games` on which one of the methods has finished a run. A method without a
        finished run on one of them gets no score: nobody gains by a game that is left out.
        """
        finished = {label: {g for g in games if len(self.finals(label, g, split))} for label in labels}
        covered = [g for g in games if any(g in done for done in finished.values())]
        lacking = {label: [g for g in covered if g not in done] for label, done in finished.items() if done}
        return Fair(
            [label for label, games in lacking.items() if not games],
            covered,
            {label: games for label, games in lacking.items() if games},
        )

    def curve(self, label: str, game: str, split: str, quantity: str = "mean") -> Curve | None:
        """A quantity of evaluations (a field of `Split`) over training."""

        def compute() -> Curve | None:
            points: dict[int, list[float]] = {}
            for record in self.runs(label, game):
                for evaluation in record.evaluations:
                    if split in evaluation.splits:
                        value = getattr(evaluation.splits[split], quantity)
                        points.setdefault(evaluation.steps, []).append(value)
            return curve_of(points)

        return self.once(("curve", label, game, split, quantity), compute)

    def gap_curve(self, label: str, game: str) -> Curve | None:
        """Return on training levels minus that on unseen ones, over training."""
        points: dict[int, list[float]] = {}
        for record in self.runs(label, game):
            for evaluation in record.evaluations:
                if evaluation.splits.keys() >= SPLITS.keys():
                    gap = evaluation.splits["train"].mean - evaluation.splits["test"].mean
                    points.setdefault(evaluation.steps, []).append(gap)
        return curve_of(points)


def caption_of(unlike: list[Difference]) -> str:
    """What sets runs apart from the paper's, as a sentence; empty if nothing does."""
    return f"Unlike the paper's: {', '.join(map(str, unlike))}." if unlike else ""


def curve_of(points: dict[int, list[float]]) -> Curve | None:
    """A curve from a mapping of steps to one value per seed."""
    if not points:
        return None
    steps = sorted(points)
    values = [np.array(points[s], float) for s in steps]
    return Curve(
        np.array(steps),
        np.array([v.mean() for v in values]),
        np.array([v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]),
        np.array([len(v) for v in values]),
    )


def usual_setting(records: list[Record]) -> Setting:
    """The setting that most runs have; of equals, the longer one."""
    counts = Counter(record.setting for record in records if record.evaluations)
    return max(counts, key=lambda s: (counts[s], s.steps)) if counts else records[0].setting


def compare(
    records: list[Record],
    problems: list[Problem],
    ranges: Mapping[str, tuple[float, float]] = RANGES,
    used: Iterable[Record] = (),
    in_grid: Iterable[Record] = (),
) -> Comparison:
    """The runs of the setting that most runs have.

    Other runs are noted as problems, except those that are used elsewhere, such as in the stiffness figures. Those
    that the table of grids has are noted with that.
    """
    elsewhere, tabled = {id(record) for record in used}, {id(record) for record in in_grid}
    setting = usual_setting(records)
    for other in dict.fromkeys(record.setting for record in records if record.evaluations):
        left = [r for r in records if r.setting == other and r.evaluations and id(r) not in elsewhere]
        if other != setting and left:
            count, shown = len(left), sum(id(record) in tabled for record in left)
            which = "it" if count == 1 else "them" if shown == count else f"{shown} of them"
            text = (
                f"{count} {'runs are' if count > 1 else 'run is'} not compared with the others: "
                f"{other.sentence()}{_difference(other, setting)}{f'; the table grid has {which}' if shown else ''}"
            )
            problems.append(Problem(left[0].path.parent if count > 1 else left[0].path, text))
    for record in records:
        if not record.evaluations:
            problems.append(Problem(record.path, "no evaluation yet"))
    return Comparison(records, setting, ranges)


def note_other_plugins(records: Iterable[Record], problems: list[Problem]) -> None:
    """Note runs whose method or encoder was another version of the plugin than that of most runs."""
    seen: dict[tuple[str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for one in record.written.plugins:
            seen[one["kind"], one["name"]][one["sha256"]].append(record)
    for (kind, name), versions in seen.items():
        usual = max(versions, key=lambda sha256: len(versions[sha256]))
        for sha256, found in versions.items():
            if sha256 != usual:
                text = (
                    f"{len(found)} of the runs, this one first, had another version of the {kind} {name} than the "
                    "rest: its file was changed in between. Compared all the same"
                )
                problems.append(Problem(found[0].path, text))


def note_other_starts(records: Iterable[Record], problems: list[Problem]) -> None:
    """Note runs of one method and game that began with the weights of different runs.

    They stay one method: each seed may have its own pretrained run.
    """
    seen: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.written.init:
            seen[record.label, record.game].setdefault(record.written.init, record)
    for (label, game), starts in seen.items():
        if len(starts) > 1:
            shown = ", ".join(printable(init) for init in list(starts)[:MOST_STARTS])
            more = f" and {len(starts) - MOST_STARTS} more" if len(starts) > MOST_STARTS else ""
            text = (
                f"the runs of {label} on {game}, this one first, began with the weights of different runs: "
                f"{shown}{more}. Compared all the same"
            )
            problems.append(Problem(next(iter(starts.values())).path, text))


def note_other_pictures(records: Iterable[Record], problems: list[Problem]) -> None:
    """Note runs of a game whose frames were drawn otherwise than those of most of its runs."""
    seen: dict[tuple[str, str], dict[tuple[str, ...], list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.written.libraries:
            pictures = tuple(one["pictures"] for one in record.written.libraries)
            seen[record.config.game, record.config.env.mode][pictures].append(record)
    for (game, _), groups in seen.items():
        usual = max(groups, key=lambda pictures: len(groups[pictures]))
        for pictures, found in groups.items():
            if pictures != usual:
                first, more = found[0], len(found) - 1
                others = f" and {more} more of {game}" if more else ""
                text = (
                    f"this run{others} saw other pictures of the game than the rest: Procgen was "
                    f"{first.written.libraries[-1]['library']}. Compared all the same: builds differ in few sprites"
                )
                problems.append(Problem(first.path, text))


def _difference(one: Setting, other: Setting) -> str:
    """The differing settings that `Setting.sentence` does not show."""
    usual = dict((*other.levels, *other.rest))
    shown = ("levels.count",) if one.level_count == other.level_count else ("levels.count", "levels.seeds")
    found = [
        f"{name}={_short(value)}"
        for name, value in (*one.levels, *one.rest)
        if usual.get(name) != value and name not in shown
    ]
    return f" ({', '.join(found)})" if found else ""


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


Key = tuple[int, tuple[Any, ...]]  # what must be equal besides the number of levels: steps, sizes, the first level


def seeds_between(counts: set[int]) -> str:
    """How many seeds the cells of a table or figure have; 0 are those without a run."""
    some = counts - {0}
    if not some:
        return "no runs"
    low, high = min(some), max(some)
    return counted(low, "seed") if low == high else f"{low} to {high} seeds"


def _one_set_per_count(records: list[Record]) -> list[Record]:
    """Of each number of training levels, the runs on the levels that most of them have."""
    sets: dict[int, Counter[Any]] = defaultdict(Counter)
    for record in records:
        sets[record.setting.level_count][record.setting.levels] += 1
    usual = {count: found.most_common(1)[0][0] for count, found in sets.items()}
    return [record for record in records if record.setting.levels == usual[record.setting.level_count]]


class StiffnessRuns:
    """Finished runs with stiffness measurements, all of one setting but for the number of training levels.

    The setting is the one that covers the most numbers of levels (of equals, the longer one).
    """

    def __init__(self, records: list[Record], problems: list[Problem] | None = None) -> None:
        groups: dict[Key, list[Record]] = defaultdict(list)
        for record in records:
            if record.stiffness and record.finished and record.setting.level_count:  # "all levels" are no number
                c = record.config.levels
                groups[record.setting.steps, (record.setting.rest, c.start, bool(c.seeds))].append(record)
        self.steps, self.records = 0, list[Record]()
        if groups:
            best = max(groups, key=lambda k: (len({r.setting.level_count for r in groups[k]}), k[0]))
            self.steps, self.records = best[0], _one_set_per_count(groups[best])
        used = {id(record) for record in self.records}
        left = [record for record in records if record.stiffness and record.finished and id(record) not in used]
        if left and problems is not None:
            text = (
                f"{len(left)} measured runs, this one first, are not in Figures 2 and 7: of another length or size, or "
                "on other levels, or on all of them"
            )
            problems.append(Problem(left[0].path, text))

    @cached_property
    def shown(self) -> list[Record]:
        """The runs of methods and games with several numbers of levels; with one there is nothing to compare."""
        counts: dict[tuple[str, str], set[int]] = defaultdict(set)
        for record in self.records:
            counts[record.label, record.game].add(record.setting.level_count)
        return [record for record in self.records if len(counts[record.label, record.game]) > 1]

    def curve(self, label: str, game: str, quantity: str = "stiffness") -> Curve | None:
        """Number of levels -> the mean of a field of a run's measurements, over seeds."""
        points: dict[int, list[float]] = {}
        for record in self.records:
            if (record.label, record.game) == (label, game):
                mean = float(np.mean([getattr(measured, quantity) for measured in record.stiffness]))
                points.setdefault(record.setting.level_count, []).append(mean)
        return curve_of(points)

    @cached_property
    def caption(self) -> str:
        """What sets these runs apart from the paper's, as a sentence; the number of levels is what is measured."""
        unlike = differences(self.records, PAPERS_STIFFNESS_STEPS)
        return caption_of([one for one in unlike if one.name not in ("levels.count", "levels.seeds")])

    def sentence(self) -> str:
        runs = Counter((r.label, r.game, r.setting.level_count) for r in self.shown or self.records)
        return f"{seeds_between(set(runs.values()))}, {self.steps:,} steps"

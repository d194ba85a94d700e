"""The table of a grid: what each value of the settings that runs were varied in gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from dcpg.config.command import written as as_text
from dcpg.envs.procgen import GAMES
from dcpg.methods import METHODS
from dcpg.report.comparison import Comparison, caption_of
from dcpg.report.likeness import differences
from dcpg.report.paper import game_title, method_title
from dcpg.report.scores import SCORE, Score, denominators, named, scored
from dcpg.report.statistics import RANGES, SMALLEST, contrast, interval, mean, min_max, ppo_normalised_score
from dcpg.report.tables import seeds_of
from dcpg.runs.comparable import PAPERS_PRECISION, PRECISION, Setting, chosen_values
from dcpg.runs.records import Record
from dcpg.storage.rows import SPLITS
from dcpg.text import csv_text, markdown, tex

GRID = "grid"
MIN_MAX = "Mean of min-max scores"
INTERVALS = (
    "Mean, 95% interval and number of seeds; the interval of a score is a stratified bootstrap over seeds, that of the "
    "return on a game is Student's t. With a single seed, on one game of a score too, there is none. An asterisk marks "
    "the default of the method and preset."
)


@dataclass(frozen=True)
class Cell:
    """A number from the runs; a single seed has no interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: str = ""

    def text(self, digits: int) -> str:
        """The number, its interval and the seeds."""
        if self.value is None:
            return "-"
        ends = "" if self.low is None else f"{self.low:.{digits}f} to {self.high:.{digits}f}; "
        return f"{self.value:.{digits}f} ({ends}{self.seeds} seed{'' if self.seeds == '1' else 's'})"


@dataclass(frozen=True)
class Row:
    """Runs of one method that have the same values of all settings."""

    comparison: Comparison  # every run of their setting
    label: str
    method: str
    values: dict[str, tuple[Any, Any]]  # setting -> its value, and that of the method and the preset
    records: list[Record]  # finished

    @property
    def title(self) -> str:
        return method_title(self.method)

    def value(self, name: str) -> str:
        """The value of a setting; empty if the method has no such setting."""
        return as_text(self.values[name][0]) or "none" if name in self.values else ""

    def usual(self, name: str) -> str:
        """What the method and the preset have."""
        return as_text(self.values[name][1]) or "none" if name in self.values else ""

    def shown(self, name: str) -> str:
        mark = "*" if self.value(name) == self.usual(name) else ""
        return f"{self.value(name)}{mark}" if name in self.values else "-"


@dataclass(frozen=True)
class Block:
    """A score over games, or the return on one game: a cell for each row and each kind of levels."""

    title: str
    digits: int
    cells: list[dict[str, Cell]]


class Grid:
    """Methods with finished runs of several values of a setting; a row for each combination of values.

    Settings that do not belong to a method, such as the number of training levels, may differ too: the runs are those
    that can be reached from the compared ones by changing one such setting at a time. Runs of another size, which
    differ in several settings at once, are no part of it.
    """

    def __init__(
        self, records: list[Record], setting: Setting, ranges: Mapping[str, tuple[float, float]] = RANGES
    ) -> None:
        done = [record for record in records if record.finished and not record.written.init]
        near = _reachable(list(dict.fromkeys(record.setting for record in done)), setting)
        groups: dict[tuple[str, Setting, str], list[Record]] = {}
        for record in done:
            if record.setting in near:
                groups.setdefault((record.config.method, record.setting, record.label), []).append(record)
        several = {method for method, count in Counter(method for method, _, _ in groups).items() if count > 1}
        chosen = {key: runs for key, runs in groups.items() if key[0] in several}
        comparisons = {of: Comparison(records, of, ranges) for _, of, _ in chosen}
        rows = [
            Row(comparisons[of], label, method, _values(runs), runs) for (method, of, label), runs in chosen.items()
        ]
        self.setting, self.names = setting, _varied(rows)
        going = [r for r in records if r.evaluations and not r.finished and r.config.method in several]
        self.unfinished = sum(r.setting in near for r in going)
        order = {method: place for place, method in enumerate(METHODS)}
        self.rows = sorted(
            rows, key=lambda r: (order.get(r.method, len(order)), r.method, [_place(r, name) for name in self.names])
        )

    @property
    def records(self) -> list[Record]:
        """The runs of all rows."""
        return [record for row in self.rows for record in row.records]

    @cached_property
    def blocks(self) -> list[Block]:
        """A score over games, if there is one, and the returns on every game."""
        found = [
            Block(game_title(g), 2, [{split: _return(row, g, split) for split in SPLITS} for row in self.rows])
            for g in self._games("train")  # which every environment has
        ]
        score = self._score[0]
        return [score, *found] if score else found

    @cached_property
    def notes(self) -> list[str]:
        """What the numbers are, and what sets the runs apart from the paper's."""
        settings = {row.comparison.setting: row.comparison for row in self.rows}
        one = settings.get(self.setting) or self.rows[0].comparison
        rest = "" if len(settings) == 1 else "What no column names is as in most runs: "
        unlike = [each for each in differences(self.records) if each.name not in self.names]
        found = [f"{rest}{one.sentence()}.", *self._score[1]]
        if unlike:
            found.append(caption_of(unlike))
        if self.unfinished:
            found.append(f"{self.unfinished} unfinished {'runs are' if self.unfinished > 1 else 'run is'} not counted.")
        return found

    def _games(self, split: str) -> list[str]:
        """Every game on which one of the rows has finished, in the paper's order."""
        found = {r.game for r in self.records if split in r.evaluations[-1].splits}
        return sorted(found, key=lambda g: (GAMES.index(g) if g in GAMES else len(GAMES), g))

    @cached_property
    def _score(self) -> tuple[Block | None, list[str]]:
        """The PPO-normalised score if all rows can have one, else the mean of min-max scores; and notes about it.

        It covers every game on which one of the rows has finished; a row that lacks one has no score.
        """
        games = {split: self._games(split) for split in SPLITS}
        reason = self._no_division(games)
        if not reason:
            kind, title, digits = _normalised, SCORE, 1
            sources = {d.source for row in self.rows if (d := denominators(row.comparison, "train"))}
            notes = [f"{SCORE} over {named(games['train'])}, divided by {' and '.join(sorted(sources))}."]
        else:
            kind, title, digits = _min_max, MIN_MAX, 3
            games = {
                s: [g for g in of if all(g in row.comparison.ranges for row in self.rows)] for s, of in games.items()
            }
            notes = [f"No {SCORE}: {reason}."]
            if any(row.comparison.ranges != self.rows[0].comparison.ranges for row in self.rows):
                return None, [*notes, "No min-max scores: the ranges of returns differ between the rows."]
            if not games["train"]:
                return None, notes
            notes.append(f"{MIN_MAX} over {named(games['train'])}.")
        cells, lacking = [], []
        for row in self.rows:
            absent = [g for g in games["train"] if not len(row.comparison.finals(row.label, g, "train"))]
            cells.append({s: Cell() if absent or not of else kind(row, s, of) for s, of in games.items()})
            if absent:
                lacking.append(f"{row.title} with {self.values_of(row)} ({named(absent)})")
        if lacking:
            notes.append(f"Without a score, because a finished run is missing: {', '.join(lacking)}.")
        return Block(title, digits, cells), notes

    def _no_division(self, games: Mapping[str, list[str]]) -> str:
        """Why the returns of a row cannot be divided by PPO's; empty if those of all rows can."""
        if len({row.comparison.setting for row in self.rows}) > 1:
            return "PPO's returns differ between the settings of the rows, so equal scores would be unequal returns"
        for row in self.rows:
            for split, of in games.items():
                found = denominators(row.comparison, split)
                without = [g for g in of if found is None or g not in found.ppo]
                if without:
                    return f"PPO has no finished run on {named(without)} in the setting of a row to divide by"
                low = [g for g in of if found is not None and float(np.mean(found.ppo[g])) < SMALLEST]
                if low:
                    return f"PPO's mean return on {named(low)} is not positive"
        return ""

    def values_of(self, row: Row) -> str:
        """The values of a row in a sentence."""
        return ", ".join(f"{short(name)}={row.value(name)}" for name in self.names if name in row.values)


def _reachable(settings: list[Setting], start: Setting) -> set[Setting]:
    """The settings that differ from one another in a single value, step by step from `start`."""

    def plain(s: Setting) -> dict[str, Any]:
        return {"steps": s.steps, **dict(s.levels), **dict(s.rest)}

    found, left = [(start, plain(start))], [(s, plain(s)) for s in settings if s != start]
    for _, mine in found:  # which grows meanwhile
        differences = [sum(mine.get(n) != other.get(n) for n in {*mine, *other}) for _, other in left]
        found += [one for one, count in zip(left, differences, strict=True) if count == 1]
        left = [one for one, count in zip(left, differences, strict=True) if count != 1]
    return {s for s, _ in found}


def _values(runs: list[Record]) -> dict[str, tuple[Any, Any]]:
    """The values of runs that have one name; their precisions may differ all the same."""
    precisions = sorted({record.config.machine.precision for record in runs})
    return chosen_values(runs[0].written) | {PRECISION: (" and ".join(precisions), PAPERS_PRECISION)}


def _varied(rows: list[Row]) -> list[str]:
    """The settings in which two rows of one method differ, in the order of the configuration."""
    found = dict.fromkeys(name for row in rows for name in row.values)
    values = {(row.method, name, row.value(name)) for row in rows for name in row.values}
    counts = Counter((method, name) for method, name, _ in values)
    return [name for name in found if any(counts[row.method, name] > 1 for row in rows)]


def _place(row: Row, name: str) -> tuple[bool, float, str]:
    """The order of rows: numbers by size, before other values."""
    value = row.values[name][0] if name in row.values else None
    return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, row.value(name))


def _return(row: Row, game: str, split: str) -> Cell:
    finals = row.comparison.finals(row.label, game, split)
    return _cell(scored(contrast([(1.0, finals)]), {game: finals}), str(len(finals))) if len(finals) else Cell()


def _normalised(row: Row, split: str, games: list[str]) -> Cell:
    ppo = denominators(row.comparison, split)
    own = row.comparison.scores(row.label, split, games)
    compute = partial(ppo_normalised_score, own, ppo.ppo if ppo else {})
    found = row.comparison.once(("normalised", row.label, split, *games), compute)
    return _cell(scored(found, own), seeds_of(row.comparison, row.label, games, split))


def _min_max(row: Row, split: str, games: list[str]) -> Cell:
    scores = min_max(row.comparison.scores(row.label, split, games), row.comparison.ranges)
    return _cell(scored(interval(mean, scores), scores), seeds_of(row.comparison, row.label, games, split))


def _cell(found: Score, seeds: str) -> Cell:
    return Cell(found.value, found.low, found.high, seeds)


def short(name: str) -> str:
    """A setting's name in the table."""
    return name.removeprefix("algorithm.")


# -- as files


@dataclass(frozen=True)
class GridTable:
    """A grid as a table of text."""

    grid: Grid
    name: str = GRID
    title = "Returns by the values of settings"

    @property
    def head(self) -> list[str]:
        return ["method", *map(short, self.grid.names), *SPLITS.values()]

    def rows(self, block: Block) -> list[list[str]]:
        """The rows of a block as text."""
        return [
            [row.title, *map(row.shown, self.grid.names), *(cells[split].text(block.digits) for split in SPLITS)]
            for row, cells in zip(self.grid.rows, block.cells, strict=True)
        ]

    def csv(self) -> str:
        """One row for each row of each block; one column per number."""
        names = [text for name in self.grid.names for text in (short(name), f"{short(name)} by default")]
        parts = ("mean", "low", "high", "seeds")
        columns = [f"{levels} {part}" for levels in SPLITS.values() for part in parts]
        lines: list[list[object]] = [["score or game", "method", *names, *columns]]
        for block in self.grid.blocks:
            for row, cells in zip(self.grid.rows, block.cells, strict=True):
                values = [text for name in self.grid.names for text in (row.value(name), row.usual(name))]
                line: list[object] = [block.title, row.title, *values]
                for cell in (cells[split] for split in SPLITS):
                    numbers = (cell.value, cell.low, cell.high)
                    line += [*("" if number is None else repr(number) for number in numbers), cell.seeds]
                lines.append(line)
        return csv_text(lines)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", INTERVALS, ""]
        for block in self.grid.blocks:
            head = " | ".join(map(markdown, self.head))
            lines += [f"### {markdown(block.title)}", "", f"| {head} |", "|---" * len(self.head) + "|"]
            lines += [f"| {' | '.join(map(markdown, row))} |" for row in self.rows(block)] + [""]
        return "\n".join([*lines, *(f"- {markdown(note)}" for note in self.grid.notes)]) + "\n"

    def latex(self) -> str:
        """Needs the packages booktabs and longtable."""
        columns = "l" * (1 + len(self.grid.names)) + "c" * len(SPLITS)
        text = tex(" ".join((f"{self.title}.", INTERVALS, *self.grid.notes)))
        lines = [f"\\begin{{longtable}}{{{columns}}}", f"\\caption{{{text}}}\\\\", "\\toprule"]
        lines += [f"{' & '.join(map(tex, self.head))} \\\\", "\\endhead"]
        for block in self.grid.blocks:
            lines += ["\\midrule", f"\\multicolumn{{{len(columns)}}}{{l}}{{{tex(block.title)}}} \\\\", "\\midrule"]
            lines += [f"{' & '.join(map(tex, row))} \\\\" for row in self.rows(block)]
        return "\n".join([*lines, "\\bottomrule", "\\end{longtable}"]) + "\n"

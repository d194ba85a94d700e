"""The paper's tables from your runs, with the paper's own numbers beside them, as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dcpg.envs.procgen import GAMES
from dcpg.report import paper
from dcpg.report.comparison import Comparison
from dcpg.report.paper import Printed, game_title, method_title
from dcpg.report.scores import SCORE, Normalised, normalised_scores, papers_score, wrong_actions
from dcpg.storage.rows import SPLITS
from dcpg.text import csv_text, markdown, tex

MAIN = ("ppo", "ucb-drac", "plr", "daac", "ppg", "dcpg", "ddcpg")
DYNAMICS = ("dcpg", "dcpg+f", "dcpg+i", "dcpg+fi", "ddcpg")
BOTH = tuple(SPLITS)
SUBJECTS = {
    "table1": "Mean returns on unseen levels", "table2": "Learning dynamics beside DCPG's value",
    "table3": "PPG with a regularised value", "table6": "DAAC and IDAAC", "table7": "Mean returns on training levels",
    "table8": "One network or two", "table9": "Learning dynamics, on training and unseen levels",
    "table10": "Wrong actions that the discriminator believes", "table11": "Learning dynamics beside PPG and DCPG",
}  # fmt: skip
MISPRINT = (
    "The paper's own Table 8 prints 152.7 ± 4.4 for DCPG on training levels, which is DDCPG's figure; everywhere else "
    "it prints 148.9 ± 4.3, which stands here."
)


@dataclass(frozen=True)
class Cell:
    """A number from the runs, and the paper's beside it."""

    mean: float | None = None
    std: float | None = None  # over seeds; None for a single one
    seeds: str = ""  # their number
    paper: Printed | None = None


@dataclass(frozen=True)
class Table:
    """A table by the titles of its rows and columns."""

    name: str
    corner: str
    columns: list[str]
    rows: list[str]
    cells: dict[tuple[str, str], Cell]
    notes: list[str]
    digits: int = 1

    def csv(self) -> str:
        """One column per number."""
        parts = ("mean", "std", "seeds", "paper mean", "paper std")
        lines: list[list[object]] = [[self.corner, *(f"{column} {part}" for column in self.columns for part in parts)]]
        for row in self.rows:
            line: list[object] = [row]
            for column in self.columns:
                c = self.cells[row, column]
                line += [_plain(c.mean), _plain(c.std), c.seeds]
                line += [_plain(c.paper.mean), _plain(c.paper.std)] if c.paper else ["", ""]
            lines.append(line)
        return csv_text(lines)

    def markdown(self) -> str:
        papers = " / the paper's" if any(cell.paper for cell in self.cells.values()) else ""
        lines = [f"## {self.title}", "", f"Mean ± standard deviation (seeds){papers}.", ""]
        lines.append(f"| {self.corner} | {' | '.join(map(markdown, self.columns))} |")
        lines.append("|---" * (len(self.columns) + 1) + "|")
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            texts = [f"{self.own(c)} / {self.papers(c)}" if c.paper else self.own(c) for c in cells]
            lines.append(f"| {markdown(row)} | {' | '.join(texts)} |")
        return "\n".join([*lines, "", *(f"- {markdown(note)}" for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """Needs the package booktabs; the paper's numbers are in separate lines."""
        lines = [
            "\\begin{table}[t]", "\\centering", f"\\caption{{{tex(self.subject)}. {tex(' '.join(self.notes))}}}",
            f"\\begin{{tabular}}{{l{'c' * len(self.columns)}}}", "\\toprule",
            f"{tex(self.corner)} & {' & '.join(map(tex, self.columns))} \\\\", "\\midrule",
        ]  # fmt: skip
        for row in self.rows:
            if row == SCORE and len(self.rows) > 1:
                lines.append("\\midrule")
            cells = [self.cells[row, column] for column in self.columns]
            lines.append(f"{tex(row)} & {' & '.join(tex(self.own(c)) for c in cells)} \\\\")
            if any(c.paper for c in cells):
                lines.append(f"\\quad paper & {' & '.join(tex(self.papers(c)) for c in cells)} \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"

    @property
    def title(self) -> str:
        return f"Table {self.name.removeprefix('table')}. {self.subject}"

    @property
    def subject(self) -> str:
        """The title without its number, which LaTeX prints itself."""
        return SUBJECTS[self.name]

    def own(self, cell: Cell) -> str:
        """The number from the runs."""
        if cell.mean is None:
            return "-"
        return f"{self._text(cell.mean, cell.std)} ({cell.seeds})"

    def _text(self, mean: float, std: float | None) -> str:
        return f"{mean:.{self.digits}f}" + ("" if std is None else f" ± {std:.{self.digits}f}")

    def papers(self, cell: Cell) -> str:
        """The number that the paper prints."""
        return self._text(cell.paper.mean, cell.paper.std) if cell.paper else "-"


def seeds_of(comparison: Comparison, label: str, games: list[str], split: str) -> str:
    """The number of seeds per game: one number, or a range."""
    counts = [len(comparison.finals(label, game, split)) for game in games]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"


def _returns(comparison: Comparison, *, name: str, split: str, methods: tuple[str, ...]) -> Table | None:
    """Tables 1 and 7: one row per game, and the normalised score."""
    labels = list(methods)
    games = [g for g in GAMES if any(len(comparison.finals(label, g, split)) for label in labels)]
    if not games:
        return None
    printed = paper.printed() if comparison.like_paper else {}
    cells: dict[tuple[str, str], Cell] = {}
    for label in labels:
        for game in games:
            finals = comparison.finals(label, game, split)
            cells[game_title(game), method_title(label)] = Cell(
                float(finals.mean()) if len(finals) else None,
                float(finals.std(ddof=1)) if len(finals) > 1 else None,
                str(len(finals)),
                printed.get((split, "return", game, label)),
            )
    found = normalised_scores(comparison, labels, split)
    rows = [*map(game_title, games), *([SCORE] if found.scores else [])]
    for label in labels if found.scores else []:
        cells[SCORE, method_title(label)] = _score_cell(comparison, found, label, split)
    return Table(name, "game", [*map(method_title, labels)], rows, cells, _notes(comparison, found.notes))


def _scores(comparison: Comparison, *, name: str, splits: tuple[str, ...], methods: tuple[str, ...]) -> Table | None:
    """Tables 2, 3, 6, 8, 9 and 11: normalised scores of a few methods, at least two of which must have runs."""
    if sum(bool(comparison.scores(m, "test")) for m in methods) < 2:
        return None
    labels, cells, notes, rows = list(methods), dict[tuple[str, str], Cell](), list[str](), list[str]()
    for split in splits:
        found = normalised_scores(comparison, labels, split)
        notes += found.notes
        if not found.scores:
            continue
        rows.append(SPLITS[split])
        for label in labels:
            cells[SPLITS[split], method_title(label)] = _score_cell(comparison, found, label, split)
    if not rows:
        return None
    if name == "table8" and comparison.like_paper:
        notes.append(MISPRINT)
    return Table(name, SCORE, [*map(method_title, labels)], rows, cells, _notes(comparison, notes))


def _score_cell(comparison: Comparison, found: Normalised, label: str, split: str) -> Cell:
    printed = papers_score(comparison, split, label, found.games)
    if label not in found.scores:
        return Cell(paper=printed)
    score = found.scores[label]
    return Cell(score.value, score.std, seeds_of(comparison, label, found.games, split), printed)


def _ood_actions(comparison: Comparison, *, name: str, methods: tuple[str, ...], game: str) -> Table | None:
    """Table 10: wrong actions believed; the deviation is over transitions, as the paper's seems to be."""
    cells: dict[tuple[str, str], Cell] = {}
    rows = ["wrong actions believed", "by raw action number", "deviation over seeds"]
    for label in methods:
        kept = wrong_actions(comparison, label, game)
        title, n = method_title(label), str(len(kept))
        cells |= {(row, title): Cell() for row in rows}
        printed = paper.printed().get(("train", "ood_actions", game, label)) if comparison.like_paper else None
        cells[rows[0], title] = Cell(paper=printed)
        if not kept:
            continue
        known = np.array([a["transitions"] for a in kept], float)
        every = known + np.array([a["left_out"] for a in kept], float)
        for row, prefix, of in ((rows[0], "", known), (rows[1], "raw_", every)):
            means, stds = (np.array([a[f"{prefix}{x}"] for a in kept], float) for x in ("mean", "std"))
            centre = np.average(means, weights=of)
            squares = (stds**2 * (of - 1) + (means - centre) ** 2 * of).sum()
            spread = np.sqrt(squares / max(of.sum() - 1, 1))
            cells[row, title] = Cell(float(centre), float(spread), n, printed if row == rows[0] else None)
        means = np.array([a["mean"] for a in kept], float)
        cells[rows[2], title] = Cell(float(means.std(ddof=1)) if len(means) > 1 else None, None, n)
    if all(cell.mean is None for cell in cells.values()):
        return None
    notes = [f"{game_title(game)}, training levels; the deviation beside a mean is over transitions."]
    return Table(name, "", [*map(method_title, methods)], rows, cells, _notes(comparison, notes), 2)


def _notes(comparison: Comparison, notes: list[str]) -> list[str]:
    unfinished = sum(not record.finished for record in comparison.records)
    found = [f"{comparison.sentence()}. The paper: {paper.STEPS:,} steps, {paper.SEEDS} seeds.", *notes]
    if comparison.caption:
        found.append(comparison.caption)
    if not comparison.like_paper:
        found.append("The paper's own numbers are left out: they are of another setting.")
    if unfinished:
        found.append(f"{unfinished} unfinished {'runs are' if unfinished > 1 else 'run is'} not counted.")
    return found


def _plain(value: float | None) -> str:
    return "" if value is None else repr(value)


TABLES: dict[str, Callable[[Comparison], Table | None]] = {
    "table1": partial(_returns, name="table1", split="test", methods=MAIN),
    "table2": partial(_scores, name="table2", splits=("test",), methods=DYNAMICS),
    "table3": partial(_scores, name="table3", splits=BOTH, methods=("ppg", "ppg+dr", "ppg+ar")),
    "table6": partial(_scores, name="table6", splits=BOTH, methods=("daac", "idaac")),
    "table7": partial(_returns, name="table7", split="train", methods=MAIN),
    "table8": partial(_scores, name="table8", splits=BOTH, methods=("ppg", "separate-dcpg", "dcpg")),
    "table9": partial(_scores, name="table9", splits=BOTH, methods=DYNAMICS),
    "table10": partial(_ood_actions, name="table10", methods=("dcpg+f", "dcpg+fi", "ddcpg"), game="bigfish"),
    "table11": partial(_scores, name="table11", splits=("test",), methods=("ppg", "dppg", "dcpg", "ddcpg")),
}
METHODS_OF_TABLES: dict[str, tuple[str, ...]] = {
    name: make.keywords["methods"] for name, make in TABLES.items() if isinstance(make, partial)
}

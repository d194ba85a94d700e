"""A table of text as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcpg.text import csv_text, markdown, tex


@dataclass(frozen=True)
class TextTable:
    """Rows of text under a head."""

    name: str
    title: str
    note: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    keys: Sequence[str] = ()  # names of the rows, for programs: the first column of the CSV

    def csv(self) -> str:
        if not self.keys:
            return csv_text([self.head, *self.rows])
        return csv_text([("name", *self.head), *((key, *row) for key, row in zip(self.keys, self.rows, strict=True))])

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", markdown(self.note), "", f"| {' | '.join(self.head)} |"]
        lines.append("|---" * len(self.head) + "|")
        return "\n".join([*lines, *(f"| {' | '.join(map(markdown, row))} |" for row in self.rows)]) + "\n"

    def latex(self) -> str:
        """Needs the packages booktabs and longtable."""
        column = f"p{{{0.91 / len(self.head):.2f}\\textwidth}}"
        lines = [f"\\begin{{longtable}}{{{column * len(self.head)}}}"]
        lines += [f"\\caption{{{tex(f'{self.title}. {self.note}')}}}\\\\", "\\toprule"]
        lines += [f"{' & '.join(map(tex, self.head))} \\\\", "\\midrule", "\\endhead"]
        lines += [f"{' & '.join(map(tex, row))} \\\\" for row in self.rows]
        return "\n".join([*lines, "\\bottomrule", "\\end{longtable}"]) + "\n"

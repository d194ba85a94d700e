"""Runs whose value stiffness was measured, by the number of their training levels (Figures 2 and 7)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from dcpg.report.board import Curve, curve_of
from dcpg.report.records import Problem, Record

Key = tuple[int, tuple[Any, ...]]  # what must be equal besides the number of levels: steps, sizes, where levels begin


class Stiff:
    """The finished runs of the setting that covers the most numbers of levels (of equals, the longer one)."""

    def __init__(self, records: list[Record], problems: list[Problem] | None = None) -> None:
        groups: dict[Key, list[Record]] = defaultdict(list)
        for record in records:
            if record.stiffness and record.finished:
                c = record.config.levels
                groups[record.setting.steps, (record.setting.rest, c.start, bool(c.seeds))].append(record)
        self.steps, self.records = 0, list[Record]()
        if groups:
            best = max(groups, key=lambda k: (len({r.setting.level_count for r in groups[k]}), k[0]))
            self.steps, self.records = best[0], groups[best]
        used = {id(record) for record in self.records}
        left = [record for record in records if record.stiffness and record.finished and id(record) not in used]
        if left and problems is not None:
            text = f"{len(left)} measured runs, this one first, are not in Figures 2 and 7: of another length or size"
            problems.append(Problem(left[0].path, text))

    def curve(self, label: str, game: str, column: str = "stiffness") -> Curve | None:
        """Number of levels -> the mean over a run's measurements, over seeds."""
        points: dict[int, list[float]] = {}
        for record in self.records:
            if (record.label, record.config.game) == (label, game):
                mean = float(np.mean([row[column] for row in record.stiffness]))
                points.setdefault(record.setting.level_count, []).append(mean)
        return curve_of(points)

    def sentence(self) -> str:
        """For a title."""
        seeds = len({r.config.seed for r in self.records})
        return f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {self.steps:,} steps"

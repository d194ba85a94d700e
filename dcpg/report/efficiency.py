"""Sample efficiency: an aggregate score over training."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.report.board import Board
from dcpg.report.paper import GAMES
from dcpg.statistics import Band, curve, iqm, min_max


def sample_efficiency(board: Board) -> dict[str, tuple[NDArray[Any], Band]]:
    """Method -> steps and IQM of min-max normalised returns on unseen levels, where every finished run has a point."""
    labels = [label for label in board.labels if board.scores(label, "test")]
    games = [g for g in board.finished_games(labels) if g in GAMES]
    found = {}
    for label in labels if games else []:
        runs = {game: [r for r in board.runs(label, game) if r.finished] for game in games}
        rows = {
            game: [{row["steps"]: row["test_return"] for row in r.evaluations} for r in runs[game]] for game in games
        }
        steps = sorted(set.intersection(*(set(by_step) for game in games for by_step in rows[game])))
        scores = {game: np.array([[by_step[s] for by_step in rows[game]] for s in steps], float) for game in games}
        found[label] = (
            np.array(steps),
            board.once(("efficiency", label), partial(curve, iqm, min_max(scores, board.ranges))),
        )
    return found

"""Aggregates and intervals: on paper, as properties, and against the paper's own tables."""

from __future__ import annotations

import csv
from importlib.resources import files

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpg import statistics

GAMES = {"maze": np.array([5.0, 7.0, 9.0]), "heist": np.array([3.5, 10.0]), "ninja": np.array([4.0])}


def paper(levels: str, method: str) -> dict[str, np.ndarray]:
    """The printed mean return of each game, as one seed."""
    rows = csv.DictReader(files("dcpg").joinpath("data/paper_results.csv").read_text().splitlines())
    return {
        row["game"]: np.array([float(row["mean"])])
        for row in rows
        if (row["levels"], row["quantity"], row["method"]) == (levels, "return", method)
    }


def test_on_paper() -> None:
    assert statistics.mean(GAMES) == pytest.approx((7 + 6.75 + 4) / 3)
    assert statistics.median(GAMES) == pytest.approx(6.75)
    assert statistics.iqm(GAMES) == pytest.approx((4 + 5 + 7 + 9) / 4)  # of 3.5, 4, 5, 7, 9, 10 without one at each end
    assert statistics.optimality_gap(GAMES, 5.0) == pytest.approx(5 - (5 + 5 + 5 + 3.5 + 5 + 4) / 6)
    assert statistics.min_max(GAMES)["heist"].tolist() == [0.0, 1.0]
    assert statistics.ppo_normalised(GAMES, {"maze": np.array([3.0, 4.0]), **GAMES})["maze"].mean() == pytest.approx(
        100
    )
    assert (
        statistics.probability_of_improvement({"maze": np.array([1.0, 2.0])}, {"maze": np.array([1.0, 0.0])}) == 0.875
    )
    assert statistics.profile(GAMES, [3.5, 5.0]).tolist() == [5 / 6, 3 / 6]


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=5), st.floats(-3, 3))
def test_properties(values: list[list[float]], shift: float) -> None:
    scores = {str(k): np.array(v) for k, v in enumerate(values)}
    moved = {game: s + shift for game, s in scores.items()}
    for name in ("mean", "median", "iqm"):
        metric = statistics.METRICS[name]
        assert metric(moved) == pytest.approx(metric(scores) + shift)
    assert statistics.optimality_gap(scores, 6.0) == pytest.approx(6 - np.concatenate(list(scores.values())).mean())
    x, y = scores, moved
    assert statistics.probability_of_improvement(x, y) + statistics.probability_of_improvement(y, x) == pytest.approx(1)
    found = statistics.interval(statistics.iqm, scores, 200, 1)
    assert found == statistics.interval(statistics.iqm, scores, 200, 1)
    everything = np.concatenate(list(scores.values()))
    assert everything.min() - 1e-9 <= found.low <= found.high <= everything.max() + 1e-9


# min-max mean and median of the printed table, three digits
@pytest.mark.parametrize(
    ("method", "mean", "median"),
    [
        ("ppo", 0.345, 0.359), ("ucb-drac", 0.370, 0.367), ("plr", 0.435, 0.480), ("daac", 0.424, 0.478),
        ("ppg", 0.499, 0.543), ("dcpg", 0.525, 0.595), ("ddcpg", 0.573, 0.631),
    ],
)  # fmt: skip
def test_the_papers_table_normalised(method: str, mean: float, median: float) -> None:
    scores = statistics.min_max(paper("test", method))
    assert len(scores) == 16
    assert statistics.mean(scores) == pytest.approx(mean, abs=6e-4)
    assert statistics.median(scores) == pytest.approx(median, abs=6e-4)

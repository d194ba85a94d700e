"""Aggregates and intervals: on paper, as properties, against rliable, and against the paper's own tables."""

from __future__ import annotations

import csv
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpg.errors import BadInput
from dcpg.report import paper, statistics
from dcpg.report.paper import paper_results
from tests import oracles

GAMES = {"maze": np.array([5.0, 7.0, 9.0]), "heist": np.array([3.5, 10.0]), "ninja": np.array([4.0])}
METHODS = ("ppo", "ucb-drac", "plr", "daac", "ppg", "dcpg", "ddcpg")  # whose returns the paper prints


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


@settings(deadline=None)
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
    scores = statistics.min_max(paper_results("test", method))
    assert len(scores) == 16
    assert statistics.mean(scores) == pytest.approx(mean, abs=6e-4)
    assert statistics.median(scores) == pytest.approx(median, abs=6e-4)


# -- rliable, on the same resamplings: its figures are in a file that tests/oracles.py writes


SEED = 5


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    return oracles.load()


def exactly(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


def same_interval(found: statistics.Interval | statistics.Band, expected: np.ndarray) -> None:
    assert np.stack([found.value, found.low, found.high]) == exactly(expected)


def drawing(*sides: dict[str, np.ndarray]) -> AbstractContextManager[Any]:
    """Have intervals resample with these indices: the first side's for `SEED`, the second's for the seed after it."""

    def indices_of(scores: statistics.Scores, resamples: int, seed: int) -> dict[str, np.ndarray]:
        indices = {SEED + k: side for k, side in enumerate(sides)}[seed]
        assert {game: i.shape for game, i in indices.items()} == {
            game: (resamples, s.shape[-1]) for game, s in scores.items()
        }
        return indices

    return mock.patch.object(statistics, "resampled_indices", indices_of)


@pytest.mark.parametrize("case", oracles.FINALS)
@pytest.mark.parametrize("name", oracles.METRICS)
def test_metrics_are_rliables(stored: dict[str, np.ndarray], name: str, case: str) -> None:
    data, k = oracles.case_of(stored, f"finals/{case}"), oracles.METRICS.index(name)
    scores, indices = oracles.by_game(data["scores"]), oracles.by_game(data["indices"])
    metric = statistics.METRICS[name]
    resamples = oracles.FINALS[case].resamples
    assert metric(statistics.resampled(scores, indices)) == exactly(data["resampled"][:, k])
    with drawing(indices):
        same_interval(statistics.interval(metric, scores, resamples, SEED), data["metrics"][:, k])


@pytest.mark.parametrize("case", oracles.IMPROVEMENTS)
def test_probability_of_improvement_is_rliables(stored: dict[str, np.ndarray], case: str) -> None:
    data = oracles.case_of(stored, f"improvements/{case}")
    x, y = oracles.by_game(data["scores"]), oracles.by_game(data["rival_scores"])
    indices = oracles.by_game(data["indices"]), oracles.by_game(data["rival_indices"])
    found = statistics.probability_of_improvement(*map(statistics.resampled, (x, y), indices))
    assert found == exactly(data["resampled"])
    with drawing(*indices):
        found = statistics.improvement_interval(x, y, oracles.IMPROVEMENTS[case].resamples, SEED)
    same_interval(found, data["probability"])


@pytest.mark.parametrize("case", oracles.FINALS)
def test_profiles_are_rliables(stored: dict[str, np.ndarray], case: str) -> None:
    data, resamples = oracles.case_of(stored, f"finals/{case}"), oracles.FINALS[case].resamples
    scores, indices = oracles.by_game(data["scores"]), oracles.by_game(data["indices"])
    with drawing(indices):
        found = statistics.profile_band(scores, stored["thresholds"], resamples, SEED)
    same_interval(found, data["profile"])


@pytest.mark.parametrize("case", oracles.CURVES)
@pytest.mark.parametrize("name", oracles.METRICS)
def test_sample_efficiency_is_rliables(stored: dict[str, np.ndarray], name: str, case: str) -> None:
    data, k = oracles.case_of(stored, f"curves/{case}"), oracles.METRICS.index(name)
    scores, indices = oracles.by_game(data["scores"]), oracles.by_game(data["indices"])
    metric = statistics.METRICS[name]
    assert metric(statistics.resampled(scores, indices)) == exactly(data["resampled"][:, k])
    with drawing(indices):
        found = statistics.curve(metric, scores, oracles.CURVES[case].resamples, SEED)
    same_interval(found, data["metrics"][:, k])


def test_a_changed_figure_is_found(stored: dict[str, np.ndarray]) -> None:
    """By `python -m tests.oracles --check`."""
    assert oracles.differences(stored, stored) == []
    changed = stored | {"curves/2x3/metrics": stored["curves/2x3/metrics"] + 1e-9}
    del changed["networks/ppo/frames"]
    assert oracles.differences(changed, stored) == [
        "networks/ppo/frames is in one of them only",
        "curves/2x3/metrics differs by up to 1.0e-09",
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=5), st.integers(1, 40), st.integers(0, 2**32))
def test_indices_are_drawn_from_the_seed(runs: list[int], resamples: int, seed: int) -> None:
    scores = {str(k): np.zeros(n) for k, n in enumerate(runs)}
    indices = statistics.resampled_indices(scores, resamples, seed)
    for game, s in scores.items():
        assert indices[game].shape == (resamples, s.size)
        assert indices[game].min() >= 0
        assert indices[game].max() < s.size
        assert indices[game].tolist() == statistics.resampled_indices(scores, resamples, seed)[game].tolist()


def test_games_are_resampled_separately_and_evenly() -> None:
    first, second = statistics.resampled_indices({"maze": np.zeros(4), "heist": np.zeros(4)}, 10_000, 1).values()
    for indices in (first, second):
        assert np.bincount(indices.ravel()) / 40_000 == pytest.approx([0.25] * 4, abs=0.01)
    assert np.mean(first == second) == pytest.approx(0.25, abs=0.01)


# -- what rliable does not do: unequal seeds, pieces, bounded memory


def test_a_curve_is_the_intervals_of_its_points() -> None:
    scores = {"maze": np.arange(12.0).reshape(4, 3) ** 2, "heist": np.arange(8.0).reshape(4, 2)}
    found = statistics.curve(statistics.iqm, scores, 500, 7)
    for point in range(4):
        alone = statistics.interval(statistics.iqm, {game: s[point] for game, s in scores.items()}, 500, 7)
        assert alone == statistics.Interval(found.value[point], found.low[point], found.high[point])


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything() -> list[np.ndarray]:
        bands = [
            statistics.profile_band(GAMES, [4.0, 5.0, 9.0], 101),
            statistics.curve(statistics.iqm, {game: np.stack([s, s**2]) for game, s in GAMES.items()}, 101),
            statistics.improvement_interval(GAMES, {"maze": np.array([5.0, 8.0])}, 101),
            statistics.interval(statistics.median, GAMES, 101),
        ]
        return [np.array([band.value, band.low, band.high]) for band in bands]

    whole = everything()
    monkeypatch.setattr(statistics, "CELLS", 50)
    for a, b in zip(whole, everything(), strict=True):
        assert a.tolist() == b.tolist()


def test_memory_is_bounded() -> None:
    rng = np.random.default_rng(0)
    scores = {f"game {k}": rng.normal(size=10) for k in range(16)}
    curves = {f"game {k}": rng.normal(size=(50, 10)) for k in range(16)}
    for call in (
        lambda: statistics.interval(statistics.iqm, scores),
        lambda: statistics.profile_band(scores, np.linspace(0, 1, 101), 5_000),  # 81 million comparisons
        lambda: statistics.curve(statistics.mean, curves),  # 16 million values
    ):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200e6


# -- the paper's score


def test_the_papers_score_on_paper() -> None:
    ppo = {"maze": np.array([4.0, 6.0, 5.0]), "heist": np.array([2.0])}
    scores = {"maze": np.array([5.0, 10.0]), "heist": np.array([1.0, 4.0])}
    found = statistics.ppo_normalised_score(scores, ppo, 1_000)
    seeds = [100 * (5 / 5 + 1 / 2) / 2, 100 * (10 / 5 + 4 / 2) / 2]  # 75 and 200
    assert found.value == pytest.approx(np.mean(seeds))
    assert found.std == pytest.approx(np.std(seeds, ddof=1))
    assert (found.low, found.high) == pytest.approx((75, 200))  # all of the lower ones, all of the higher ones
    percent = statistics.ppo_normalised(scores, ppo)
    alone = statistics.interval(statistics.mean, percent, 1_000)
    assert (alone.low, alone.high) == (found.low, found.high)
    assert statistics.ppo_normalised_score({**scores, "maze": np.array([5.0])}, ppo, 10).std is None
    assert statistics.ppo_normalised_score({"maze": np.array([5.0])}, ppo, 10).std is None
    assert statistics.ppo_normalised_score(ppo, ppo, 10).value == pytest.approx(100)


def results() -> Iterator[dict[str, str]]:
    yield from csv.DictReader(files("dcpg.report").joinpath("data/paper_results.csv").read_text().splitlines())


def printed(levels: str, method: str) -> float:
    return paper.printed()[levels, "ppo_normalised_score", "all", method].mean


def test_the_papers_results_name_everything_once() -> None:
    rows = [(row["levels"], row["quantity"], row["game"], row["method"]) for row in results()]
    assert len(rows) == len(set(rows)) == 2 * 16 * 7 + 29 + 3
    assert {method for _, quantity, _, method in rows if quantity == "return"} == set(METHODS)
    assert {game for _, quantity, game, _ in rows if quantity == "return"} == set(statistics.RANGES)


@pytest.mark.parametrize("levels", ["train", "test"])
@pytest.mark.parametrize("method", METHODS)
def test_the_papers_scores_go_with_its_returns(levels: str, method: str) -> None:
    returns, ppo = paper_results(levels, method), paper_results(levels, "ppo")
    if method == "ppo":
        assert printed(levels, method) == 100 == statistics.ppo_normalised_score(returns, ppo, 1).value
        return
    low, high = statistics.rounding_bounds(returns, ppo)
    assert low <= printed(levels, method) <= high
    assert low < statistics.ppo_normalised_score(returns, ppo, 1).value < high


def test_table_8_prints_the_score_of_another_method() -> None:
    returns, ppo = paper_results("train", "dcpg"), paper_results("train", "ppo")
    low, high = statistics.rounding_bounds(returns, ppo)
    assert low <= 148.9 <= high < 152.7
    assert (printed("train", "dcpg"), printed("train", "ddcpg")) == (148.9, 152.7)


@given(st.lists(st.tuples(st.floats(-3, 40), st.floats(0.2, 40)), min_size=1, max_size=5), st.data())
def test_rounding_stays_within_its_bounds(pairs: list[tuple[float, float]], data: st.DataObject) -> None:
    method = {str(k): np.array([x]) for k, (x, _) in enumerate(pairs)}
    ppo = {str(k): np.array([y]) for k, (_, y) in enumerate(pairs)}
    off = st.floats(-0.05, 0.05)
    true = [{game: s + data.draw(off) for game, s in side.items()} for side in (method, ppo)]
    low, high = statistics.rounding_bounds(method, ppo)
    score = statistics.ppo_normalised_score(*true, 1).value + data.draw(off)
    assert low - 1e-9 * abs(low) <= score <= high + 1e-9 * abs(high)


# -- what the page says


def test_the_page_has_the_figures_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs/statistics.md").read_text()
    for method in METHODS[1:]:
        cells = [method]
        for levels in ("test", "train"):
            returns, ppo = paper_results(levels, method), paper_results(levels, "ppo")
            low, high = statistics.rounding_bounds(returns, ppo)
            value = statistics.ppo_normalised_score(returns, ppo, 1).value
            cells += [str(printed(levels, method)), f"{value:.1f}", f"{low:.1f} to {high:.1f}"]
        row = f"| {' | '.join(cells)} |"
        assert row in page, row

    ppo = paper_results("test", "ppo")
    share = {m: statistics.ppo_normalised(paper_results("test", m), ppo) for m in METHODS}
    for method in ("ppg", "dcpg", "ddcpg"):
        values = {game: float(s[0]) for game, s in share[method].items()}
        ahead = {game: (s - float(share["ppg"][game][0])) / 16 for game, s in values.items()}
        rest = {game: s for game, s in share[method].items() if game not in ("bigfish", "dodgeball")}
        returns, ppg = paper_results("test", method), paper_results("test", "ppg")
        signs = [int(np.sign(returns[game][0] - ppg[game][0])) for game in returns]
        cells = [
            f"{statistics.mean(share[method]):.1f}",
            *(
                [f"{x:+.1f}" for x in (sum(ahead.values()), ahead["bigfish"], ahead["dodgeball"])]
                if any(signs)
                else "---"
            ),
            f"{statistics.mean(rest):.1f}",
            f"{statistics.median(share[method]):.1f}",
            f"{np.exp(np.mean(np.log(list(values.values())))):.1f}",
            f"{signs.count(1)}, {signs.count(0)}, {signs.count(-1)}" if any(signs) else "-",
        ]
        row = f"| {method} | {' | '.join(cells)} |"
        assert row in page, row
        if any(signs):
            both = f"{ahead['bigfish'] + ahead['dodgeball']:.1f} of {method.upper()}'s {sum(ahead.values()):.1f}"
            assert both in page.replace(" points", "").replace("\n", " "), both
    otherwise = {**ppo, "bigfish": ppo["bigfish"] + 1.0}
    moved = statistics.ppo_normalised_score(paper_results("test", "ddcpg"), otherwise, 1).value
    assert f"DDCPG's score would be {moved:.1f}" in page

    for method in METHODS:
        returns = paper_results("test", method)
        cells = [
            f"{metric(statistics.min_max(returns, ranges)):.3f}"
            for ranges in (statistics.RANGES, statistics.PROCGEN_RANGES)
            for metric in (statistics.mean, statistics.median)
        ]
        row = f"| {method} | {' | '.join(cells)} |"
        assert row in page, row


def test_the_page_names_functions_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs/statistics.md").read_text()
    names = set(re.findall(r"`([a-z_]+)\(", page)) | set(re.findall(r"`([A-Z_]{4,})`", page))
    assert len(names) > 10
    assert [name for name in names if not (hasattr(statistics, name) or hasattr(paper, name))] == []


# -- what is refused

ONE = {"maze": np.array([1.0, 2.0])}


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({"maze": np.ones((3, 2)), "heist": np.ones((4, 2))}, "different numbers of points"),
        ({}, "not one game"),
        ({"maze": np.array([])}, "no seed of 'maze'"),
        ({"maze": np.array(1.0)}, "no seed of 'maze'"),
        ({"maze": np.array([1.0, np.nan])}, "'maze' are not all finite"),
        ({"maze": np.array([np.inf])}, "'maze' are not all finite"),
        ({"maze": np.array(["1.0"])}, "'maze' are not numbers"),
        ({"maze": np.array([None])}, "'maze' are not numbers"),
        ({"maze": [[1.0], [2.0, 3.0]]}, "differ in length"),
    ],
)
def test_bad_scores_are_refused(scores: dict[str, np.ndarray], said: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: statistics.min_max(scores),
        lambda: statistics.ppo_normalised(scores, ONE),
        lambda: statistics.ppo_normalised(ONE, scores),
        lambda: statistics.ppo_normalised_score(scores, ONE, 10),
        lambda: statistics.rounding_bounds(scores, ONE),
        lambda: statistics.interval(statistics.iqm, scores, 10),
        lambda: statistics.curve(statistics.iqm, scores, 10),
        lambda: statistics.profile_band(scores, [0.5], 10),
        lambda: statistics.improvement_interval(scores, ONE, 10),
        lambda: statistics.improvement_interval(ONE, scores, 10),
        lambda: statistics.probability_of_improvement(ONE, scores),
        lambda: statistics.profile(scores, [0.5]),
        *(lambda metric=metric: metric(scores) for metric in statistics.METRICS.values()),
    ]
    for call in calls:
        with pytest.raises(BadInput, match=said):
            call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: statistics.min_max({"mase": np.array([1.0])}), "Unknown game 'mase'; did you mean 'maze'"),
        (lambda: statistics.ppo_normalised(ONE, {"heist": np.array([1.0])}), "no returns of PPO on 'maze'"),
        (lambda: statistics.ppo_normalised(ONE, {"maze": np.array([-1.0, 1.0])}), "PPO's mean return on 'maze' is 0"),
        (lambda: statistics.ppo_normalised_score(ONE, {"maze": np.array([-2.0])}), "on 'maze' is -2"),
        (lambda: statistics.rounding_bounds(ONE, {"maze": np.array([0.04])}), "on 'maze' is -0.01"),
        (lambda: statistics.ppo_normalised(ONE, {"maze": np.ones((3, 2))}), "One score per seed"),
        (lambda: statistics.interval(statistics.mean, {"maze": np.ones((3, 2))}), "One score per seed"),
        (lambda: statistics.interval(statistics.mean, ONE, 0), "at least one resampling, not 0"),
        (lambda: statistics.improvement_interval(ONE, {"heist": np.array([1.0])}), "no game in common"),
        (lambda: statistics.profile(ONE, [np.nan]), "thresholds are not all finite"),
        (lambda: statistics.profile_band(ONE, ["low"]), "thresholds are not numbers"),
        (lambda: paper_results("unseen", "ppo"), "no 'return' on 'unseen' levels"),
        (lambda: paper_results("test", "dccpg"), "Unknown method 'dccpg'; did you mean 'd"),
        (lambda: paper_results("test", "idaac"), "Unknown method 'idaac'"),
    ],
)
def test_what_means_nothing_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        call()

"""The paper's figures from your runs, drawn with matplotlib."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dcpg.envs.procgen import GAMES
from dcpg.report import paper
from dcpg.report.comparison import Comparison, Curve, StiffnessRuns
from dcpg.report.paper import game_title, method_title
from dcpg.report.scores import aggregates, improvement, papers_aggregate, profiles, sample_efficiency
from dcpg.report.statistics import Interval
from dcpg.storage.rows import SPLITS

Names = tuple[str, ...]

FOUR = ("bigfish", "chaser", "climber", "starpilot")  # Figure 2
FOUR_OTHERS = ("bigfish", "chaser", "climber", "dodgeball")  # Figures 4 and 6
SIX = ("bigfish", "chaser", "climber", "dodgeball", "miner", "starpilot")  # Figure 5
FIVE_METHODS = ("ppo", "daac", "ppg", "dcpg", "ddcpg")
DELAY = ("ppg", "separate-dcpg", "dcpg")
REGULARISED = ("ppg", "ppg+dr", "ppg+ar")
AGGREGATED = ("ppo", "ppg", "dcpg", "ddcpg")
VARIANTS = ("#005f73", "#9b2226", "#6a4c93", "#bb3e03", "#386641", "#7f4f24", "#3a0ca3", "#b5179e")
COLOURS = {
    "ppo": "#7f7f7f", "ucb-drac": "#a5a61f", "plr": "#e377c2", "daac": "#9467bd", "idaac": "#b08bd0", "ppg": "#2ca02c",
    "ppg+dr": "#17a2b0", "ppg+ar": "#6fbf5f", "dppg": "#8c564b", "dcpg": "#1f77b4", "separate-dcpg": "#6ea8d8",
    "dcpg+f": "#e0a030", "dcpg+i": "#d874a8", "dcpg+fi": "#ff7f0e", "ddcpg": "#d62728",
}  # fmt: skip


def colour(label: str) -> str:
    """The colour of a method, the same in every figure; variants have other colours."""
    return COLOURS.get(label) or VARIANTS[zlib.crc32(label.encode()) % len(VARIANTS)]


def _curves(comparison: Comparison, *, title: str, games: Names, methods: Names, split: str) -> Any | None:
    """Returns over training, one panel per game; bands are the standard deviation over seeds."""
    shown = [g for g in games if any(comparison.curve(m, g, split) for m in methods)]
    if not shown:
        return None
    figure, panels = _panels(len(shown), f"{title}: return on {SPLITS[split]}, {_seeds(comparison, methods)}")
    for axes, game in zip(panels, shown, strict=False):
        for label in methods:
            _band(axes, comparison.curve(label, game, split), colour(label), method_title(label))
            printed = paper.printed().get((split, "return", game, label))
            if printed and comparison.setting.is_paper_size:
                axes.plot([paper.STEPS], [printed.mean], "*", color=colour(label), markersize=8, label="the paper")
        axes.set_title(game_title(game), fontsize=9)
    _legend(figure, panels)
    return figure


def _both(comparison: Comparison, *, title: str, game: str, methods: Names, with_values: Names) -> Any | None:
    """Figure 3: returns on training and on unseen levels, and the values of regularised critics, on one game."""
    drawn = [m for m in methods if comparison.curve(m, game, "train")]
    valued = [m for m in with_values if comparison.curve(m, game, "train", "true_value")]
    if not drawn:
        return None
    figure, panels = _panels(2 + len(valued), f"{title}: {game_title(game)}, {_seeds(comparison, methods)}")
    for axes, (split, name) in zip(panels, SPLITS.items(), strict=False):
        for label in drawn:
            _band(axes, comparison.curve(label, game, split), colour(label), method_title(label))
        axes.set_title(f"(a) return on {name}", fontsize=9)
    for axes, label in zip(panels[2:], valued, strict=False):
        _true_and_predicted(axes, comparison, label, game)
        axes.set_title(f"(b) {method_title(label)}", fontsize=9)
    _legend(figure, panels)
    return figure


def _values(comparison: Comparison, *, title: str, games: Names, method: str) -> Any | None:
    """True and predicted values of the initial states of training levels."""
    shown = [g for g in games if comparison.curve(method, g, "train", "true_value")]
    if not shown:
        return None
    heading = f"{title}: true and predicted values of {method_title(method)}, {_seeds(comparison, (method,))}"
    figure, panels = _panels(len(shown), heading)
    for axes, game in zip(panels, shown, strict=False):
        _true_and_predicted(axes, comparison, method, game)
        axes.set_title(game_title(game), fontsize=9)
    _legend(figure, panels)
    return figure


def _true_and_predicted(axes: Any, comparison: Comparison, label: str, game: str) -> None:
    true = comparison.curve(label, game, "train", "true_value")
    own = comparison.curve(label, game, "train", "true_value_own_gamma")
    _band(axes, true, colour(label), "true", "-")
    _band(axes, comparison.curve(label, game, "train", "predicted_value"), colour(label), "predicted", "--")
    if true is not None and own is not None and not np.array_equal(true.mean, own.mean):
        _band(axes, own, colour(label), "true, the method's own discount", ":")


def _stiffness(measured: StiffnessRuns, *, title: str, games: Names) -> Any | None:
    """Mean stiffness over training against the number of training levels."""
    shown = [g for g in games if any(measured.curve(m, g) for m in ("ppg", "dcpg"))]
    if not shown:
        return None
    figure, panels = _panels(len(shown), f"{title}: value stiffness, {measured.sentence()}")
    for axes, game in zip(panels, shown, strict=False):
        for label in ("ppg", "dcpg"):
            _band(axes, measured.curve(label, game), colour(label), method_title(label))
        axes.set_xscale("log")
        axes.set_xlabel("training levels", fontsize=8)
        axes.set_title(game_title(game), fontsize=9)
    _legend(figure, panels)
    return figure


def _aggregates(comparison: Comparison, *, title: str, methods: Names) -> Any | None:
    """Figure 15: median, IQM and mean of min-max normalised returns on unseen levels, with 95% intervals."""
    found, games, _ = aggregates(comparison, list(methods))
    if not found:
        return None
    import matplotlib.pyplot as plt

    metrics = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality_gap": "Optimality gap"}
    figure, row = plt.subplots(1, 4, figsize=(13, 1.4 + 0.45 * len(found)), sharey=True, constrained_layout=True)
    for axes, (metric, name) in zip(row, metrics.items(), strict=True):
        for place, (label, values) in enumerate(found.items()):
            _bar(axes, place, values[metric], colour(label))
            printed = papers_aggregate(comparison, label, metric, games)
            if printed is not None and comparison.setting.is_paper_size:
                axes.plot([printed], [place], "*", color="black", markersize=7)
        axes.set_title(name, fontsize=10)
        axes.set_yticks(range(len(found)), [method_title(label) for label in found])
    row[0].invert_yaxis()
    figure.suptitle(
        f"{title}: min-max normalised return on unseen levels, {_finals(comparison, list(found), games)}", fontsize=10
    )
    return figure


def _improvement(comparison: Comparison, *, title: str, methods: Names, over: str) -> Any | None:
    """Figure 16: the chance that a run of one method beats a run of another."""
    found = {label: chance for label in methods if (chance := improvement(comparison, label, over))}
    if not found:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 1.6 + 0.5 * len(found)), constrained_layout=True)
    for place, (label, chance) in enumerate(found.items()):
        _bar(axes, place, chance, colour(label))
    axes.set_yticks(range(len(found)), [method_title(label) for label in found])
    axes.invert_yaxis()
    axes.axvline(0.5, color="0.5", linestyle="--", linewidth=0.8)
    axes.set(xlabel=f"P(better than {method_title(over)}) on unseen levels", xlim=(0, 1))
    figure.suptitle(f"{title}: probability of improvement, {_finals(comparison, [*found, over])}", fontsize=10)
    return figure


def _profiles(comparison: Comparison) -> Any | None:
    """Performance profiles of all methods: not in the paper, but recommended by rliable."""
    taus, found = profiles(comparison, comparison.labels)
    if not found:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for label, band in found.items():
        axes.plot(taus, band.value, color=colour(label), label=method_title(label))
        axes.fill_between(taus, band.low, band.high, color=colour(label), alpha=0.15, linewidth=0)
    axes.set(xlabel="min-max normalised return on unseen levels", ylabel="share of runs above it", ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"Performance profiles, {_finals(comparison, list(found))}", fontsize=10)
    return figure


def _efficiency(comparison: Comparison) -> Any | None:
    """IQM of min-max normalised returns over training: not in the paper, but recommended by rliable."""
    found = sample_efficiency(comparison, comparison.labels)
    if not found:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for label, (steps, band) in found.items():
        axes.plot(steps, band.value, color=colour(label), label=method_title(label))
        axes.fill_between(steps, band.low, band.high, color=colour(label), alpha=0.15, linewidth=0)
    axes.set(ylabel="IQM of min-max normalised returns, unseen levels")
    _step_axis(axes)
    axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"Sample efficiency, {_finals(comparison, list(found))}", fontsize=10)
    return figure


def _seeds(comparison: Comparison, methods: Names) -> str:
    """How many seeds the curves are of, unfinished runs included."""
    runs = [comparison.runs(m, g) for m in methods for g in comparison.games]
    unfinished = sum(not r.finished for cell in runs for r in cell)
    rest = f", {unfinished} unfinished" if unfinished else ""
    return f"{_count({len(cell) for cell in runs})}, {comparison.setting.steps:,} steps{rest}"


def _finals(comparison: Comparison, labels: list[str], games: list[str] | None = None) -> str:
    """How many seeds the scores are of: finished runs only."""
    counts = {
        len(comparison.finals(m, g, "test")) for m in labels for g in (comparison.games if games is None else games)
    }
    return f"{_count(counts)}, {comparison.setting.steps:,} steps"


def _count(counts: set[int]) -> str:
    some = counts - {0}
    if not some:
        return "no runs"
    low, high = min(some), max(some)
    return f"{low} {'seed' if low == 1 else 'seeds'}" if low == high else f"{low} to {high} seeds"


def _panels(count: int, title: str) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    columns = min(4, count)
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(max(3.2 * columns, 6.5), 2.5 * rows + 0.9), squeeze=False, constrained_layout=True
    )
    for axes in list(grid.flat)[count:]:
        axes.remove()
    for axes in list(grid.flat)[:count]:
        axes.tick_params(labelsize=7)
        axes.locator_params(nbins=5)
        _step_axis(axes)
    figure.suptitle(title, fontsize=10)
    return figure, list(grid.flat)[:count]


def _step_axis(axes: Any) -> None:
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("steps", fontsize=8)


def _band(axes: Any, curve: Curve | None, colour: str, label: str, style: str = "-") -> None:
    if curve is None:
        return
    marker = "o" if len(curve.steps) < 12 else ""
    axes.plot(curve.steps, curve.mean, style, color=colour, label=label, linewidth=1.2, marker=marker, markersize=2.5)
    axes.fill_between(
        curve.steps, curve.mean - curve.std, curve.mean + curve.std, color=colour, alpha=0.18, linewidth=0
    )


def _bar(axes: Any, place: int, found: Interval, colour: str) -> None:
    axes.barh(place, found.high - found.low, left=found.low, height=0.55, color=colour, alpha=0.6)
    axes.plot([found.value, found.value], [place - 0.28, place + 0.28], color="black", linewidth=1.2)
    axes.tick_params(labelsize=8)
    axes.use_sticky_edges = False
    axes.margins(x=0.08)


def _legend(figure: Any, panels: list[Any]) -> None:
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)


FIGURES: dict[str, Callable[[Comparison], Any | None]] = {
    "figure3": partial(_both, title="Figure 3", game="bigfish", methods=REGULARISED, with_values=("ppg+dr", "ppg+ar")),
    "figure4": partial(_values, title="Figure 4", games=FOUR_OTHERS, method="dcpg"),
    "figure5": partial(_curves, title="Figure 5", games=SIX, methods=FIVE_METHODS, split="test"),
    "figure6": partial(_curves, title="Figure 6", games=FOUR_OTHERS, methods=DELAY, split="test"),
    "figure8": partial(_values, title="Figure 8", games=GAMES, method="dcpg"),
    "figure9": partial(_values, title="Figure 9", games=GAMES, method="ppg+dr"),
    "figure10": partial(_values, title="Figure 10", games=GAMES, method="ppg+ar"),
    "figure11": partial(_curves, title="Figure 11", games=GAMES, methods=FIVE_METHODS, split="train"),
    "figure12": partial(_curves, title="Figure 12", games=GAMES, methods=FIVE_METHODS, split="test"),
    "figure13": partial(_curves, title="Figure 13", games=GAMES, methods=DELAY, split="train"),
    "figure14": partial(_curves, title="Figure 14", games=GAMES, methods=DELAY, split="test"),
    "figure15": partial(_aggregates, title="Figure 15", methods=AGGREGATED),
    "figure16": partial(_improvement, title="Figure 16", methods=("dcpg", "ddcpg"), over="ppg"),
    "profiles": _profiles,
    "sample-efficiency": _efficiency,
}
STIFFNESS_FIGURES: dict[str, Callable[[StiffnessRuns], Any | None]] = {
    "figure2": partial(_stiffness, title="Figure 2", games=FOUR),
    "figure7": partial(_stiffness, title="Figure 7", games=GAMES),
}

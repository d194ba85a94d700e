"""The paper's figures from your runs, drawn with matplotlib."""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from dcpg.envs.procgen import GAMES
from dcpg.report import paper
from dcpg.report.comparison import Comparison, Curve, StiffnessRuns, seeds_between
from dcpg.report.scores import (
    Score,
    ScoreBand,
    aggregates,
    improvement,
    min_max_fair,
    papers_aggregate,
    profiles,
    sample_efficiency,
)
from dcpg.storage.rows import SPLITS
from dcpg.text import drawn

Names = tuple[str, ...]

FOUR = ("bigfish", "chaser", "climber", "starpilot")  # Figure 2
FOUR_OTHERS = ("bigfish", "chaser", "climber", "dodgeball")  # Figures 4 and 6
SIX = ("bigfish", "chaser", "climber", "dodgeball", "miner", "starpilot")  # Figure 5
FIVE_METHODS = ("ppo", "daac", "ppg", "dcpg", "ddcpg")
DELAY = ("ppg", "separate-dcpg", "dcpg")
REGULARISED = ("ppg", "ppg+dr", "ppg+ar")
AGGREGATED = ("ppo", "ppg", "dcpg", "ddcpg")
TRUE, PREDICTED = "#1f78b4", "#e31a1c"  # values, as in the paper
LEVEL_TICKS = (1, 2, 10, 50, 200)  # numbers of training levels, as in the paper's Figures 2 and 7
PAPERS = "the paper"  # the label of its stars
HIGHEST = 33  # of the returns in the paper's Figure 3
LONGEST_CAPTION = 4000  # characters
VARIANTS = ("#005f73", "#9b2226", "#6a4c93", "#bb3e03", "#386641", "#7f4f24", "#3a0ca3", "#b5179e")
COLOURS = {
    "ppo": "#7f7f7f", "ucb-drac": "#a5a61f", "plr": "#e377c2", "daac": "#9467bd", "idaac": "#b08bd0", "ppg": "#2ca02c",
    "ppg+dr": "#17a2b0", "ppg+ar": "#6fbf5f", "dppg": "#8c564b", "dcpg": "#1f77b4", "separate-dcpg": "#6ea8d8",
    "dcpg+f": "#e0a030", "dcpg+i": "#d874a8", "dcpg+fi": "#ff7f0e", "ddcpg": "#d62728",
}  # fmt: skip


STYLE = {
    "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 8, "legend.frameon": False, "figure.titlesize": 8,
}  # fmt: skip


@contextmanager
def style() -> Iterator[None]:
    """The sizes of all text in the figures that are drawn meanwhile."""
    import matplotlib

    with matplotlib.rc_context(dict[Any, Any](STYLE)):
        yield


def method_title(label: str) -> str:
    """A method's title for a figure."""
    return drawn(paper.method_title(label))


def game_title(game: str) -> str:
    """A game's title for a figure."""
    return drawn(paper.game_title(game))


def colour(label: str) -> str:
    """The colour of a method, the same in every figure; variants have other colours."""
    return COLOURS.get(label) or VARIANTS[zlib.crc32(label.encode(errors="surrogatepass")) % len(VARIANTS)]


def _curves(comparison: Comparison, *, title: str, games: Names, methods: Names, split: str) -> Any | None:
    """Returns over training, one panel per game; bands are the standard deviation over seeds."""
    shown, _ = _content(comparison, games, methods, split)
    if not shown:
        return None
    figure, panels = _panels(len(shown), "return")
    _headed(figure, f"{title}: return on {SPLITS[split]}, {_seeds(comparison, methods)}", comparison)
    for axes, game in zip(panels, shown, strict=False):
        for label in methods:
            _band(axes, comparison.curve(label, game, split), colour(label), method_title(label))
            printed = paper.printed().get((split, "return", game, label))
            if printed and comparison.is_papers:
                axes.plot([paper.STEPS], [printed.mean], "*", color=colour(label), markersize=8, label=PAPERS)
        axes.set_title(game_title(game))
    _legend(figure, panels)
    return figure


def _content(comparison: Comparison, games: Names, methods: Names, split: str) -> tuple[list[str], list[str]]:
    """The games and the methods that a figure of returns shows."""
    shown = [g for g in games if any(comparison.curve(m, g, split) for m in methods)]
    return shown, [m for m in methods if any(comparison.curve(m, g, split) for g in shown)]


def _both(
    comparison: Comparison, *, title: str, game: str, methods: Names, with_values: Names, bands: bool = False
) -> Any | None:
    """Figure 3: returns on training and on unseen levels, and the values of regularised critics, on one game."""
    drawn = [m for m in methods if comparison.curve(m, game, "train")]
    valued = [m for m in with_values if comparison.curve(m, game, "train", "true_value")]
    if not drawn:
        return None
    import matplotlib.pyplot as plt

    count = 2 + len(valued)
    figure = plt.figure(figsize=(3.2 * count, 3.6), layout="constrained")
    _headed(figure, f"{title}: {game_title(game)}, {_seeds(comparison, methods)}", comparison)
    parts: Any = figure.subfigures(1, 2, width_ratios=(2, len(valued))) if valued else [figure]
    returns = list(parts[0].subplots(1, 2, sharey=True))
    for axes, (split, name) in zip(returns, SPLITS.items(), strict=True):
        for label in drawn:
            _band(axes, comparison.curve(label, game, split), colour(label), method_title(label), bands=bands)
        _axis(axes)
        axes.set_title(f"(a) {game_title(game)}, {name}")
    returns[0].set_ylabel("return")
    if comparison.is_papers and all(line.get_ydata().max() <= HIGHEST for axes in returns for line in axes.lines):
        returns[0].set_ylim(top=HIGHEST)
    _legend(parts[0], returns)
    if valued:
        values = list(np.atleast_1d(parts[1].subplots(1, len(valued))))
        for axes, label in zip(values, valued, strict=True):
            _true_and_predicted(axes, comparison, label, game, bands)
            _axis(axes)
            axes.set_title(f"(b) {method_title(label)}, {game_title(game)}")
        values[0].set_ylabel("value")
        _legend(parts[1], values)
    return figure


def _values(comparison: Comparison, *, title: str, games: Names, method: str, bands: bool = False) -> Any | None:
    """True and predicted values of the initial states of training levels."""
    shown = [g for g in games if comparison.curve(method, g, "train", "true_value")]
    if not shown:
        return None
    heading = f"{title}: true and predicted values of {method_title(method)}, {_seeds(comparison, (method,))}"
    figure, panels = _panels(len(shown), "value")
    _headed(figure, heading, comparison)
    for axes, game in zip(panels, shown, strict=False):
        _true_and_predicted(axes, comparison, method, game, bands)
        axes.set_title(game_title(game))
    _legend(figure, panels)
    return figure


def _true_and_predicted(axes: Any, comparison: Comparison, label: str, game: str, bands: bool) -> None:
    true = comparison.curve(label, game, "train", "true_value")
    own = comparison.curve(label, game, "train", "true_value_own_gamma")
    _band(axes, true, TRUE, "true", bands=bands)
    _band(axes, comparison.curve(label, game, "train", "predicted_value"), PREDICTED, "predicted", bands=bands)
    if true is not None and own is not None and not np.array_equal(true.mean, own.mean):
        _band(axes, own, TRUE, "true, the method's own discount", ":", bands)


def _stiffness(measured: StiffnessRuns, *, title: str, games: Names, fifths: bool = False) -> Any | None:
    """Mean stiffness over training against the number of training levels; `fifths`: ticks from 0, every 0.2."""
    curves = {(m, g): measured.curve(m, g) for g in games for m in ("ppg", "dcpg")}
    # with one number of levels there is nothing to compare
    shown = [g for g in games if any((curve := curves[m, g]) and len(curve.steps) > 1 for m in ("ppg", "dcpg"))]
    if not shown:
        return None
    from matplotlib.ticker import MultipleLocator, NullLocator

    figure, panels = _panels(len(shown), "stiffness")
    _headed(figure, f"{title}: value stiffness, {measured.sentence()}", measured)
    for axes, game in zip(panels, shown, strict=False):
        for label in ("ppg", "dcpg"):
            _band(axes, curves[label, game], colour(label), method_title(label))
        axes.set_xscale("log")
        axes.set_xticks(LEVEL_TICKS, list(map(str, LEVEL_TICKS)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("training levels")
        axes.set_title(game_title(game))
        if fifths:
            axes.set_ylim(bottom=min(0, *(float(curve.mean.min()) for curve in curves.values() if curve)))
            axes.yaxis.set_major_locator(MultipleLocator(0.2))
    _legend(figure, panels)
    return figure


def _aggregates(comparison: Comparison, *, title: str, methods: Names) -> Any | None:
    """Figure 15: median, IQM and mean of min-max normalised returns on unseen levels, with 95% intervals."""
    found, fair = aggregates(comparison, list(methods))
    if not found:
        return None
    import matplotlib.pyplot as plt

    metrics = {"median": "Median", "iqm": "IQM", "mean": "Mean", "optimality_gap": "Optimality gap"}
    figure, row = plt.subplots(1, 4, figsize=(13, 1.4 + 0.45 * len(found)), sharey=True, constrained_layout=True)
    for axes, (metric, name) in zip(row, metrics.items(), strict=True):
        for place, (label, values) in enumerate(found.items()):
            _bar(axes, place, values[metric], colour(label))
            printed = papers_aggregate(comparison, label, metric, fair.games)
            if printed is not None and comparison.is_papers:
                axes.plot([printed], [place], "*", color="black", markersize=7)
        axes.set_title(name)
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("min-max normalised return")
        axes.set_yticks(range(len(found)), [method_title(label) for label in found])
    row[0].invert_yaxis()
    seeds = _finals(comparison, list(found), fair.games)
    stars = "; stars: the paper, from the means of its games" if comparison.is_papers else ""
    _headed(figure, f"{title}: min-max normalised return on unseen levels, {seeds}{stars}", comparison)
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
    axes.set(xlabel=f"P(better than {method_title(over)}) on unseen levels", xlim=(-0.02, 1.02))
    _headed(figure, f"{title}: probability of improvement, {_finals(comparison, [*found, over])}", comparison)
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
        _shade(axes, taus, band, colour(label))
    axes.set(xlabel="min-max normalised return on unseen levels", ylabel="share of runs above it", ylim=(0, 1.02))
    axes.legend()
    seeds = _finals(comparison, list(found), min_max_fair(comparison, comparison.labels).games)
    _headed(figure, f"Performance profiles, {seeds}", comparison)
    return figure


def _efficiency(comparison: Comparison) -> Any | None:
    """IQM of min-max normalised returns over training: not in the paper, but recommended by rliable."""
    found = sample_efficiency(comparison, comparison.labels)
    if not found:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for label, (steps, band) in found.items():
        axes.plot(steps, band.value, color=colour(label), label=method_title(label), **_points(len(steps)))
        _shade(axes, steps, band, colour(label))
    axes.set(ylabel="IQM of min-max normalised returns, unseen levels")
    _axis(axes)
    axes.legend()
    seeds = _finals(comparison, list(found), min_max_fair(comparison, comparison.labels).games)
    _headed(figure, f"Sample efficiency, {seeds}", comparison)
    return figure


def _seeds(comparison: Comparison, methods: Names) -> str:
    """How many seeds the curves are of, unfinished runs included."""
    runs = [comparison.runs(m, g) for m in methods for g in comparison.games]
    unfinished = sum(not r.finished for cell in runs for r in cell)
    rest = f", {unfinished} unfinished" if unfinished else ""
    return f"{seeds_between({len(cell) for cell in runs})}, {comparison.setting.steps:,} steps{rest}"


def _finals(comparison: Comparison, labels: list[str], games: list[str] | None = None) -> str:
    """How many seeds the scores are of: finished runs only."""
    counts = {
        len(comparison.finals(m, g, "test")) for m in labels for g in (comparison.games if games is None else games)
    }
    return f"{seeds_between(counts)}, {comparison.setting.steps:,} steps"


def _headed(figure: Any, title: str, runs: Comparison | StiffnessRuns) -> None:
    """The title, and below it what sets the runs apart from the paper's."""
    lines = textwrap.wrap(drawn(runs.caption, LONGEST_CAPTION), int(14 * figure.get_figwidth()))
    figure.suptitle("\n".join([title, *lines]))


def _panels(count: int, ylabel: str) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    columns = min(4, count)
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(max(3.2 * columns, 6.5), 2.5 * rows + 0.9), squeeze=False, constrained_layout=True
    )
    for axes in list(grid.flat)[count:]:
        axes.remove()
    for axes in list(grid.flat)[:count]:
        _axis(axes)
    for row in grid:
        row[0].set_ylabel(ylabel)
    return figure, list(grid.flat)[:count]


def _axis(axes: Any) -> None:
    """Few ticks, so that their labels do not touch; steps along the axis."""
    from matplotlib.ticker import EngFormatter

    axes.locator_params(axis="y", nbins=5)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("steps")


def _points(count: int) -> dict[str, Any]:
    """Markers on lines of few points: a single one would not be seen without."""
    return {"marker": "o" if count < 12 else "", "markersize": 2.5}


def _band(axes: Any, curve: Curve | None, colour: str, label: str, style: str = "-", bands: bool = True) -> None:
    if curve is None:
        return
    axes.plot(curve.steps, curve.mean, style, color=colour, label=label, linewidth=1.2, **_points(len(curve.steps)))
    if bands:
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axes.fill_between(curve.steps, low, high, color=colour, alpha=0.18, linewidth=0)


def _shade(axes: Any, x: Any, band: ScoreBand, colour: str) -> None:
    if band.low is not None and band.high is not None:
        axes.fill_between(x, band.low, band.high, color=colour, alpha=0.15, linewidth=0)


def _bar(axes: Any, place: int, found: Score, colour: str) -> None:
    """A number, and its interval as a bar; a dot where it has none."""
    if found.low is not None and found.high is not None:
        axes.barh(place, found.high - found.low, left=found.low, height=0.55, color=colour, alpha=0.6)
    axes.plot([found.value, found.value], [place - 0.28, place + 0.28], color="black", linewidth=1.2)
    if found.high == found.low:
        axes.plot([found.value], [place], "o", color=colour, markersize=5)
    axes.use_sticky_edges = False
    axes.margins(x=0.08)


def _legend(figure: Any, panels: list[Any]) -> None:
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if PAPERS in handles:
        handles[PAPERS] = handles.pop(PAPERS)  # behind the methods
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6)


def same_pictures(comparison: Comparison) -> dict[str, str]:
    """Figures that would show with these runs what an earlier one shows: name -> the name of that one."""
    seen: dict[Any, str] = {}
    found = {}
    for name, draw in FIGURES.items():
        wanted = draw.keywords if isinstance(draw, partial) else {}
        if "split" in wanted:  # returns
            shows: Any = *_content(comparison, wanted["games"], wanted["methods"], wanted["split"]), wanted["split"]
        elif "method" in wanted:  # values
            games = [g for g in wanted["games"] if comparison.curve(wanted["method"], g, "train", "true_value")]
            shows = games, [wanted["method"]], "values"
        else:
            continue
        first = seen.setdefault(tuple(map(tuple, shows)), name)
        if shows[0] and first != name:
            found[name] = first
    return found


FIGURES: dict[str, Callable[..., Any | None]] = {
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
VALUE_FIGURES = ("figure3", "figure4", "figure8", "figure9", "figure10")  # without bands unless they are asked for
STIFFNESS_FIGURES: dict[str, Callable[[StiffnessRuns], Any | None]] = {
    "figure2": partial(_stiffness, title="Figure 2", games=FOUR, fifths=True),
    "figure7": partial(_stiffness, title="Figure 7", games=GAMES),
}

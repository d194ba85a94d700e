"""The pictures of the analyses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.config.schema import Config
from dcpg.core.evaluation import ROUND
from dcpg.envs.levels import EachOnce
from dcpg.envs.procgen import Procgen
from dcpg.runs.curves import COLOURS
from dcpg.storage.rows import SPLITS


def stiffness(result: dict[str, Any], config: Config) -> Any:
    """Stiffness over training if the run measured it, else one bar per measure."""
    figure, axes = _axes()
    names = {"stiffness": "stiffness", "sign_free": "sign-free", "sign_agreement": "sign agreement"}
    recorded = result["recorded"]
    if recorded["steps"]:
        for name, label in names.items():
            axes.plot(recorded["steps"], recorded[name], "o-", markersize=3, label=label)
        _steps(axes)
        axes.legend(frameon=False)
    else:
        axes.bar(list(names.values()), [result[name] for name in names], color="tab:blue")
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.set(
        ylabel="mean over pairs of states", title="Value stiffness" + (" while training" if recorded["steps"] else "")
    )
    return figure


def values(result: dict[str, Any], config: Config) -> Any:
    """Predicted against true values, one panel per split."""
    import matplotlib.pyplot as plt

    shown = [split for split in SPLITS if split in result]
    figure, row = plt.subplots(1, len(shown), figsize=(5.5 * len(shown), 4), squeeze=False, constrained_layout=True)
    for axes, split in zip(row[0], shown, strict=True):
        steps, found, colour = result["steps"], result[split], COLOURS[split]
        axes.plot(steps, found["true"], "-", color=colour, label="true")
        axes.plot(steps, found["predicted"], "--", color=colour, label="predicted")
        if found["true"] != found["true_own_gamma"]:
            axes.plot(steps, found["true_own_gamma"], ":", color=colour, label="true, the method's discount")
        axes.set(ylabel="value of initial states", title=SPLITS[split])
        _steps(axes)
        axes.legend(frameon=False)
    return figure


def ood_actions(result: dict[str, Any], config: Config) -> Any:
    """The distribution of the number of wrong actions that are believed."""
    figure, axes = _axes()
    counts = np.array(result["counts"], float)
    axes.bar(np.arange(len(counts)), counts / counts.sum(), color="tab:blue")
    axes.axvline(result["mean"], color="tab:red", linewidth=1, label=f"mean {result['mean']:.2f} ± {result['std']:.2f}")
    axes.set(
        xlabel="wrong actions that are believed", ylabel="share of transitions", title="Out-of-distribution actions"
    )
    axes.legend(frameon=False)
    return figure


def levels(result: dict[str, Any], config: Config) -> Any:
    """Returns from the hardest level to the easiest, and the first frames of both ends."""
    import matplotlib.pyplot as plt

    most = min(5, len(result["train"]["levels"]) // 2)
    figure = plt.figure(figsize=(11, 8), constrained_layout=True)
    halves: Any = figure.subfigures(2, 1, height_ratios=[2, 3])
    top, bottom = halves
    axes = top.subplots()
    for split, name in SPLITS.items():
        ordered, label = np.sort(result[split]["returns"]), f"{name}: {result[split]['mean']:.2f}"
        axes.plot(np.linspace(0, 100, len(ordered)), ordered, color=COLOURS[split], label=label)
    axes.set(xlabel="levels, hardest to easiest (%)", ylabel="return", title=f"Gap {result['gap']:+.2f}")
    axes.legend(frameon=False)
    grid = bottom.subplots(2, max(2 * most, 1), squeeze=False)
    for row, (split, label) in zip(grid, SPLITS.items(), strict=True):
        hard, easy = hardest_and_easiest(result, split, most)
        chosen = [*hard, *easy[::-1]]
        chosen_levels = [result[split]["levels"][i] for i in chosen]
        frames = first_frames(config.game, config.env.mode, chosen_levels, high_resolution=True)
        for place, frame, i in zip(row, frames, chosen, strict=False):  # a single level has no ends
            place.imshow(frame)
            place.set_title(f"{result[split]['levels'][i]}\n{result[split]['returns'][i]:g}", fontsize=8)
        row[0].set_ylabel(label, fontsize=8)
        for place in row:
            place.set(xticks=[], yticks=[])
    bottom.suptitle("First frames: the hardest levels on the left, the easiest on the right", fontsize=10)
    return figure


def hardest_and_easiest(result: dict[str, Any], split: str, most: int = 5) -> tuple[list[int], list[int]]:
    """Positions of the levels with the lowest and the highest returns."""
    order = np.argsort(result[split]["returns"], kind="stable")
    most = min(most, len(order) // 2)
    return order[:most].tolist(), order[::-1][:most].tolist()


def first_frames(game: str, mode: str, levels: Sequence[int], high_resolution: bool = False) -> list[NDArray[np.uint8]]:
    """The first frame of each level, uint8 [64, 64, 3], or [512, 512, 3] in high resolution."""
    frames: list[NDArray[np.uint8]] = []
    for start in range(0, len(levels), ROUND):
        some = levels[start : start + ROUND]
        env = Procgen(len(some), game, seed=0, mode=mode, levels=EachOnce(some), render=high_resolution)
        frames += list(env.pictures() if high_resolution else env.observe()[0])
        env.close()
    return frames


PICTURES: dict[str, Callable[[dict[str, Any], Config], Any]] = {
    "stiffness": stiffness, "values": values, "ood-actions": ood_actions, "levels": levels,
}  # fmt: skip


def _axes() -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.5, 4), constrained_layout=True)


def _steps(axes: Any) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))

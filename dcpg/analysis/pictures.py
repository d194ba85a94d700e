"""A picture of each analysis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dcpg.config.build import make_levels
from dcpg.config.schema import Config
from dcpg.envs.procgen import Procgen

SPLITS = (("train", "tab:blue", "training levels"), ("test", "tab:orange", "unseen levels"))


def stiffness(result: dict[str, Any], config: Config) -> Any:
    """Over training, where the run measured it; a bar each otherwise."""
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
    """Predicted against true, for both kinds of levels."""
    import matplotlib.pyplot as plt

    shown = [(split, colour, label) for split, colour, label in SPLITS if split in result]
    figure, row = plt.subplots(1, len(shown), figsize=(5.5 * len(shown), 4), squeeze=False, constrained_layout=True)
    for axes, (split, colour, label) in zip(row[0], shown, strict=True):
        axes.plot(result["steps"], result[split]["true"], "-", color=colour, label="true")
        axes.plot(result["steps"], result[split]["predicted"], "--", color=colour, label="predicted")
        if result[split]["true"] != result[split]["true_own_gamma"]:
            axes.plot(
                result["steps"], result[split]["true_own_gamma"], ":", color=colour, label="true, the method's discount"
            )
        axes.set(ylabel="value of initial states", title=label)
        _steps(axes)
        axes.legend(frameon=False)
    return figure


def ood_actions(result: dict[str, Any], config: Config) -> Any:
    """How many transitions have how many wrong actions that are believed."""
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
    for split, colour, label in SPLITS:
        ordered = np.sort(result[split]["returns"])
        axes.plot(
            np.linspace(0, 100, len(ordered)), ordered, color=colour, label=f"{label}: {result[split]['mean']:.2f}"
        )
    axes.set(xlabel="levels, hardest to easiest (%)", ylabel="return", title=f"Gap {result['gap']:+.2f}")
    axes.legend(frameon=False)
    grid = bottom.subplots(2, max(2 * most, 1), squeeze=False)
    for row, (split, _, label) in zip(grid, SPLITS, strict=True):
        hard, easy = hardest_and_easiest(result, split, most)
        chosen = [*hard, *easy[::-1]]
        frames = first_frames(config, [result[split]["levels"][i] for i in chosen])
        for place, frame, i in zip(row, frames, chosen, strict=False):  # of a single level neither end is shown
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


def first_frames(config: Config, levels: list[int]) -> Any:
    """As people see them, uint8 [levels, 512, 512, 3]."""
    if not levels:
        return np.zeros((0, 512, 512, 3), np.uint8)
    env = make_levels(config, levels, render=True)
    assert isinstance(env, Procgen)
    frames = env.high_resolution()
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

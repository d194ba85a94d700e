"""A picture of a run's curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory


def curves(run: RunDirectory) -> Path:
    """curves.png: returns on training and unseen levels, and predicted against true value."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter

    plain, rows, evaluations = run.read_config(), read_rows(run.metrics.path), read_rows(run.evaluations.path)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    _training_curve(left, rows)
    for split, colour, label in (("train", "tab:blue", "training levels"), ("test", "tab:orange", "unseen levels")):
        found = [row for row in evaluations if f"{split}_returns" in row]
        if not found:
            continue
        steps = np.array([row["steps"] for row in found])
        mean = np.array([row[f"{split}_return"] for row in found])
        spread = np.array(
            [1.96 * np.std(r[f"{split}_returns"], ddof=1) / len(r[f"{split}_returns"]) ** 0.5 for r in found]
        )
        left.plot(steps, mean, "o-", color=colour, label=label, markersize=3)
        left.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    left.set(xlabel="environment steps", ylabel="episode return", title="Return (bands: 95% of the mean)")
    left.legend(frameon=False)
    at = [row["steps"] for row in evaluations]
    right.plot(at, [row["train_predicted_value"] for row in evaluations], "--", color="tab:blue", label="predicted")
    right.plot(at, [row["train_true_value"] for row in evaluations], "-", color="tab:blue", label="true")
    right.set(xlabel="environment steps", ylabel="value of initial states", title="Value on training levels")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(f"{plain['method']} on {plain['game']}, seed {plain['seed']}, preset {plain['preset']}")
    out = run.path / "curves.png"
    figure.savefig(out, dpi=120)
    plt.close(figure)
    return out


def _training_curve(axes: Any, rows: list[dict[str, Any]]) -> None:
    """The running mean of the last 100 episodes played while training."""
    steps, means, recent = [], [], list[float]()
    for row in rows:
        recent = (recent + row["episode_returns"])[-100:]
        if recent:
            steps.append(row["steps"])
            means.append(float(np.mean(recent)))
    axes.plot(steps, means, color="0.6", linewidth=1, label="while training (last 100 episodes)")

"""The picture of a run's learning curves."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from dcpg.config.schema import OWN
from dcpg.config.written import parse_written
from dcpg.errors import StorageFailed
from dcpg.extras import need
from dcpg.runs.evaluate import half_width
from dcpg.storage.files import write_atomic
from dcpg.storage.rows import SPLITS, Evaluation, Metrics, read
from dcpg.storage.rundir import RunDirectory
from dcpg.text import drawn

COLOURS = {"train": "tab:blue", "test": "tab:orange"}


def curves(run: RunDirectory) -> Path:
    """curves.png: returns on training and unseen levels, and predicted against true value."""
    need("report", "the picture", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter

    config = parse_written(run.read_config(), run.config, code=False).config
    evaluations = read(run.evaluations.path, Evaluation)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    _training_curve(left, read(run.metrics.path, Metrics))
    for split in SPLITS:
        _return_curve(left, evaluations, split)
    left.set(xlabel="environment steps", ylabel="episode return", title="Return (bands: 95% of the mean)")
    left.legend(frameon=False)
    steps, train = [e.steps for e in evaluations], [e.splits["train"] for e in evaluations]
    right.plot(steps, [t.predicted_value for t in train], "--", color=COLOURS["train"], label="predicted")
    right.plot(steps, [t.true_value for t in train], "-", color=COLOURS["train"], label="true")
    right.set(xlabel="environment steps", ylabel="value of initial states", title="Value on training levels")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    title = f"{config.method} on {config.game.removeprefix(OWN)}, seed {config.seed}, preset {config.preset}"
    figure.suptitle(drawn(title))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    plt.close(figure)
    out = run.path / "curves.png"
    try:
        write_atomic(out, picture.getvalue())
    except OSError as error:
        raise StorageFailed(f"{out} cannot be written ({error.strerror or error}).") from None
    return out


def _return_curve(axes: Any, evaluations: list[Evaluation], split: str) -> None:
    found = [(e.steps, e.splits[split]) for e in evaluations if split in e.splits]
    if not found:
        return
    steps = [at for at, _ in found]
    mean, half = np.array([(s.mean, half_width(s.returns or [s.mean])) for _, s in found]).T
    axes.plot(steps, mean, "o-", color=COLOURS[split], label=SPLITS[split], markersize=3)
    axes.fill_between(steps, mean - half, mean + half, color=COLOURS[split], alpha=0.2, linewidth=0)


def _training_curve(axes: Any, rollouts: list[Metrics]) -> None:
    """The running mean of the last 100 episodes played while training."""
    steps, means, recent = [], [], list[float]()
    for row in rollouts:
        recent = (recent + row.episode_returns)[-100:]
        if recent:
            steps.append(row.steps)
            means.append(float(np.mean(recent)))
    axes.plot(steps, means, color="0.6", linewidth=1, label="while training (last 100 episodes)")

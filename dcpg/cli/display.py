"""What a person sees while a run goes on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from dcpg.config.schema import Config
from dcpg.storage.rows import Evaluation, Metrics
from dcpg.text import duration

PHASES = {
    "collect": "sampling tau",
    "analyse": "analysis",
    "policy": "policy phase",
    "auxiliary": "auxiliary phase",
    "evaluate": "evaluation",
}


class Tally:
    """The figures that both displays show."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=100)
        self.last: Evaluation | None = None
        self.started, self.start_steps, self.steps, self.total = time.monotonic(), 0, 0, 1

    def begin(self, config: Config, rollouts_done: int) -> None:
        """The run begins or goes on."""
        self.start_steps = self.steps = rollouts_done * config.rollout_size
        self.total = config.rollouts * config.rollout_size
        self.started = time.monotonic()

    def speed(self) -> float:
        """Steps per second since the start, evaluations included."""
        return (self.steps - self.start_steps) / max(time.monotonic() - self.started, 1e-9)

    def left(self) -> str:
        """Time left at this speed."""
        speed = self.speed()
        return duration((self.total - self.steps) / speed) if speed > 0 else "-"

    def training_return(self) -> str:
        """The mean of the last 100 training episodes."""
        return f"{sum(self.returns) / len(self.returns):.2f}" if self.returns else "-"

    def evaluated(self, split: str) -> str:
        """The return of the last evaluation."""
        found = self.last.splits.get(split) if self.last is not None else None
        return f"{found.mean:.2f}" if found is not None else "-"

    def bias(self) -> str:
        """Predicted less true value at the initial states of training levels."""
        found = self.last.splits.get("train") if self.last is not None else None
        return f"{found.predicted_value - found.true_value:+.2f}" if found is not None else "-"


class LiveDisplay:
    """A bar and a small table that refresh themselves."""

    def __init__(self, console: Console) -> None:
        self.console, self.tally = console, Tally()
        self.progress_bar = Progress(
            TextColumn("{task.description:16s}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f} steps"),
        )
        self._live: Live | None = None
        self._drawn, self._place = 0.0, ""

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        """The run begins or goes on."""
        self.tally.begin(config, rollouts_done)
        self.console.print(
            f"{config.method} on {config.game}, seed {config.seed}, in {directory}", style="bold", markup=False
        )
        self.task = self.progress_bar.add_task("starting", total=self.tally.total, completed=self.tally.steps)
        self._live = Live(self._picture(), console=self.console, auto_refresh=False, transient=False)
        self._live.start()

    def _picture(self) -> Group:
        t = self.tally
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
        names = ["steps/s", "time left", "training return (last 100)", "train levels", "unseen levels", "value bias"]
        for name in names:
            table.add_column(name, justify="right")
        table.add_row(
            f"{t.speed():,.0f}",
            t.left(),
            t.training_return(),
            t.evaluated("train"),
            t.evaluated("test"),
            t.bias(),
        )
        return Group(self.progress_bar, Text(self._place, style="dim"), table)

    def _draw(self, force: bool = False) -> None:
        if self._live is not None and (force or time.monotonic() - self._drawn > 0.25):
            self._live.update(self._picture(), refresh=True)
            self._drawn = time.monotonic()

    def progress(self, phase: str, place: str) -> None:
        """A little further."""
        self.progress_bar.update(self.task, description=PHASES[phase])
        self._place = place
        self._draw()

    def row(self, row: Metrics, steps_per_s: float) -> None:
        """A rollout is done."""
        self.tally.returns.extend(row.episode_returns)
        self.tally.steps = row.steps
        self.progress_bar.update(self.task, completed=row.steps)
        self._draw()

    def evaluation(self, row: Evaluation) -> None:
        """An evaluation is done."""
        self.tally.last = row
        self._draw()

    def warn(self, message: str) -> None:
        """Above the bar."""
        self.console.print(message, style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last picture standing."""
        if self._live is not None:
            self._draw(force=True)
            self._live.stop()


class PlainDisplay:
    """A line an evaluation, and one every half minute."""

    def __init__(self, console: Console) -> None:
        self.console, self.tally = console, Tally()
        self._said = time.monotonic()

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        """The run begins or goes on."""
        self.tally.begin(config, rollouts_done)
        self._say(f"{config.method} on {config.game}, seed {config.seed}, {self.tally.total:,} steps, in {directory}")

    def progress(self, phase: str, place: str) -> None:
        """A line now and then."""
        if time.monotonic() - self._said > 30:
            self._line(f"{PHASES[phase]} {place}".strip())

    def _line(self, what: str) -> None:
        t = self.tally
        self._said = time.monotonic()
        self._say(
            f"{t.steps:>10,} / {t.total:,} steps  {t.speed():6.0f} steps/s  {t.left():>8s} left  {what:16s} "
            f"training return {t.training_return()}  train levels {t.evaluated('train')}  "
            f"unseen levels {t.evaluated('test')}  value bias {t.bias()}"
        )

    def row(self, row: Metrics, steps_per_s: float) -> None:
        """A rollout is done."""
        self.tally.returns.extend(row.episode_returns)
        self.tally.steps = row.steps

    def evaluation(self, row: Evaluation) -> None:
        """An evaluation is done."""
        self.tally.last = row
        self._line("evaluated")

    def warn(self, message: str) -> None:
        """A line."""
        self._say(f"warning: {message}")

    def close(self) -> None:
        """Nothing."""


def display() -> LiveDisplay | PlainDisplay:
    """What suits the output."""
    console = Console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)

"""Displays of progress: redrawn in place on a terminal, plain lines elsewhere. What training shows of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from dcpg.config.schema import OWN, Config
from dcpg.envs.base import Spaces
from dcpg.machine import estimate
from dcpg.machine.needs import Needs
from dcpg.storage.rows import Evaluation, Metrics
from dcpg.text import counted, duration, for_audience, one_line
from dcpg.torchrun import processes

REDRAW_SECONDS = 0.25  # at least, between two pictures on a terminal
LINE_SECONDS = 30.0  # at least, between two lines elsewhere
PHASES = {
    "collect": "sampling tau",
    "analyse": "analysis",
    "policy": "policy phase",
    "auxiliary": "auxiliary phase",
    "evaluate": "evaluation",
}
KINDS = {"auxiliary": "remembered", "evaluate": "evaluations"}  # of work; all other phases belong to a rollout


def as_text(text: str, style: str = "", *, cut: bool = False) -> Text:
    """Text for a console that shows every character as it is; rich would take [bold] and :smile: for its own markup.

    With `cut`, it stays on one line of the terminal.
    """
    return Text(one_line(text), style, overflow="ellipsis" if cut else None, no_wrap=cut or None)


class Screen(Console):
    """A console whose reader may go away: from then on it is silent, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Display(ABC):
    """Shows something that changes. A subclass says what: a picture for terminals, and a line for other outputs.

    Where nothing can be written, on a closed terminal or to a log on a full disk, it shows nothing: that ends no run.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.on_terminal = console, console.is_terminal
        self._live: Live | None = None
        self._shown = time.monotonic()

    @abstractmethod
    def picture(self) -> RenderableType: ...

    @abstractmethod
    def line(self) -> str: ...

    def open(self, title: str) -> None:
        """Print the title and begin to show what changes."""
        self.message(title, "bold" if self.on_terminal else "")
        if self.on_terminal:
            self._live = Live(self.picture(), console=self.console, auto_refresh=False, transient=False)
            with contextlib.suppress(OSError):
                self._live.start()

    def refresh(self, force: bool = False) -> None:
        """Show the picture or the line again, unless the last one is too recent."""
        if not force and time.monotonic() - self._shown <= (REDRAW_SECONDS if self.on_terminal else LINE_SECONDS):
            return
        self._shown = time.monotonic()
        if not self.on_terminal:
            self.message(self.line())
        elif self._live is not None:
            with contextlib.suppress(OSError):
                self._live.update(self.picture(), refresh=True)

    def message(self, text: str, style: str = "") -> None:
        """Print a sentence, on a terminal above the picture."""
        with contextlib.suppress(OSError):
            self.console.print(as_text(text), style=style, soft_wrap=not self.on_terminal)

    def close(self) -> None:
        """Leave the last picture on the terminal."""
        if self._live is not None:
            self.refresh(force=True)
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None


class Pace:
    """How long a run still takes: each kind of work goes on at the pace that it has had in this process.

    A kind that has not been seen yet counts as it was estimated, corrected by what rollouts took. Evaluations say
    little about the machine, because the length of their episodes is not known before.
    """

    def __init__(self) -> None:
        self.expected: estimate.Costs | None = None

    def start(self, config: Config, rollouts_done: int) -> None:
        """Begin to count; the rest of the run is still to do."""
        self.config, self.rollouts_before = config, rollouts_done
        self.all: dict[str, float] = dataclasses.asdict(estimate.work_of(config, config.rollouts, rollouts_done))
        self.done, self.seconds = dict.fromkeys(self.all, 0.0), dict.fromkeys(self.all, 0.0)
        self.measured: dict[str, float] = {}  # seconds of one unit
        self._clock, self._kind = time.monotonic(), "rollouts"

    def spend(self, kind: str) -> None:
        """The time since the last call was spent on this kind of work."""
        now, self._kind = time.monotonic(), kind
        self.seconds[kind] += now - self._clock
        self._clock = now

    def finish_rollout(self, rollout: int) -> None:
        """So many rollouts are done, with the auxiliary phase that follows the last one, if any."""
        self.spend(self._kind)
        done = estimate.work_of(self.config, rollout, self.rollouts_before)
        self._finished("rollouts", done.rollouts)
        self._finished("remembered", done.remembered)

    def finish_evaluation(self) -> None:
        self.spend("evaluations")
        self._finished("evaluations", self.done["evaluations"] + 1)
        self._kind = "rollouts"

    def _finished(self, kind: str, count: float) -> None:
        if count > self.done[kind]:
            self.done[kind], self.measured[kind] = count, self.seconds[kind] / count

    def left(self) -> float | None:
        """Seconds to the end; None while nothing is known."""
        self.spend(self._kind)
        if self.expected is None and not self.measured:
            return None
        expected: dict[str, float] = dict.fromkeys(self.all, 0.0)
        if self.expected is not None:
            expected = dataclasses.asdict(self.expected)
        known = "rollouts" in self.measured and expected["rollouts"] > 0
        factor = self.measured["rollouts"] / expected["rollouts"] if known else 1 / processes()
        units = {kind: self.measured.get(kind, factor * expected[kind]) for kind in self.all}
        return sum(max(units[kind] * self.all[kind] - self.seconds[kind], 0.0) for kind in self.all)


class RunDisplay(Display):
    """The progress of one run."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(
            TextColumn("{task.description:16s}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f} steps"),
        )
        self.returns: deque[float] = deque(maxlen=100)
        self.last: Evaluation | None = None
        self.started, self.start_steps, self.steps, self.total = time.monotonic(), 0, 0, 1
        self.phase, self.place = "starting", ""
        self.pace = Pace()

    def announce(self, config: Config, spaces: Spaces, needs: Needs, rollouts: int) -> None:
        """Say what the next rollouts will take, before they start."""
        if rollouts == 0:
            return
        self.message(f"This run needs {needs.sentence()}.")
        left = estimate.work_of(config, config.rollouts, config.rollouts - rollouts)
        try:
            self.pace.expected = estimate.costs(config, spaces)
        except (ValueError, IndexError, RuntimeError):  # a plugin's networks may not take the numbers that are timed
            return
        steps, seconds = rollouts * config.rollout_size, self.pace.expected.of(left) / processes()
        self.message(
            f"{steps:,} steps ({counted(rollouts, 'rollout')} of {config.rollout_size}) on this machine: about "
            f"{duration(seconds)}{' and what the environment takes' if config.game.startswith(OWN) else ''}."
        )
        if seconds > 86400 and config.preset == "paper":
            smaller = for_audience("--preset laptop", 'preset="laptop"')
            self.message(f"For a result in minutes: {smaller}. This run can be stopped and resumed at any time.")

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        self.start_steps = self.steps = rollouts_done * config.rollout_size
        self.total, self.started = config.rollouts * config.rollout_size, time.monotonic()
        self.pace.start(config, rollouts_done)
        self.task = self.bar.add_task(self.phase, total=self.total, completed=self.steps)
        steps = "" if self.on_terminal else f"{self.total:,} steps, "  # the bar has them on a terminal
        machine = f"on {config.machine.device} in {config.machine.precision}"
        self.open(
            f"{config.method} on {config.game.removeprefix(OWN)}, seed {config.seed}, {steps}{machine}, in {directory}"
        )

    def progress(self, phase: str, place: str) -> None:
        self.phase, self.place = PHASES[phase], place
        self.pace.spend(KINDS.get(phase, "rollouts"))
        self.refresh()

    def row(self, row: Metrics, steps_per_s: float) -> None:
        self.returns.extend(row.episode_returns)
        self.steps = row.steps
        self.pace.finish_rollout(row.rollout)
        self.refresh()

    def evaluation(self, row: Evaluation) -> None:
        self.last = row
        self.pace.finish_evaluation()
        if not self.on_terminal:
            self.phase, self.place = "evaluated", ""
        self.refresh(force=not self.on_terminal)

    def warn(self, message: str) -> None:
        self.message(message if self.on_terminal else f"warning: {message}", "yellow" if self.on_terminal else "")

    def picture(self) -> Group:
        self.bar.update(self.task, description=self.phase, completed=self.steps)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        names = ["steps/s", "time left", "training return (last 100)", "train levels", "unseen levels", "value bias"]
        for name in names:
            table.add_column(name, justify="right")
        table.add_row(f"{self._speed():,.0f}", self._time_left(), *self._returns(), self._bias())
        return Group(self.bar, Text(self.place, style="dim"), table)

    def line(self) -> str:
        training, train, test = self._returns()
        return (
            f"{self.steps:>10,} / {self.total:,} steps  {self._speed():6.0f} steps/s  {self._time_left():>8s} left  "
            f"{f'{self.phase} {self.place}'.strip():16s} training return {training}  train levels {train}  "
            f"unseen levels {test}  value bias {self._bias()}"
        )

    def _speed(self) -> float:
        """Steps per second since the start, evaluations included."""
        return (self.steps - self.start_steps) / max(time.monotonic() - self.started, 1e-9)

    def _time_left(self) -> str:
        seconds = self.pace.left()
        return duration(seconds) if seconds is not None else "-"

    def _returns(self) -> tuple[str, str, str]:
        """The mean of the last 100 training episodes, and of the last evaluation on training and on unseen levels."""
        training = f"{sum(self.returns) / len(self.returns):.2f}" if self.returns else "-"
        splits = self.last.splits if self.last is not None else {}
        train, test = (f"{splits[name].mean:.2f}" if name in splits else "-" for name in ("train", "test"))
        return training, train, test

    def _bias(self) -> str:
        """Predicted minus true value at the initial states of training levels."""
        found = self.last.splits.get("train") if self.last is not None else None
        return f"{found.predicted_value - found.true_value:+.2f}" if found is not None else "-"


def display() -> RunDisplay:
    """The display of a run on standard output."""
    return RunDisplay(Screen())

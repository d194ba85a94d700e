"""Observers of a run while it trains, such as displays."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dcpg.config.schema import Config
from dcpg.envs.base import Spaces
from dcpg.machine.needs import Needs
from dcpg.storage.rows import Evaluation, Metrics
from dcpg.text import say


class RunObserver(Protocol):
    """Training observer protocol: a live display, plain lines, or nothing."""

    def announce(self, config: Config, spaces: Spaces, needs: Needs, rollouts: int) -> None:
        """Called before the first step with what the run may need; `rollouts` is the number still to do."""

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None: ...

    def progress(self, phase: str, place: str) -> None:
        """Called often, with the phase and the position in it."""

    def row(self, row: Metrics, steps_per_s: float) -> None:
        """Called after each rollout."""

    def evaluation(self, row: Evaluation) -> None:
        """Called after each evaluation."""

    def warn(self, message: str) -> None: ...

    def close(self) -> None: ...


class Observer:
    """Does nothing. Derive from it and override what you need.

    Examples:
        >>> class Best(dcpg.Observer):
        ...     best = float("-inf")
        ...     def evaluation(self, row):
        ...         self.best = max(self.best, row.splits["test"].mean)
        >>> dcpg.train("dcpg", "starpilot", preset="tiny", observer=Best())
    """

    def announce(self, config: Config, spaces: Spaces, needs: Needs, rollouts: int) -> None:
        """Called before the first step with what the run may need; `rollouts` is the number still to do."""

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        """Called when training begins or goes on."""

    def progress(self, phase: str, place: str) -> None:
        """Called often: the phase is collect, analyse, policy, auxiliary or evaluate, `place` is the position in it."""

    def row(self, row: Metrics, steps_per_s: float) -> None:
        """Called after each rollout with its row of metrics.jsonl: `row.steps`, `row.episode_returns`, `row.more`."""

    def evaluation(self, row: Evaluation) -> None:
        """Called after each evaluation: `row.steps`, `row.splits["train"].mean`, `row.splits["test"].mean`."""

    def warn(self, message: str) -> None:
        """Called with a sentence about something that went wrong and did not end the run."""

    def close(self) -> None:
        """Called at the end, also when the run was stopped or failed."""


class SilentObserver(Observer):
    """Shows nothing; warnings go to standard error."""

    def warn(self, message: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal, or a log on a full disk
            say(message, to=sys.stderr)


class Together(Observer):
    """Passes every call to several observers."""

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self.observers = observers

    def announce(self, config: Config, spaces: Spaces, needs: Needs, rollouts: int) -> None:
        for one in self.observers:
            one.announce(config, spaces, needs, rollouts)

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        for one in self.observers:
            one.start(config, directory, rollouts_done)

    def progress(self, phase: str, place: str) -> None:
        for one in self.observers:
            one.progress(phase, place)

    def row(self, row: Metrics, steps_per_s: float) -> None:
        for one in self.observers:
            one.row(row, steps_per_s)

    def evaluation(self, row: Evaluation) -> None:
        for one in self.observers:
            one.evaluation(row)

    def warn(self, message: str) -> None:
        for one in self.observers:
            one.warn(message)

    def close(self) -> None:
        for one in self.observers:
            one.close()

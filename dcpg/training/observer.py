"""Who looks on while a run goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from dcpg.config.schema import Config
from dcpg.storage.rows import Evaluation, Metrics


class Watcher(Protocol):
    """Whoever looks on: a live display, plain lines, or nobody."""

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        """The run begins or goes on."""

    def progress(self, phase: str, place: str) -> None:
        """A little further: in which phase, and where in it."""

    def row(self, row: Metrics, steps_per_s: float) -> None:
        """A rollout is done."""

    def evaluation(self, row: Evaluation) -> None:
        """An evaluation is done."""

    def warn(self, message: str) -> None:
        """Something that a person should know."""

    def close(self) -> None:
        """The run stops."""


class Silent:
    """Nobody looks on; warnings go to standard error."""

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None:
        """Nothing."""

    def progress(self, phase: str, place: str) -> None:
        """Nothing."""

    def row(self, row: Metrics, steps_per_s: float) -> None:
        """Nothing."""

    def evaluation(self, row: Evaluation) -> None:
        """Nothing."""

    def warn(self, message: str) -> None:
        """One line."""
        print(message, file=sys.stderr)

    def close(self) -> None:
        """Nothing."""


class Mute(Silent):
    """Not even warnings: the first process of a run speaks for all."""

    def warn(self, message: str) -> None:
        """Nothing."""

"""Observers of a run while it trains, such as displays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

from dcpg.config.schema import Config
from dcpg.machine.needs import Needs
from dcpg.storage.rows import Evaluation, Metrics


class RunObserver(Protocol):
    """Training observer protocol: a live display, plain lines, or nothing."""

    def announce(self, config: Config, needs: Needs, rollouts: int) -> None:
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


class SilentObserver:
    """Shows nothing; warnings go to standard error."""

    def announce(self, config: Config, needs: Needs, rollouts: int) -> None: ...

    def start(self, config: Config, directory: Path, rollouts_done: int) -> None: ...

    def progress(self, phase: str, place: str) -> None: ...

    def row(self, row: Metrics, steps_per_s: float) -> None: ...

    def evaluation(self, row: Evaluation) -> None: ...

    def warn(self, message: str) -> None:
        print(message, file=sys.stderr)

    def close(self) -> None: ...


class MuteObserver(SilentObserver):
    """Drops warnings too, for all processes of a run but the first."""

    def warn(self, message: str) -> None: ...

"""Signals that ask a run to stop."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopSignals:
    """While entered, a signal is only noted, for the loop to read between steps; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.asked: str | None = None  # the signal that asked for a stop
        self._interrupted = False
        self._before: list[Any] = []

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = [signal.signal(number, self._note) for number in NUMBERS]

    def __exit__(self, *exception: object) -> None:
        for number, handler in zip(NUMBERS, self._before, strict=False):
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            os._exit(130)
        self._interrupted |= number == signal.SIGINT
        self.asked = signal.Signals(number).name

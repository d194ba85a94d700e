"""What stops a run: signals that ask for it, and a watchdog for environments that hang."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import psutil

from dcpg.errors import EnvironmentHung, InUse
from dcpg.storage.lock import Lock
from dcpg.text import say

KEPT = "The last checkpoint is kept: resume to try again."
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class StopSignals:
    """While entered, records signals for the loop to read between steps; a second SIGINT exits at once.

    SIGHUP, which a terminal sends when it is closed, stays ignored where it was: `nohup` asks for that.
    """

    def __init__(self) -> None:
        self.asked: str | None = None  # the signal that asked for a stop
        self._interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._record)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            os._exit(130)
        self._interrupted |= number == signal.SIGINT
        self.asked = signal.Signals(number).name


class Watchdog:
    """A thread that writes the lock's heartbeat, and ends the process if the environments hang."""

    def __init__(self, lock: Lock, timeout: float, advice: str = KEPT) -> None:
        self.lock, self.timeout, self.advice = lock, timeout, advice
        self._watched: str | None = None
        self._times = 1
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def alive(self) -> None:
        """Restart the timeout of `watching`."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def watching(self, what: str, times: int = 1) -> Iterator[None]:
        """While this lasts, `alive` must be called within the timeout, or so many times of it."""
        self.alive()
        self._watched, self._times = what, times
        try:
            yield
        finally:
            self._watched = None

    def _watch(self) -> None:
        interval = min(1.0, self.timeout / 4)
        looked = time.monotonic()
        while not self._ended.wait(interval):
            if time.monotonic() - looked > 2 * interval + 1:  # this thread stood still too: the process was suspended
                self.alive()
            before = time.monotonic()
            is_ours = self.lock.beat()
            looked = time.monotonic()
            if looked - before > 1:  # slow storage, or a suspension just then: no time of the environments
                self._last += looked - before
            if not is_ours:
                _end(
                    f"Another process has taken over {self.lock.path.parent}, because this one gave no sign of life "
                    "for a minute; this one ends now.",
                    InUse.exit_code,
                )
            if self._watched and looked - self._last > self.timeout * self._times:
                with contextlib.suppress(Exception):  # an output that is closed, full or no file
                    faulthandler.dump_traceback(file=sys.stderr)
                _end(
                    f"Nothing came from {self._watched} for {self.timeout * self._times:g} seconds (env.timeout); the "
                    f"stacks are above. {self.advice}",
                    EnvironmentHung.exit_code,
                )


_spared: set[int] = set()  # processes that were there before the environments were made


def spare_children() -> None:
    """Whatever happens to the environments that are made from now on, the program's other processes are let be."""
    _spared.clear()
    with contextlib.suppress(psutil.Error):
        _spared.update(child.pid for child in psutil.Process().children(recursive=True))


def _end(why: str, code: int) -> None:
    """End the process from this thread, even if the others are blocked, and those that its environments started."""
    try:
        say(why, to=sys.stderr, flush=True)
    finally:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
                    if child.pid not in _spared:
                        child.kill()
        os._exit(code)

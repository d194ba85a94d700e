"""The index of a sweep: one row per event in the life of its runs. Only the sweep's driver writes it.

It is a convenience, never the truth: whether a run has finished is read from its directory. A lost index is rebuilt
from the run directories; only the number of attempts is lost with it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from dcpg.errors import OutOfMemory, Stopped, StorageFailed
from dcpg.storage.checkpoint import FIRST_CHECKPOINT, position
from dcpg.storage.files import AWAY, FORBIDDEN, dump, read_regular, write_atomic
from dcpg.storage.rows import MOST_ROWS, Event, Rows

MAX_FAILURES = 3  # in a row without progress, after which a run is given up
MAX_LOST = 10  # the same for attempts that ended by no fault of the run
# the worker or node was lost, the result could not be seen yet, or the attempt was asked to stop
NOT_ITS_FAULT = (None, 0, Stopped.exit_code)
MISSING: dict[str, Any] = {"code": None, "place": "", "last_lines": ""}  # of a row that does not have them


@dataclass
class RunHistory:
    """What the events of one run add up to."""

    attempts: int = 0
    failures: int = 0  # in a row, without progress
    lost: int = 0  # attempts in a row without progress that ended by no fault of the run
    checkpoint: str = FIRST_CHECKPOINT  # the newest one that any attempt has left; the first is no progress
    failed: bool = False
    finished: bool = False
    code: int | None = None  # of the last attempt
    last_lines: str = ""

    def add(self, event: Event) -> None:
        match event.event:
            case "started":
                self.attempts += 1
            case "ended":
                self._end(event)
            case "retry":
                self.failed, self.failures, self.lost, self.code = False, 0, 0, None
            case "failed":
                self.failed = True
            case "finished":
                self.finished, self.failed = True, False

    def _end(self, event: Event) -> None:
        self.code, self.last_lines = None if event.code is UNSET else event.code, event.last_lines or ""
        before, self.checkpoint = self.checkpoint, max(event.place or "", self.checkpoint, key=position)
        if self.checkpoint != before:
            self.failures = self.lost = 0
        elif self.code in NOT_ITS_FAULT:
            self.lost += 1
        else:
            self.failures += 1

    @property
    def reason_to_give_up(self) -> str:
        """Why the run should not be tried again; empty if it should."""
        if self.code == OutOfMemory.exit_code:
            return "it ran out of memory, and would again: make room or make it smaller, then give --retry"
        if self.failures >= MAX_FAILURES:
            return f"it failed {MAX_FAILURES} times without progress (last exit code {self.code})"
        if self.lost >= MAX_LOST:
            return f"its worker or its storage was lost, or it was stopped, {MAX_LOST} times without progress"
        return ""


class Index:
    """index.jsonl, which is read once and then only appended to. With `writable`, damaged lines are removed."""

    def __init__(self, path: Path, writable: bool = True) -> None:
        self.path, self.rows = path, Rows(path)
        self.events, whole = _read(path)
        if writable and not whole:
            self._rewrite()
        self._count()

    def _count(self) -> None:
        self.histories: dict[str, RunHistory] = {}
        for event in self.events:
            self[event.run].add(event)

    def __getitem__(self, run: str) -> RunHistory:
        return self.histories.setdefault(run, RunHistory())

    def reconcile(self, finished: Mapping[str, bool]) -> None:
        """Make the file agree with the run directories on who has finished, each run once."""
        kept, seen = list[Event](), set[str]()
        for event in self.events:
            if event.event == "finished":
                if event.run in seen or not finished.get(event.run, True):
                    continue
                seen.add(event.run)
            kept.append(event)
        if len(kept) < len(self.events):
            self.events = kept
            self._rewrite()
            self._count()
        for run, done in finished.items():
            if done and not self[run].finished:
                self._add(Event(run=run, event="finished"))
        self._sync()

    def append(self, event: Event) -> None:
        """Add an event, numbered and dated here; it is on the disk when this returns, if the disk takes it."""
        self._add(event)
        self._sync()

    def _add(self, event: Event) -> None:
        attempt = self[event.run].attempts + (event.event == "started")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = msgspec.structs.replace(event, attempt=attempt, time=now)
        self.events.append(event)
        self[event.run].add(event)
        self.rows.append(event)

    def _sync(self) -> None:
        with contextlib.suppress(OSError):  # tried again with the next event; `close` raises if it lasts
            self.rows.sync()

    def close(self) -> None:
        """Return when every event is on the disk, or raise."""
        try:
            self.rows.sync()
        except OSError as error:
            raise StorageFailed(
                f"{self.path} cannot be written ({error}); make room and start the sweep again: nothing is lost."
            ) from None

    def _rewrite(self) -> None:
        write_atomic(self.path, b"".join(dump(event.plain()) for event in self.events))


def _read(path: Path) -> tuple[list[Event], bool]:
    """The events that can be read, and whether there is nothing else in the file; a torn last line is none."""
    try:
        data = read_regular(path, MOST_ROWS)
    except FileNotFoundError:
        return [], True
    except OSError as error:
        if error.errno in AWAY | FORBIDDEN:  # it would be written anew, without what it holds
            raise StorageFailed(f"{path} cannot be read ({error.strerror}); try again when it can be.") from None
        return [], False
    lines = data.splitlines(keepends=True)
    events = [event for event in map(_parse, lines) if event is not None]
    return events, len(events) == len(lines)


def _parse(line: bytes) -> Event | None:
    try:
        return Event.parse(MISSING | msgspec.json.decode(line)) if line.endswith(b"\n") else None
    except (ValueError, TypeError, RecursionError):
        return None

"""What happened to a sweep's runs: a file that only grows while the one driver writes it.

It is a convenience, never the truth: who finished is read from the run directories. Lost, it is made anew from them;
what is lost with it is how often runs were tried.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.errors import OutOfMemory, Stopped, StorageFailed
from dcpg.storage.files import dump, read_regular, write_atomic
from dcpg.storage.rows import Event, Rows

EVENTS = ("started", "ended", "finished", "failed", "retry")


TRIES = 3  # failures in a row without progress, after which a run is given up


LOST = 10  # the same for attempts that ended otherwise


# its worker or node was lost, its result was not to be seen yet, somebody told it to stop
NOT_ITS_FAULT = (None, 0, Stopped.exit_code)


BEGUN = "000000000000-00.000.000000-00000"  # the checkpoint that every run begins with: having it is no progress


@dataclass
class Tally:
    """What the events of one run come to."""

    attempts: int = 0
    failures: int = 0  # in a row, without progress
    lost: int = 0
    place: str = BEGUN  # the newest checkpoint that it ever had when an attempt ended
    failed: bool = False
    finished: bool = False
    code: int | None = None  # of the last attempt
    last_lines: str = ""

    def add(self, event: Mapping[str, Any]) -> None:
        """One more event."""
        kind = event["event"]
        if kind == "started":
            self.attempts += 1
        elif kind == "ended":
            self._ended(event)
        elif kind == "retry":
            self.failed, self.failures, self.lost, self.code = False, 0, 0, None
        elif kind == "failed":
            self.failed = True
        else:
            self.finished, self.failed = True, False

    def _ended(self, event: Mapping[str, Any]) -> None:
        self.code, self.last_lines = event["code"], event["last_lines"]
        before, self.place = self.place, max(event["place"], self.place)
        if self.place > before:
            self.failures = self.lost = 0
        elif self.code in NOT_ITS_FAULT:
            self.lost += 1
        else:
            self.failures += 1

    @property
    def hopeless(self) -> str:
        """Why it should not be tried again; empty if it should."""
        if self.code == OutOfMemory.exit_code:
            return "it ran out of memory, and would again: make room or make it smaller, then give --retry"
        if self.failures >= TRIES:
            return f"it failed {TRIES} times without progress (last exit code {self.code})"
        if self.lost >= LOST:
            return f"its worker was lost, or it was stopped, {LOST} times without progress"
        return ""


class Index:
    """The file, read once and then only written to."""

    def __init__(self, path: Path, writable: bool = True) -> None:
        self.path, self.rows = path, Rows(path)
        self.events, whole = _read(path)
        if writable and not whole:
            self._rewrite()
        self._count()

    def _count(self) -> None:
        self.tallies: dict[str, Tally] = {}
        for event in self.events:
            self[event["run"]].add(event)

    def __getitem__(self, run: str) -> Tally:
        return self.tallies.setdefault(run, Tally())

    def reconcile(self, finished: Mapping[str, bool]) -> None:
        """Make the file say of these runs what their directories say."""
        kept, seen = list[dict[str, Any]](), set[str]()
        for event in self.events:
            run = event["run"]
            if event["event"] == "finished":
                if run in seen or not finished.get(run, True):
                    continue
                seen.add(run)
            kept.append(event)
        if len(kept) < len(self.events):
            self.events = kept
            self._rewrite()
            self._count()
        for run, done in finished.items():
            if done and not self[run].finished:
                self._add(run, "finished")
        self._sync()

    def append(self, run: str, event: str, **more: Any) -> None:
        """One more event, on the disk when this returns."""
        self._add(run, event, **more)
        self._sync()

    def _add(self, run: str, event: str, **more: Any) -> None:
        row = {"run": run, "event": event, "attempt": self[run].attempts + (event == "started"), **more}
        row["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.events.append(row)
        self[run].add({"code": None, "place": "", "last_lines": "", **row})
        self.rows.append(Event.parse(row))

    def _sync(self) -> None:
        with contextlib.suppress(OSError):  # it comes with the next one, or `close` says so
            self.rows.sync()

    def close(self) -> None:
        """Everything on the disk, or an error."""
        try:
            self.rows.sync()
        except OSError as error:
            raise StorageFailed(
                f"{self.path} cannot be written ({error}); make room and start the sweep again: nothing is lost."
            ) from None

    def _rewrite(self) -> None:
        write_atomic(self.path, b"".join(map(dump, self.events)))


def _read(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The rows that can be read, and whether they are all there is; a torn last line is none."""
    try:
        data = read_regular(path)
    except OSError:
        return [], not path.is_symlink() and not path.exists()
    lines = data.splitlines(keepends=True)
    rows = [row for row in map(_row, lines) if row is not None]
    return rows, len(rows) == len(lines)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("run"), str) or row.get("event") not in EVENTS:
        return None
    row.setdefault("code", None)
    if not (row["code"] is None or type(row["code"]) is int):
        return None
    return row if all(isinstance(row.setdefault(name, ""), str) for name in ("place", "last_lines")) else None

"""Files of JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from dcpg.storage.files import dump, fsync_dir, read_regular, write_atomic


class Rows:
    """A file of JSON lines. A row that the disk refuses is kept and tried again with the next one."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.pending, self.count, self.writes = path, list[bytes](), 0, writes

    def append(self, row: dict[str, Any]) -> None:
        """One more row."""
        self.count += 1
        if not self.writes:
            return
        self.pending.append(dump(row))
        with contextlib.suppress(OSError):  # `sync` says so if it lasts
            self._flush()

    def sync(self) -> None:
        """Every row on the disk, or an error."""
        if not self.writes:
            return
        self._flush()
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
            fsync_dir(self.path.parent)  # the file's name may be new

    def _flush(self) -> None:
        if not self.pending:
            return
        data = b"".join(self.pending)
        with open(self.path, "ab", buffering=0) as file:  # a buffer would write a refused row again when it is closed
            start = file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(self.path, start)
                raise
        self.pending.clear()

    def keep(self, count: int) -> None:
        """Drop everything past the first `count` rows: what comes again, and a torn last line."""
        self.count = count
        if not self.writes:
            return
        lines = self.path.read_bytes().splitlines(keepends=True)[:count] if self.path.exists() else []
        write_atomic(self.path, b"".join(lines))
        self.pending.clear()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file, up to the first line that is torn or not a row."""
    return parse_rows(read_regular(path)) if path.exists() else []


def parse_rows(data: bytes) -> list[dict[str, Any]]:
    """The rows of JSON lines, up to the first one that is torn or not a row."""
    rows = []
    for line in data.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(row, dict):
            break
        rows.append(row)
    return rows

"""A run's directory: its lock, its rows and its summary."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import time
from pathlib import Path
from typing import IO, Any

from dcpg.errors import BadInput, InUse, StorageFailed

MOST_CONFIGURATION = 16_000_000  # bytes: a list of all levels that a run may have
RECORD = 512  # bytes of a lock file
FOREIGN_PATIENCE = 60.0  # seconds that another host's heartbeat must stand still before its lock is taken over


def fsync_dir(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durable(path: Path, data: bytes) -> None:
    """A new file's bytes, on the disk when this returns. What stood there is removed first, never written through."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """The old file or the new one, never a mixture."""
    temporary = path.with_name(f".tmp-{path.name}")
    write_durable(temporary, data)
    os.replace(temporary, path)
    fsync_dir(path.parent)


def read_regular(path: Path, most: int | None = None) -> bytes:
    """A plain file's bytes. A link could name any file, and a pipe would never end: both are an OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if most is not None and state.st_size > most:
            raise OSError(errno.EFBIG, f"it has {state.st_size:,} bytes, which is too much", str(path))
        return file.read()


def dump(value: Any, *, indent: int | None = None) -> bytes:
    """JSON without NaN, as bytes."""
    return (json.dumps(value, allow_nan=False, indent=indent) + "\n").encode()


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


class Lock:
    """One trainer a run directory.

    On one host the kernel's file lock decides, and frees itself when its holder dies. For a holder on another host, or
    where the storage has no such locks, the counter in the file decides: it must stand still for a minute of our own
    clock before we take over.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.counter = path, 0
        self._file: IO[bytes] | None = None

    def acquire(self) -> None:
        """Take the lock or refuse, naming who holds it."""
        try:  # a link is not followed: it could name any file
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written to ({error.strerror}).") from None
        file, decided = os.fdopen(fd, "r+b", buffering=0), True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read()
            file.close()
            raise InUse(
                f"{self.path.parent} is in use by process {holder.get('pid', '?')} on {holder.get('host', '?')}; "
                "wait for it or stop it."
            ) from None
        except OSError:  # this storage has no locks
            decided = False
        if not self._is_there(file):  # the one before us removed the file just now
            file.close()
            self.acquire()
            return
        holder = self._read()
        if holder and (holder.get("host") != socket.gethostname() or not decided) and self._moves(holder):
            file.close()
            raise InUse(
                f"{self.path.parent} is in use by process {holder.get('pid')} on {holder.get('host')}, which is alive."
            )
        self._file = file
        self._write()
        with contextlib.suppress(OSError):
            os.ftruncate(fd, RECORD)  # whatever stood there before

    def _is_there(self, file: IO[bytes]) -> bool:
        try:
            return os.stat(self.path).st_ino == os.fstat(file.fileno()).st_ino
        except OSError:
            return False

    def _moves(self, before: dict[str, Any]) -> bool:
        end = time.monotonic() + FOREIGN_PATIENCE
        while time.monotonic() < end:
            time.sleep(0.5)
            now = self._read()
            if now and now != before:  # an empty file is one that is being written
                return True
        return False

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_bytes())
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def beat(self) -> bool:
        """Show that the holder lives; False if another process has taken over meanwhile, thinking that it did not."""
        if self._file is None:
            return True
        if self._is_anothers():
            return False
        self._write()
        return True

    def _is_anothers(self) -> bool:
        now = self._read()
        return bool(now) and (now.get("host"), now.get("pid")) != (socket.gethostname(), os.getpid())

    def _write(self) -> None:
        """One record of fixed length over the last one: on shared storage nobody must see an empty file."""
        assert self._file is not None
        self.counter += 1
        text = {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(), "beat": self.counter}
        with contextlib.suppress(OSError):  # a full disk must not end the run here
            os.pwrite(self._file.fileno(), dump(text)[:-1].ljust(RECORD - 1) + b"\n", 0)
            os.fdatasync(self._file.fileno())

    def release(self) -> None:
        """Give the directory free."""
        if self._file is not None:
            if self._is_there(self._file) and not self._is_anothers():
                self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


_START = time.time()


def _started() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_START))


class RunDirectory:
    """The paths of a run, and its rows. Of several processes one writes; the others count what it writes."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.config = path / "config.json"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.milestones = path / "milestones"
        self.tensorboard = path / "tb"
        self.metrics = Rows(path / "metrics.jsonl", writes)
        self.evaluations = Rows(path / "eval.jsonl", writes)
        self.timing = Rows(path / "timing.jsonl", writes)
        self.lock = Lock(path / "lock")
        self._made = self._created = False

    def prepare(self) -> None:
        """The folder itself, so that it can be locked."""
        try:
            if self.path.exists() and not self.path.is_dir():
                raise BadInput(f"{self.path} is a file; choose another --out.")
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written to ({error.strerror}); choose another --out.") from None

    def create(self) -> None:
        """A new run's directory, which is locked already; one that holds a run is refused."""
        if self.config.exists() or any(p.name[:12] != "0" * 12 for p in self._checkpointed()):
            raise BadInput(
                f"{self.path} holds a run already; go on with `dcpg resume {self.path}` or choose another --out."
            )
        for rows in (self.metrics, self.evaluations, self.timing):
            if rows.path.exists():
                raise BadInput(f"{rows.path} is there already, of a run or of something else; choose another --out.")
        try:
            # config.json is written last: a run that was killed before that has not begun
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            self.checkpoints.mkdir()
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written to ({error.strerror}); choose another --out.") from None
        self._created = True

    def _checkpointed(self) -> list[Path]:
        return [p for p in self.checkpoints.iterdir() if p.name[0].isdigit()] if self.checkpoints.is_dir() else []

    def undo(self) -> None:
        """The run was refused before it began: leave nothing of it behind, and everything else alone."""
        if self._created:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        if self._made and not [p for p in self.path.iterdir() if p != self.lock.path]:
            shutil.rmtree(self.path, ignore_errors=True)

    def sync_rows(self) -> None:
        """Every row that decides something on the disk, or an error."""
        self.metrics.sync()
        self.evaluations.sync()

    def read_config(self) -> dict[str, Any]:
        """The configuration as it was written down."""
        try:
            found = self.path.is_dir()
        except OSError:
            found = False
        if not found:
            raise BadInput(f"There is no run at {self.path}.")
        for part in (self.checkpoints, self.checkpoints / "shared", self.lock.path):
            if part.is_symlink():
                raise BadInput(f"{part} is a link; a run's files must be in its own directory.")
        try:
            plain = json.loads(read_regular(self.config, MOST_CONFIGURATION))
        except FileNotFoundError:
            raise BadInput(f"{self.path} holds no run: config.json is missing.") from None
        except (OSError, ValueError) as error:
            raise BadInput(f"{self.config} cannot be read ({error}).") from None
        if not isinstance(plain, dict):
            raise BadInput(f"{self.config} is not a run's configuration.")
        return plain

    def write_json(self, path: Path, value: Any) -> None:
        """A small file, atomically."""
        if not self.writes:
            return
        try:
            write_atomic(path, dump(value, indent=2))
        except OSError as error:
            raise StorageFailed(f"{path} cannot be written ({error}).") from None

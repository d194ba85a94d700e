"""The lock that allows one trainer per run directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import socket
import time
import weakref
from pathlib import Path
from typing import IO, Any

import psutil

from dcpg.errors import BadInput, InUse
from dcpg.storage.files import dump, open_updating, read_json, read_regular

RECORD = 512  # bytes of a lock file
MOST_RECORD = 10_000  # bytes of one that some other program may have written


FOREIGN_PATIENCE = 60.0  # seconds without a heartbeat from another host before its lock is taken over


class Lock:
    """Allows one trainer per run directory.

    On one host the kernel's file lock decides, and is released when its holder dies. For a holder on another host, or
    on storage without such locks, the counter in the file decides: if it does not change for a minute by our own clock,
    we take over. A forked child, such as the process of an environment, does not hold it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.counter = path, 0
        self._holder = (socket.gethostname(), os.getpid())  # a host may change its name later
        self._file: IO[bytes] | None = None
        _LOCKS.add(self)

    def acquire(self) -> None:
        """Take the lock, or raise InUse with the process that holds it."""
        try:
            file, kernel_locked = open_updating(self.path), True
        except OSError as error:
            raise BadInput(f"{self.path} cannot be written to ({error.strerror}).") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read()
            file.close()
            raise InUse(
                f"{self.path.parent} is in use by process {holder.get('pid', '?')} on {holder.get('host', '?')}; "
                "wait for it or stop it."
            ) from None
        except OSError:  # this storage has no file locks
            kernel_locked = False
        if not self._is_there(file):  # the previous holder has just removed the file
            file.close()
            self.acquire()
            return
        holder = self._read()
        if holder and (holder.get("host") != socket.gethostname() or not kernel_locked) and self._is_beating(holder):
            file.close()
            raise InUse(
                f"{self.path.parent} is in use by process {holder.get('pid')} on {holder.get('host')}, which is alive."
            )
        if os.fstat(file.fileno()).st_nlink > 1:  # a copy made of links shares it: no longer, as nobody else holds it
            try:
                file = self._separate(file)
            except OSError as error:
                file.close()
                raise BadInput(f"{self.path} cannot be written to ({error.strerror}).") from None
        self._file, self._holder = file, (socket.gethostname(), os.getpid())
        self._write()
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), RECORD)  # drop the rest of a longer file

    def is_ours(self) -> bool:
        """Whether the file is one of this program, or nothing that anybody would miss."""
        try:
            return {"host", "pid"} <= self._read().keys() or not read_regular(self.path, MOST_RECORD).strip(b"\0 \n")
        except OSError:
            return True  # `acquire` says what is wrong with it

    def _separate(self, file: IO[bytes]) -> IO[bytes]:
        """A file of its own, locked before others can find it and before the shared one is released."""
        new = self.path.with_name(f".tmp-{self.path.name}-{os.getpid()}")
        new.unlink(missing_ok=True)
        own = open_updating(new)
        with contextlib.suppress(OSError):  # storage without file locks
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(new, self.path)
        file.close()
        return own

    def _is_there(self, file: IO[bytes]) -> bool:
        try:
            return os.stat(self.path).st_ino == os.fstat(file.fileno()).st_ino
        except OSError:
            return False

    def _is_beating(self, before: dict[str, Any]) -> bool:
        end = time.monotonic() + FOREIGN_PATIENCE
        while time.monotonic() < end:
            time.sleep(0.5)
            now = self._read()
            if now and now != before:  # an empty file is one that is being written
                return True
        return False

    def _read(self) -> dict[str, Any]:
        try:
            found = read_json(self.path, MOST_RECORD)
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def beat(self) -> bool:
        """Write a heartbeat; False if another process has taken over the lock meanwhile."""
        if self._file is None:
            return True
        if self._is_anothers():
            return False
        self._write()
        return True

    def _is_anothers(self) -> bool:
        now = self._read()
        return bool(now) and (now.get("host"), now.get("pid")) != self._holder

    def _write(self) -> None:
        """Overwrite the record, at a fixed length: on shared storage no reader may see an empty file."""
        assert self._file is not None
        self.counter += 1
        host, pid = self._holder
        text = {"host": host, "pid": pid, "started": _started(), "beat": self.counter, "born": born(pid)}
        with contextlib.suppress(OSError):  # a full disk must not end the run here
            os.pwrite(self._file.fileno(), dump(text)[:-1].ljust(RECORD - 1) + b"\n", 0)
            os.fdatasync(self._file.fileno())

    def release(self) -> None:
        if self._file is not None and self._is_there(self._file) and not self._is_anothers():
            with contextlib.suppress(OSError):  # a directory that became read-only: the next holder takes it over
                self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Close the file and leave it where it is: the kernel's lock lasts as long as any process has it open."""
        if self._file is not None:
            self._file.close()
            self._file = None


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in _LOCKS:
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def born(pid: int) -> float | None:
    """When the kernel started a process on this host, by its own count: another process with that number differs.

    None if there is no such process. On Linux these are ticks since the start of the system, which no change of the
    clock moves.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()  # a name may hold anything
        return int(fields[19])
    except (OSError, IndexError):
        pass
    try:
        return None if platform.system() == "Linux" else psutil.Process(pid).create_time()
    except psutil.Error:
        return None


_START = time.time()


def _started() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_START))

"""The one reader and the one writer of untrusted files.

What is read is a plain file of at most so many bytes: a link could name any file, a pipe or a device may never end.
What is written appears whole or not at all, and never through a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dcpg.errors import InUse, causes

DEEPEST = 50  # lists and tables inside each other; a configuration has 3
MOST_COPIED = 2**33  # bytes of a file that is copied because it has a second name
MOST_TABLES = 1_000_000  # lists and tables in one file: an empty list has 2 bytes and takes 60 of memory
MOST_COLUMNS = 2_000_000  # of all tables in one file
LARGEST_INTEGER = 2**64  # larger ones are in no file of this program, and fit no float


# errors that say nothing about a file and may be gone in a moment: too many are open, no memory, storage that is away
AWAY = frozenset((
    errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.ECONNRESET, errno.EINTR, errno.EBUSY,
    errno.ENOLCK,
))  # fmt: skip
FORBIDDEN = frozenset((errno.EACCES, errno.EPERM))  # permissions say nothing about what a file holds either


def storage_behind(error: BaseException | None) -> OSError | None:
    """The error of storage that may be back in a moment, if that is what an error is or came of."""
    return next((one for one in causes(error) if isinstance(one, OSError) and one.errno in AWAY), None)


class Unreadable(ValueError):
    """A file does not hold what it should; the message says why, without the path."""


class UnreadableNow(Unreadable):
    """A file cannot be read at this moment; what it holds is not known."""


# -- reading


def open_regular(path: Path) -> IO[bytes]:
    """Open a plain file for reading; a link, a pipe, a device or a folder raises OSError."""
    return open(path, "rb", opener=_plain)


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a plain file; OSError if it has more than `most`, or grows beyond that while it is read."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size) if size <= most else b""  # not `most`: so much memory would be taken for a small file
        while size <= most and (more := file.read(2**16)):  # it grows, or is one whose size is not known
            data += more
            size = len(data)
        if size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return data


def read_json(path: Path, most: int) -> Any:
    """The JSON data of a plain file. FileNotFoundError if there is none; all else that is wrong raises Unreadable.

    UnreadableNow if the storage refuses it for a reason that may pass.
    """
    try:
        data = read_regular(path, most)
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = UnreadableNow if error.errno in AWAY else Unreadable
        raise kind(error.strerror or str(error)) from None
    return parse_json(data)


def is_modest(data: bytes, tables: int = MOST_TABLES, columns: int = MOST_COLUMNS) -> bool:
    """Whether JSON text can have no more lists, tables and columns than these; others would take many times its size.

    Brackets and colons within strings are counted too.
    """
    return data.count(b"[") + data.count(b"{") <= tables and data.count(b":") <= columns


def parse_json(data: bytes) -> Any:
    """JSON data whose numbers are finite and whose nesting is shallow, or Unreadable."""
    if not is_modest(data):
        raise Unreadable("it has more lists, tables or columns than any file of this program")
    try:
        found = json.loads(data)
        _check_plain(found, DEEPEST)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    return found


def _check_plain(value: Any, deeper: int) -> None:
    if isinstance(value, dict | list):
        if not deeper:
            raise Unreadable("it is nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_plain(one, deeper - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Unreadable(f"it has the number {value}")
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise Unreadable("it has a number of more than 64 bits")


# -- writing


def open_appending(path: Path) -> IO[bytes]:
    """Open a plain file to write behind its end, without a buffer; it is made if there is none.

    A file with a second name (a hard link) is copied first, so that what has the other name stays as it is.
    """
    try:
        found = os.lstat(path)
    except OSError:
        found = None
    if found is not None and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        if found.st_size > MOST_COPIED:
            raise OSError(errno.EFBIG, f"it has a second name and more than {MOST_COPIED:,} bytes", str(path))
        with open_regular(path) as file:
            write_atomic(path, iter(lambda: file.read(2**20), b""))
    return open(path, "ab", buffering=0, opener=_plain)


def open_updating(path: Path) -> IO[bytes]:
    """Open a plain file to read and overwrite, without a buffer; it is made if there is none."""
    return open(path, "r+b", buffering=0, opener=lambda name, flags: _plain(name, flags | os.O_CREAT))


def own_folder(path: Path) -> Path:
    """Make a folder inside a run or a sweep; a link in its place raises OSError, because it leads elsewhere."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    path.mkdir(exist_ok=True)
    return path


def discard(path: Path) -> None:
    """Remove a folder with all that is in it, or whatever is in its place; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:  # rmtree would open it first, and wait for the other end of a pipe
            path.unlink(missing_ok=True)


def fsync_dir(path: Path) -> None:
    """Make renames and new files in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durable(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a new file that is on the disk when this returns. An old file or link is removed, never written through."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        for part in [data] if isinstance(data, bytes) else data:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace a file atomically: readers see the old contents or the new ones."""
    temporary = _temporary(path)
    try:
        write_durable(temporary, data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file of its own for a library that writes to a path; it takes the place of `path` at the end.

    If the block fails, `path` stays as it was. While it runs, another process that wants the same is refused.
    """
    temporary = _temporary(path)
    check_not_held(temporary, path)
    try:
        write_durable(temporary, b"")
        with held(temporary):
            yield temporary
        with open_regular(temporary) as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_dir(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file or folder that is being made, so that others see it; it is free again when this process ends."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with contextlib.suppress(OSError):  # some network storage has no such locks
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def check_not_held(path: Path, target: Path) -> None:
    """Refuse a target that another process is making now; what one that died has left at `path` is no reason."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(f"Another process is writing {target} now; wait for it, or write to another place.") from None
    except OSError:
        return
    finally:
        os.close(fd)


def dump(value: Any, *, indent: int | None = None) -> bytes:
    """JSON without NaN, as bytes."""
    return (json.dumps(value, allow_nan=False, indent=indent) + "\n").encode()


def _temporary(path: Path) -> Path:
    return path.with_name(f".tmp-{path.name}")


def _plain(path: str, flags: int) -> int:
    # without O_NONBLOCK, opening a pipe waits for its other end
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    return fd

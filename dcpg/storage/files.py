"""Durable and atomic writes of files, and safe reads."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any


def fsync_dir(path: Path) -> None:
    """Make renames and new files in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file that is on the disk when this returns. An old file or link is removed, never written through."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old contents or the new ones."""
    temporary = path.with_name(f".tmp-{path.name}")
    write_durable(temporary, data)
    os.replace(temporary, path)
    fsync_dir(path.parent)


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The bytes of a regular file. A link could name any file, and a pipe may never end: both raise OSError."""
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

"""What a Ray worker runs, and how it knows that it sees the driver's directory.

The driver keeps one file in the sweep's folder `nodes`. Its name holds a random nonce that every task is given. A node
that finds the name sees the same directory as the driver; one with another directory at this path, or with an old copy,
does not. That it may also write there is proved by taking the run's lock. The folder is listed, rather than the file
asked for: network storage may remember for a while that a file is absent, but reads a folder again when it is opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import secrets
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from dcpg.storage.files import AWAY
from dcpg.sweep.attempt import Attempt, could_not_run, not_started, run_attempt, storage_away
from dcpg.sweep.directory import SweepDirectory

PATIENCE = 60.0  # seconds that the driver's file may take to appear on slow network storage
POLL_SECONDS = 0.2  # between two looks at the folder meanwhile
STOP_SECONDS = 2.0  # between two looks for a request to stop, which all cost the shared storage something
FULL = (errno.ENOSPC, errno.EDQUOT)
DRIVER_FILE = re.compile(r"(ready|stop)-[0-9a-f]{32}")

# nonces of drivers whose directory this worker cannot use: further tasks are sent back without waiting
_unusable: set[str] = set()


class DriverFile:
    """The driver's file: `ready-NONCE`, or `stop-NONCE` once all attempts shall save and end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nonce = folder, secrets.token_hex(16)
        folder.mkdir(parents=True, exist_ok=True)
        self.remove()  # there is one driver at a time: these files are of drivers that were killed
        (folder / f"ready-{self.nonce}").touch()

    def ask_to_stop(self) -> None:
        """Rename the file, which works even on a full disk. One that somebody has removed is made anew.

        OSError if the sweep's directory itself is gone: the attempts do not look in a new one.
        """
        stop = self.folder / f"stop-{self.nonce}"
        try:
            os.replace(self.folder / f"ready-{self.nonce}", stop)
        except FileNotFoundError:
            if not SweepDirectory(self.folder.parent).runs.is_dir():
                raise
            self.folder.mkdir(exist_ok=True)
            stop.touch()

    def remove(self) -> None:
        for name in _names(self.folder):
            if DRIVER_FILE.fullmatch(name):
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()


def sees_driver(folder: Path, nonce: str, patience: float) -> bool:
    """Whether the driver's file appears in the folder; OSError if the storage is away all the time. Creates nothing."""
    end = time.monotonic() + patience
    while True:
        away: OSError | None = None
        try:
            if {f"ready-{nonce}", f"stop-{nonce}"} & set(os.listdir(folder)):
                return True
        except OSError as error:
            away = error if error.errno in AWAY else None
        if time.monotonic() > end:
            if away is not None:
                raise away
            return False
        time.sleep(POLL_SECONDS)


def stop_requested(folder: Path, nonce: str) -> bool:
    """Whether the driver asks all attempts to stop; storage that fails for a moment is no request."""
    return f"stop-{nonce}" in _names(folder)


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def carry_out(attempt: dict[str, Any], nonce: str) -> dict[str, Any]:
    """One attempt, as plain data: its outcome, or the node and host if these cannot use the sweep's directory.

    Ray imports this function by name, so that every node runs the dcpg that is installed there.
    """
    import ray

    given = Attempt(**attempt)
    folder = SweepDirectory(Path(given.root)).nodes
    unusable = {"unusable_node": ray.get_runtime_context().get_node_id(), "host": socket.gethostname()}
    try:
        if nonce in _unusable or not sees_driver(folder, nonce, PATIENCE):
            _unusable.add(nonce)
            return unusable
    except OSError as error:  # that says nothing about this node
        return dataclasses.asdict(storage_away(given, error))
    last_look = -STOP_SECONDS

    def should_stop() -> bool:
        nonlocal last_look
        if time.monotonic() - last_look < STOP_SECONDS:
            return False
        last_look = time.monotonic()
        return stop_requested(folder, nonce)

    if should_stop():
        return dataclasses.asdict(not_started(given))
    try:
        return dataclasses.asdict(run_attempt(given, should_stop))
    except Exception as error:
        refusal = _refusal(folder)
        if refusal is None or refusal.errno in FULL:  # the failure is the run's own, or the disk is full for all nodes
            return dataclasses.asdict(could_not_run(given, error))
        if refusal.errno in AWAY:
            return dataclasses.asdict(storage_away(given, refusal))
        _unusable.add(nonce)
        return unusable


def _refusal(folder: Path) -> OSError | None:
    """Why this node cannot write to the directory; None if it can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error

"""The lock of a run's or a sweep's directory, where the kernel's own lock does not decide."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dcpg.errors import InUse
from dcpg.storage import lock as locks
from dcpg.storage.files import dump
from dcpg.storage.lock import RECORD, Lock
from dcpg.training.stop import Watchdog

ELSEWHERE = {"host": "elsewhere", "pid": 7, "started": "2026-01-01T00:00:00Z", "beat": 3}


def test_every_record_has_the_same_length_and_the_file_is_never_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_bytes(b"x" * 2_000)  # whatever stood there
    lock, seen = Lock(tmp_path / "lock"), []
    lock.acquire()
    pwrite = os.pwrite

    def written(fd: int, data: bytes, offset: int) -> int:
        seen.append((tmp_path / "lock").read_bytes())
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", written)
    for _ in range(3):
        assert lock.beat()
    records = [*map(json.loads, seen), json.loads((tmp_path / "lock").read_bytes())]
    assert {len(record) for record in seen} == {RECORD}
    assert [record["beat"] for record in records] == [1, 2, 3, 4]
    assert {(record["host"], record["pid"]) for record in records} == {(socket.gethostname(), os.getpid())}
    lock.release()
    assert not (tmp_path / "lock").exists()


def test_who_was_taken_over_says_so_and_leaves_the_others_lock_alone(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    (tmp_path / "lock").write_bytes(dump(ELSEWHERE))  # another host thought that this process was dead
    assert not lock.beat()
    lock.release()
    assert json.loads((tmp_path / "lock").read_bytes()) == ELSEWHERE


def test_a_process_that_was_taken_over_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Ended(Exception):
        """Instead of the process."""

    def end(code: int) -> None:
        raise Ended(code)

    lock = Lock(tmp_path / "lock")
    lock.acquire()
    watchdog = Watchdog(lock, math.inf)
    (tmp_path / "lock").write_bytes(dump(ELSEWHERE))
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended) as ended:
        watchdog._watch()
    assert ended.value.args == (InUse.exit_code,)
    assert f"Another process has taken over {tmp_path}" in capsys.readouterr().err
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_storage_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(file: Any, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(locks, "FOREIGN_PATIENCE", 0.6)
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    first.acquire()  # nobody is there: at once
    with Watchdog(first, math.inf):
        monkeypatch.setattr(locks, "FOREIGN_PATIENCE", 5.0)
        with pytest.raises(InUse, match=f"in use by process {os.getpid()} on {socket.gethostname()}, which is alive"):
            second.acquire()
    monkeypatch.setattr(locks, "FOREIGN_PATIENCE", 0.6)
    began = time.monotonic()
    second.acquire()  # the heartbeat stands still
    assert time.monotonic() - began >= 0.6
    second.release()
    first.release()


def test_a_host_that_gets_another_name_keeps_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop.at-home")
    assert lock.beat()
    assert lock.beat()
    lock.release()
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_is_held_stays_held_when_it_has_a_second_name(tmp_path: Path) -> None:
    """Copies made of hard links share the lock of the run."""
    first = Lock(tmp_path / "lock")
    first.acquire()
    os.link(tmp_path / "lock", tmp_path / "copy")
    with pytest.raises(InUse):
        Lock(tmp_path / "lock").acquire()
    assert first.beat()
    first.release()
    os.link(tmp_path / "copy", tmp_path / "lock")
    second = Lock(tmp_path / "lock")
    before = (tmp_path / "copy").read_bytes()
    second.acquire()
    assert second.beat()
    assert (tmp_path / "copy").read_bytes() == before
    with pytest.raises(InUse):
        Lock(tmp_path / "lock").acquire()
    second.release()

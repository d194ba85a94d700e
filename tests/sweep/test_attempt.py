"""One attempt at a run, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dcpg.errors import BadInput
from dcpg.machine import cgroup
from dcpg.storage.lock import Lock
from dcpg.sweep.attempt import Attempt, last_lines, run_attempt


def test_an_attempt_that_is_stopped_before_it_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: real(["sleep", "1000"], **how))
    outcome = run_attempt(Attempt(str(tmp_path), "a", {}), lambda: True)
    assert (outcome.name, outcome.code, outcome.node) == ("a", 75, socket.gethostname())


@pytest.mark.parametrize(("after", "code"), [(4, -9), (5, 7)])
def test_a_process_that_the_system_kills_for_memory(
    after: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, begun, asked = subprocess.Popen, list[Any](), list[int]()

    def popen(words: list[str], **how: Any) -> Any:
        begun.append(real(["sh", "-c", "sleep 0.5; kill -9 $$"], **how))
        return begun[-1]

    def kills() -> int:
        asked.append(1)
        if begun[0].returncode is not None:
            return after
        return 3 if len(asked) == 1 else 4  # a neighbour is killed meanwhile, which says nothing about this one

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(cgroup, "kills", kills)
    assert run_attempt(Attempt(str(tmp_path), "a", {}), lambda: False).code == code


def test_an_attempt_waits_for_the_directory_and_for_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    holder = Lock(run / "lock")
    holder.acquire()
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return True

    assert run_attempt(Attempt(str(tmp_path), "a", {}), should_stop).code == 75
    assert asked == [1]
    holder.release()
    (run / "lock").mkdir()  # no lock can be made here, and waiting would not help
    with pytest.raises(BadInput, match="cannot be written to"):
        run_attempt(Attempt(str(tmp_path), "a", {}), should_stop)


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_bytes(b"\xff" * 10_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(100)))
    assert last_lines(log).splitlines() == [f"line {i}" for i in range(70, 100)]

"""One attempt at a run, in a process of its own."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dcpg.errors import BadInput
from dcpg.machine import cgroup
from dcpg.storage import files
from dcpg.storage.lock import Lock
from dcpg.sweep.attempt import Attempt, last_lines, run_attempt
from tests.sweep.fakes import planned

ROOT = Path(__file__).parents[2]


def attempt_in(root: Path) -> Attempt:
    """An attempt in a directory as the driver makes it."""
    (root / "runs").mkdir(exist_ok=True)
    return Attempt(str(root), "a", {})


def test_an_attempt_that_is_stopped_before_it_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: real(["sleep", "1000"], **how))
    outcome = run_attempt(attempt_in(tmp_path), lambda: True)
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
    assert run_attempt(attempt_in(tmp_path), lambda: False).code == code


def test_an_attempt_waits_for_the_directory_and_for_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    holder = Lock(run / "lock")
    holder.acquire()
    asked: list[int] = []

    def should_stop() -> bool:
        asked.append(1)
        return True

    assert run_attempt(attempt_in(tmp_path), should_stop).code == 75
    assert asked == [1]
    holder.release()
    (run / "lock").mkdir()  # no lock can be made here, and waiting would not help
    with pytest.raises(BadInput, match="cannot be written to"):
        run_attempt(attempt_in(tmp_path), should_stop)


@pytest.mark.parametrize("where", ["stat", "mkdir", "open"])
def test_storage_that_is_away_is_no_failure_of_the_run(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, real = attempt_in(tmp_path), getattr(os, where)

    def away(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).startswith(str(tmp_path)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *given, **more)

    monkeypatch.setattr(os, where, away)
    outcome = run_attempt(attempt, lambda: False)
    assert outcome.code is None
    assert os.strerror(errno.EIO) in outcome.last_lines


def test_a_sweep_that_was_moved_is_not_begun_again(tmp_path: Path) -> None:
    root = tmp_path / "mounted" / "sweep"
    outcome = run_attempt(Attempt(str(root), "a", {}), lambda: False)
    assert outcome.code is None
    assert f"{root / 'runs'} is not there" in outcome.last_lines
    assert not root.parent.exists()


@pytest.mark.faults
def test_a_process_that_cannot_reach_its_files_says_so_with_a_code_of_its_own(tmp_path: Path) -> None:
    (job,) = planned(methods="ppo", seeds=1, steps=128).jobs
    (tmp_path / "runs").mkdir()
    (tmp_path / "sitecustomize.py").write_text(AWAY.format(folder=str(tmp_path / "runs")))
    attempt = Attempt(str(tmp_path), job.name, job.config.to_json())
    outcome = run_attempt(attempt, lambda: False, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert outcome.code is None, outcome.last_lines
    assert "The run's files cannot be reached now" in outcome.last_lines
    (tmp_path / "sitecustomize.py").unlink()
    assert run_attempt(attempt, lambda: False, {"PYTHONPATH": f"{tmp_path}:{ROOT}"}).code == 0


AWAY = """
import errno, os
mkdir = os.mkdir
def away(path, *given, **more):
    if str(path).startswith({folder!r}):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
    return mkdir(path, *given, **more)
os.mkdir = away
"""


def test_what_lies_behind_an_error() -> None:
    gone = OSError(errno.ESTALE, "gone")

    def refuse() -> None:
        try:
            raise gone
        except OSError:
            raise BadInput("it cannot be read") from None

    with pytest.raises(BadInput) as caught:
        refuse()
    assert files.storage_behind(caught.value) is gone
    assert files.storage_behind(BadInput("a wrong word")) is None
    assert files.storage_behind(OSError(errno.ENOSPC, "full")) is None


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_bytes(b"\xff" * 10_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(100)))
    assert last_lines(log).splitlines() == [f"line {i}" for i in range(70, 100)]

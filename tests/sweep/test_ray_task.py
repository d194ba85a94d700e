"""A node gets runs only if it and the driver see the same directory, and if it may write there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcpg.sweep.attempt import Attempt, Outcome
from dcpg.sweep.ray import task
from dcpg.sweep.ray.task import DriverFile, carry_out, sees_driver, stop_requested

NOBODY = 65_534


@pytest.fixture(autouse=True)
def on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if on the node `abc`, with little patience."""
    context = SimpleNamespace(get_node_id=lambda: "abc")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(task, "PATIENCE", 0.3)


@pytest.fixture
def attempted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were attempted, all with success."""
    names: list[str] = []

    def succeed(attempt: Attempt, should_stop: Any) -> Outcome:
        names.append(attempt.name)
        return Outcome(attempt.name, 0, "here")

    monkeypatch.setattr(task, "run_attempt", succeed)
    return names


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users may read; pytest's own are private."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


@contextlib.contextmanager
def read_only(*folders: Path) -> Iterator[None]:
    """While this lasts, this process may only read in these folders."""
    user = os.geteuid()
    for folder in folders:
        folder.chmod(0o555)
    if user == 0:  # may write anywhere
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        for folder in folders:
            folder.chmod(0o755)


def plain(root: Path, name: str = "run") -> dict[str, Any]:
    return {"root": str(root), "name": name, "config": {}}


def test_a_node_that_sees_the_directory_gets_runs_and_nothing_is_left(tmp_path: Path, attempted: list[str]) -> None:
    file = DriverFile(tmp_path / "nodes")
    found = [carry_out(plain(tmp_path, name), file.nonce) for name in "abc"]
    assert [(row["name"], row["code"]) for row in found] == [("a", 0), ("b", 0), ("c", 0)]
    assert attempted == ["a", "b", "c"]
    assert os.listdir(file.folder) == [f"ready-{file.nonce}"]
    file.remove()
    assert os.listdir(file.folder) == []


def test_the_file_may_appear_late_on_slow_storage(tmp_path: Path) -> None:
    file = DriverFile(tmp_path / "here")
    (tmp_path / "nodes").mkdir()
    late = threading.Timer(0.5, shutil.copytree, (tmp_path / "here", tmp_path / "nodes"), {"dirs_exist_ok": True})
    late.start()
    assert not sees_driver(tmp_path / "nodes", file.nonce, 0.1)
    assert sees_driver(tmp_path / "nodes", file.nonce, 20.0)
    late.join()


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = DriverFile(tmp_path / "nodes")
    assert not sees_driver(tmp_path / "elsewhere" / "nodes", file.nonce, 0.3)
    assert not (tmp_path / "elsewhere").exists()


def test_another_directory_of_the_same_name_or_an_old_copy_gets_no_runs(tmp_path: Path, attempted: list[str]) -> None:
    old = DriverFile(tmp_path / "copy" / "nodes")
    file = DriverFile(tmp_path / "nodes")
    assert not sees_driver(old.folder, file.nonce, 0.3)
    assert "unusable_node" in carry_out(plain(tmp_path / "copy"), file.nonce)
    assert sees_driver(old.folder, old.nonce, 0.3)  # a driver, but not this one
    assert attempted == []
    assert os.listdir(tmp_path / "copy") == ["nodes"]
    assert os.listdir(old.folder) == [f"ready-{old.nonce}"]


def test_without_the_drivers_file_nobody_gets_runs(tmp_path: Path, attempted: list[str]) -> None:
    file = DriverFile(tmp_path / "nodes")
    file.remove()
    assert carry_out(plain(tmp_path), file.nonce)["unusable_node"] == "abc"
    assert attempted == []
    assert os.listdir(file.folder) == []


def test_a_node_that_may_only_read_gets_no_runs(public: Path) -> None:
    file = DriverFile(public / "nodes")
    (public / "runs" / "begun").mkdir(parents=True)
    before = sorted(public.rglob("*"))
    with read_only(public, public / "nodes", public / "runs", public / "runs" / "begun"):
        found = [carry_out(plain(public, name), file.nonce) for name in ("new", "begun")]
    assert [row["unusable_node"] for row in found] == ["abc"] * 2
    assert sorted(public.rglob("*")) == before


def test_a_run_that_cannot_be_written_is_not_the_nodes_fault(public: Path) -> None:
    file = DriverFile(public / "nodes")
    (public / "runs" / "others").mkdir(parents=True)
    (public / "nodes").chmod(0o777)
    with read_only(public / "runs", public / "runs" / "others"):
        found = [carry_out(plain(public, name), file.nonce) for name in ("new", "others", "../../etc")]
    assert [row["code"] for row in found] == [2, 2, 2]
    for row, words in zip(found, ("cannot be written to", "cannot be written to", "cannot be the name"), strict=True):
        assert words in row["last_lines"]
    assert os.listdir(file.folder) == [f"ready-{file.nonce}"]


def test_a_full_disk_is_not_the_nodes_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **how: Any) -> Any:
        raise OSError(28, "No space left on device")

    file = DriverFile(tmp_path / "nodes")
    monkeypatch.setattr(task, "run_attempt", full)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    found = carry_out(plain(tmp_path), file.nonce)
    assert (found["code"], "No space left" in found["last_lines"]) == (1, True)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_storage_that_is_away_is_not_the_nodes_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempted: list[str], number: int
) -> None:
    def away(*given: Any, **how: Any) -> Any:
        raise OSError(number, os.strerror(number))

    file = DriverFile(tmp_path / "nodes")
    with monkeypatch.context() as changed:
        changed.setattr(os, "listdir", away)
        found = carry_out(plain(tmp_path), file.nonce)
    assert (found["code"], "is away" in found["last_lines"], attempted) == (None, True, [])
    with monkeypatch.context() as changed:
        changed.setattr(task, "run_attempt", away)
        changed.setattr(tempfile, "TemporaryFile", away)
        assert carry_out(plain(tmp_path), file.nonce)["code"] is None
    assert carry_out(plain(tmp_path), file.nonce)["code"] == 0
    assert attempted == ["run"]


def test_a_stop_is_seen_by_this_drivers_attempts_alone(tmp_path: Path, attempted: list[str]) -> None:
    file = DriverFile(tmp_path / "nodes")
    assert not stop_requested(file.folder, file.nonce)
    file.ask_to_stop()
    assert stop_requested(file.folder, file.nonce)
    assert not stop_requested(file.folder, "0" * 32)
    assert not stop_requested(tmp_path / "elsewhere", file.nonce)
    assert sees_driver(file.folder, file.nonce, 600.0)  # without a wait
    found = carry_out(plain(tmp_path), file.nonce)
    assert (found["name"], found["code"], found["last_lines"]) == ("run", 75, "It was asked to stop before it began.")
    assert attempted == []
    assert os.listdir(tmp_path) == ["nodes"]


def test_a_stop_reaches_an_attempt_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DriverFile(tmp_path / "nodes")
    monkeypatch.setattr(task, "STOP_SECONDS", 0.0)

    def wait(attempt: Attempt, should_stop: Any) -> Outcome:
        assert not should_stop()
        file.ask_to_stop()
        return Outcome(attempt.name, 75 if should_stop() else 0, "here")

    monkeypatch.setattr(task, "run_attempt", wait)
    assert carry_out(plain(tmp_path), file.nonce)["code"] == 75


def test_the_next_driver_clears_what_one_that_was_killed_left_and_nothing_else(tmp_path: Path) -> None:
    first = DriverFile(tmp_path / "nodes")
    first.ask_to_stop()
    (first.folder / "notes.txt").write_text("mine")
    second = DriverFile(tmp_path / "nodes")
    assert sorted(os.listdir(second.folder)) == ["notes.txt", f"ready-{second.nonce}"]
    assert first.nonce != second.nonce


def test_a_worker_that_does_not_see_the_directory_waits_once_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempted: list[str]
) -> None:
    waited = []

    def counted(*given: Any) -> bool:
        waited.append(given)
        return sees_driver(*given)

    monkeypatch.setattr(task, "sees_driver", counted)
    file = DriverFile(tmp_path / "here" / "nodes")
    found = [carry_out(plain(tmp_path / "elsewhere"), file.nonce) for _ in range(3)]
    assert [row["unusable_node"] for row in found] == ["abc"] * 3
    assert len(waited) == 1
    assert attempted == []
    assert not (tmp_path / "elsewhere").exists()

    # the next driver is looked for anew
    other = DriverFile(tmp_path / "here" / "nodes")
    assert carry_out(plain(tmp_path / "here"), other.nonce)["code"] == 0
    assert attempted == ["run"]

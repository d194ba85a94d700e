"""A node gets runs only when it and the driver see the same directory."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcpg.sweep.ray import task
from dcpg.sweep.ray.handshake import Desk, asked_to_stop, sees


def never() -> bool:
    return False


@contextmanager
def served(desk: Desk) -> Iterator[None]:
    """The driver, which looks for answers now and then."""
    done = threading.Event()

    def serve() -> None:
        while not done.wait(0.02):
            desk.confirm()

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    done.set()
    thread.join()


def several(count: int, ask: Callable[[int], bool]) -> list[bool]:
    """Attempts that begin at the same time."""
    found = [False] * count

    def work(i: int) -> None:
        found[i] = ask(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_nodes_that_see_the_directory_pass_and_nothing_is_left(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "nodes")
    with served(desk):
        assert several(6, lambda i: sees(desk.folder, desk.driver, "ab"[i % 2], 20, never)) == [True] * 6
    kept = {f"ready-{desk.driver}", f"secret-{desk.driver}", f"seen-{desk.driver}-a", f"seen-{desk.driver}-b"}
    assert set(os.listdir(desk.folder)) == kept
    assert sees(desk.folder, desk.driver, "a", 20, never)  # without another question
    desk.close()
    assert os.listdir(desk.folder) == []


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "nodes")
    with served(desk):
        assert not sees(tmp_path / "elsewhere" / "nodes", desk.driver, "a", 0.3, never)
    assert not (tmp_path / "elsewhere").exists()


def test_another_directory_of_the_same_name_or_an_old_copy_does_not_pass(tmp_path: Path) -> None:
    old = Desk(tmp_path / "copy" / "nodes")
    secret = (old.folder / f"secret-{old.driver}").read_bytes()
    desk = Desk(tmp_path / "nodes")
    with served(desk):
        assert not sees(old.folder, desk.driver, "a", 0.3, never)
        (old.folder / f"secret-{desk.driver}").write_bytes(secret)  # a secret, but not this driver's
        assert not sees(old.folder, desk.driver, "a", 0.3, never)
    assert [name for name in os.listdir(old.folder) if name.startswith("answer")] == []


def test_a_wrong_answer_is_not_confirmed(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "nodes")
    (desk.folder / f"answer-{desk.driver}-a-0123").write_text("")  # begun, and not yet written
    (desk.folder / f"answer-{desk.driver}-b-0123").write_text("guessed")
    desk.confirm()
    assert [name for name in os.listdir(desk.folder) if name.startswith("seen")] == []


def test_without_a_driver_that_confirms_nobody_passes(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "nodes")
    assert not sees(desk.folder, desk.driver, "a", 0.3, never)
    assert set(os.listdir(desk.folder)) == {f"ready-{desk.driver}", f"secret-{desk.driver}"}


def test_a_stop_is_seen_by_this_drivers_attempts_alone_and_ends_the_wait(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "nodes")
    assert not asked_to_stop(desk.folder, desk.driver)
    desk.stop()
    assert asked_to_stop(desk.folder, desk.driver)
    assert not asked_to_stop(desk.folder, "0" * 16)
    assert not sees(desk.folder, desk.driver, "a", 600, lambda: asked_to_stop(desk.folder, desk.driver))


def test_the_next_driver_clears_what_one_that_was_killed_left_and_nothing_else(tmp_path: Path) -> None:
    first = Desk(tmp_path / "nodes")
    first.stop()
    (first.folder / "notes.txt").write_text("mine")
    second = Desk(tmp_path / "nodes")
    assert sorted(os.listdir(second.folder)) == ["notes.txt", f"ready-{second.driver}", f"secret-{second.driver}"]
    assert first.driver != second.driver


def test_a_worker_that_does_not_see_the_directory_waits_once_and_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(get_node_id=lambda: "abc")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(task, "PATIENCE", 0.3)
    waited = []

    def counted(*given: Any) -> bool:
        waited.append(given)
        return sees(*given)

    monkeypatch.setattr(task, "sees", counted)
    desk = Desk(tmp_path / "here" / "nodes")
    order = {"root": str(tmp_path / "elsewhere"), "name": "run", "config": {}}
    found = [task.carry_out(order, desk.driver) for _ in range(3)]
    assert [row["blind"] for row in found] == ["abc"] * 3
    assert len(waited) == 1
    assert not (tmp_path / "elsewhere").exists()

    # another driver asks anew; one that stops gets an outcome at once
    other = Desk(tmp_path / "here" / "nodes")
    other.stop()
    found = [task.carry_out({**order, "root": str(tmp_path / "here")}, other.driver)]
    assert [(row["name"], row["code"], row["last_lines"]) for row in found] == [
        ("run", 75, "It was asked to stop before it began.")
    ]
    assert sorted(os.listdir(tmp_path / "here")) == ["nodes"]

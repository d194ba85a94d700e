"""The index: what it counts, and how it survives damage."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from dcpg.errors import StorageFailed
from dcpg.storage import files
from dcpg.storage.rows import Event
from dcpg.sweep.index import FIRST_CHECKPOINT, Index
from tests.sweep.fakes import end_attempt, indexed, place


def test_three_failures_in_a_row_without_progress(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.jsonl")
    for code, at, failures in [
        (1, "", 1), (-9, FIRST_CHECKPOINT, 2), (5, place(128), 0), (-6, place(128), 1), (75, place(128), 1),
        (None, place(128), 1), (1, place(128, 1), 0), (1, place(128, 1), 1), (3, place(128, 1), 2),
    ]:  # fmt: skip
        assert index["a"].reason_to_give_up == ""
        end_attempt(index, code, at)
        assert index["a"].failures == failures
    assert index["a"].reason_to_give_up == ""
    end_attempt(index, 4, place(128, 1))
    assert "failed 3 times without progress (last exit code 4)" in index["a"].reason_to_give_up
    again = Index(tmp_path / "index.jsonl")  # another driver counts the same
    assert again["a"] == index["a"]
    assert again["a"].attempts == 10
    again.append(Event(run="a", event="failed"))
    assert Index(tmp_path / "index.jsonl")["a"].failed
    again.append(Event(run="a", event="retry"))
    assert (again["a"].failed, again["a"].failures, again["a"].reason_to_give_up) == (False, 0, "")


def test_memory_and_lost_workers(tmp_path: Path) -> None:
    index = Index(tmp_path / "index.jsonl")
    end_attempt(index, 7, place(128))
    assert "ran out of memory" in index["a"].reason_to_give_up
    for lost in range(1, 10):
        end_attempt(index, None, FIRST_CHECKPOINT, "b")
        assert (index["b"].lost, index["b"].failures, index["b"].reason_to_give_up) == (lost, 0, "")
    end_attempt(index, None, place(128), "b")
    assert index["b"].lost == 0
    for _ in range(10):
        assert index["b"].reason_to_give_up == ""
        end_attempt(index, None, place(128), "b")
    assert "10 times without progress" in index["b"].reason_to_give_up
    end_attempt(index, -9, place(256), "c")
    end_attempt(index, -9, place(128), "c")  # its newest checkpoint was damaged
    end_attempt(index, -9, place(256), "c")  # here it was before: no progress
    assert index["c"].failures == 2


def test_a_torn_or_damaged_index(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    index = Index(path)
    end_attempt(index, 1)
    end_attempt(index, 1)
    index.append(Event(run="b", event="finished"))
    whole = path.read_bytes()
    for damage in (
        whole + b'{"run": "a", "event": "fin',
        whole + b'{"run": "a", "event": "finished"}',  # no end of line: it may be half of another
        b"\x00\xff\n" + whole,
        whole + b"[]\n" + b'{"run": 3, "event": "finished"}\n' + b'{"run": "a", "event": "won"}\n',
        whole + b'{"run": "a", "event": "ended", "code": "7"}\n' + b'{"run": "a", "event": "ended", "place": 3}\n',
        whole + b'{"run": "a", "event": "started", "attempt": "1"}\n' + b'{"run": "a", "event": "ended", "node": 3}\n',
        whole + b'{"run": "a", "event": ' + b"[" * 100_000 + b"\n",
    ):
        path.write_bytes(damage)
        assert Index(path, writable=False)["a"].failures == 2
        assert path.read_bytes() == damage
        assert Index(path)["a"].failures == 2
        assert list(map(json.loads, path.read_bytes().splitlines())) == [
            {"code": None, "place": "", "last_lines": "", **row} for row in map(json.loads, whole.splitlines())
        ]
    path.unlink()
    assert Index(path).events == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_an_index_that_cannot_be_read_is_not_written_anew(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index.jsonl"
    end_attempt(Index(path), 1)
    whole = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(files, "_plain", lambda *given: raise_(OSError(number, os.strerror(number))))
        with pytest.raises(StorageFailed, match=os.strerror(number)):
            Index(path)
    assert path.read_bytes() == whole
    assert Index(path)["a"].failures == 1


def raise_(error: Exception) -> NoReturn:
    raise error


def test_finished_lines_follow_the_directories(tmp_path: Path) -> None:
    path = tmp_path / "index.jsonl"
    index = Index(path)
    index.reconcile({"a": True, "b": False})
    assert indexed(path) == [("a", "finished")]
    index.append(Event(run="b", event="finished"))
    index.append(Event(run="old", event="finished"))
    path.write_bytes(path.read_bytes() * 2)
    for _ in range(2):
        index = Index(path)
        index.reconcile({"a": True, "b": False, "c": True})
        assert indexed(path) == [("a", "finished"), ("old", "finished"), ("c", "finished")]
    assert [index[name].finished for name in "abc"] == [True, False, True]


def test_the_bytes_of_each_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *given: "NOW")
    index = Index(tmp_path / "index.jsonl")
    end_attempt(index, -9, place(128))
    index.append(Event(run="a", event="failed", code=None, place="", last_lines='"\u00e4"'))
    index.append(Event(run="a", event="retry"))
    index.append(Event(run="a", event="finished", code=0, node="n", place=place(512)))
    index.reconcile({"b": True})
    assert (tmp_path / "index.jsonl").read_text().splitlines() == [
        '{"run": "a", "event": "started", "attempt": 1, "time": "NOW"}',
        '{"run": "a", "event": "ended", "attempt": 1, "code": -9, "node": "n",'
        ' "place": "000000000128-00.000.000000-00001", "last_lines": "last", "time": "NOW"}',
        '{"run": "a", "event": "failed", "attempt": 1, "code": null, "place": "", "last_lines": "\\"\\u00e4\\"",'
        ' "time": "NOW"}',
        '{"run": "a", "event": "retry", "attempt": 1, "time": "NOW"}',
        '{"run": "a", "event": "finished", "attempt": 1, "code": 0, "node": "n",'
        ' "place": "000000000512-00.000.000000-00001", "time": "NOW"}',
        '{"run": "b", "event": "finished", "attempt": 0, "time": "NOW"}',
    ]

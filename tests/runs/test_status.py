"""The status of a run, from its directory alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dcpg.errors import BadInput
from dcpg.runs.status import RunStatus, is_running, last_rows, status_of
from dcpg.storage.files import dump
from dcpg.storage.lock import Lock, born
from dcpg.storage.rows import Timing
from dcpg.sweep.directory import SweepDirectory
from tests.sweep.fakes import evaluation, place, planned, summary, timing, write_run


def test_a_run_that_waits_goes_on_and_finishes(tmp_path: Path) -> None:
    job = planned().jobs[0]
    path = SweepDirectory(tmp_path).run(job.name)
    assert status_of(job.config, path) == RunStatus("waiting", 0, "", None, None, 0.0)
    path.mkdir(parents=True)
    assert status_of(job.config, path).state == "waiting"
    write_run(tmp_path, job, place(256, 3))
    write_run(tmp_path, job, place(128))
    (path / "checkpoints" / ".tmp-x").mkdir()
    (path / "checkpoints" / "shared").mkdir()
    (path / "timing.jsonl").write_bytes(timing(384, 50.5) + b'{"steps": 512, "steps_p')
    assert status_of(job.config, path) == RunStatus("interrupted", 384, place(256, 3), 3.0, 2.0, 50.5)
    phasic = planned().jobs[1]  # a phase is two rollouts: one fast, one with an auxiliary phase
    rows = [timing(128 * (i + 1), speed) for i, speed in enumerate((7.0, 90.0, 10.0))]
    other = write_run(tmp_path, phasic, place(256))
    (other / "timing.jsonl").write_bytes(b"".join(rows))
    assert status_of(phasic.config, other).steps_per_s == pytest.approx(2 / (1 / 90 + 1 / 10))
    (path / "timing.jsonl").unlink()
    assert status_of(job.config, path).steps == 256
    write_run(tmp_path, job, place(512), finished=True)
    assert status_of(job.config, path) == RunStatus("finished", 512, place(512), 3.0, 2.0, 40.0)


def test_a_run_is_finished_only_with_all_of_it(tmp_path: Path) -> None:
    job = planned().jobs[0]
    path = write_run(tmp_path, job, place(512), finished=True)
    kept = {name: (path / name).read_bytes() for name in ("summary.json", "eval.jsonl")}
    for name, content in [
        ("summary.json", summary(job, "finished", 384)),
        ("summary.json", summary(job, "running", 512)),
        ("summary.json", b'{"status": "fini'),
        ("summary.json", b"[]"),
        ("summary.json", dump({"status": "finished", "steps": 512})),  # the other columns are missing
        ("eval.jsonl", evaluation(384, 1.0, 1.0)),
        ("eval.jsonl", dump({"steps": 512, "test_return": 1.0})),
        ("eval.jsonl", b""),
        ("eval.jsonl", b'{"steps": 512, "test'),
    ]:
        (path / name).write_bytes(content)
        assert status_of(job.config, path).state == "interrupted", content
        (path / name).write_bytes(kept[name])
    (path / "summary.json").unlink()
    assert status_of(job.config, path).state == "interrupted"


def test_another_run_in_the_directory_is_refused(tmp_path: Path) -> None:
    job = planned().jobs[0]
    path = SweepDirectory(tmp_path).run(job.name)
    for changes, said in [
        ({"steps": 1024}, "steps=1024, the sweep 512"),
        ({"game": "maze"}, "game=maze, the sweep starpilot"),
        ({"machine": {**job.config.to_json()["machine"], "threads": 2}}, "machine.threads=2, the sweep 1"),
        ({"init": "runs/other"}, "began with the weights of another"),
    ]:
        write_run(tmp_path, job, place(128), **changes)
        with pytest.raises(BadInput) as error:
            status_of(job.config, path)
        assert said in str(error.value)
        assert job.name in str(error.value)
    write_run(tmp_path, job, place(128), nonsense=1)  # nobody's
    found = status_of(job.config, path)
    assert (found.state, "Unknown setting 'nonsense'" in found.note) == ("damaged", True)
    write_run(tmp_path, job, place(128), keep_every=256, checkpoints={"minutes": 1.0}, check_room=False)
    assert status_of(job.config, path).state == "interrupted"  # what decides no result may differ


def test_the_last_rows_of_a_long_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert last_rows(file, Timing) == []
    short, *many = [Timing(steps=i, steps_per_s=2.0, seconds={}) for i in range(1, 5_001)]
    long = Timing(steps=1, steps_per_s=2.0, seconds={"x" * 100_000: 1.0})
    file.write_bytes(dump(short.plain()) + dump(long.plain()))
    assert last_rows(file, Timing) == [long]
    assert last_rows(file, Timing, 2) == last_rows(file, Timing, 5) == [short, long]
    file.write_bytes(dump(short.plain()) + b'{"text": "' + b"x" * 100_000)
    assert last_rows(file, Timing) == [short]
    file.write_bytes(b"".join(dump(row.plain()) for row in many) + b"{")
    assert last_rows(file, Timing) == many[-1:]
    assert last_rows(file, Timing, 1_000) == many[-1_000:]


@pytest.mark.parametrize(
    "row",
    [
        b'{"steps": 384}', b'{"steps": "384", "steps_per_s": 1.0, "seconds": {}}', b"[]", b"[" * 100_000, b"\xff\x00",
        b'{"steps": 384, "steps_per_s": NaN, "seconds": {}}', b'{"steps": 384, "steps_per_s": 1e400, "seconds": {}}',
        b'{"steps": -1, "steps_per_s": 1.0, "seconds": {}}', b'{"steps": true, "steps_per_s": 1.0, "seconds": {}}',
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read_count_as_absent(tmp_path: Path, row: bytes) -> None:
    job = planned().jobs[0]
    path = write_run(tmp_path, job, place(256))
    (path / "timing.jsonl").write_bytes(row + b"\n")
    (path / "eval.jsonl").write_bytes(row + b"\n")
    assert status_of(job.config, path) == RunStatus("interrupted", 256, place(256))
    (path / "timing.jsonl").write_bytes(timing(128, 5.0) + row + b"\n")
    assert status_of(job.config, path).steps == 128


def test_a_process_number_that_was_given_away_is_not_running(tmp_path: Path) -> None:
    """The number in a lock that was left behind belongs to a living process, but not to the one that held it."""
    lock = tmp_path / "lock"
    held = Lock(lock)
    held.acquire()
    record = json.loads(lock.read_bytes())
    held.release()
    assert record["born"] == born(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert born(other.pid) is not None
        for holder, running in (
            (record, True),
            (record | {"pid": other.pid}, False),
            (record | {"pid": other.pid, "born": born(other.pid)}, True),
            ({key: value for key, value in record.items() if key != "born"} | {"pid": other.pid}, True),  # older
            (record | {"born": None}, False),
            (record | {"born": "x"}, False),
            (record | {"pid": "x"}, False),
            (record | {"pid": -1}, False),
            (record | {"pid": 10**30}, False),
            (record | {"pid": float("inf")}, False),
            (record | {"pid": None}, False),
        ):
            lock.write_text(json.dumps(holder))
            assert is_running(tmp_path) is running, holder
        other.communicate(b"\n")
    assert born(other.pid) is None
    held = Lock(lock)
    held.acquire()  # whoever resumes the run takes it over at once
    assert json.loads(lock.read_bytes()) == record
    held.release()


def test_whether_a_run_is_running(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not is_running(tmp_path)
    held = Lock(lock)
    held.acquire()
    assert is_running(tmp_path)
    held.release()
    assert not is_running(tmp_path)
    lock.write_bytes(dump({"host": socket.gethostname(), "pid": 2**22 + 1}))
    assert not is_running(tmp_path)
    lock.write_bytes(dump({"host": "elsewhere", "pid": 1}))
    assert is_running(tmp_path)
    os.utime(lock, (1, 1))
    assert not is_running(tmp_path)
    lock.write_bytes(b"{")
    assert not is_running(tmp_path)

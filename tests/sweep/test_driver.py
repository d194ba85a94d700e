"""The driver, with an engine in memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dcpg.errors import BadInput, DcpgError, Stopped, StorageFailed, SweepIncomplete, Unavailable
from dcpg.machine.automatic import settled
from dcpg.storage import files
from dcpg.storage.lock import Lock
from dcpg.sweep import driver, view
from dcpg.sweep.attempt import Outcome
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.driver import Driver, _patience
from dcpg.sweep.index import Index, RunHistory
from dcpg.sweep.view import driver_of, statuses
from tests.cli.test_cli import run as command
from tests.sweep.fakes import NAMES, Memory, Quiet, drive_once, end_attempt, indexed, place, planned, write_run


def test_all_runs_once(tmp_path: Path) -> None:
    engine, quiet, now = drive_once(tmp_path)
    assert engine.begun == NAMES
    assert engine.closed
    assert now.counts == {"done": 4, "running": 0, "waiting": 0, "failed": 0}
    assert (now.steps, now.steps_total, now.seconds_left) == (2048, 2048, 0.0)
    assert now.best() == {"starpilot": [("ppo", 2.5, 2), ("dcpg", 2.5, 2)]}
    assert quiet.said[:2] == ["memory", "starpilot-ppo-0 is done: return on unseen levels 2.00."]
    events = indexed(tmp_path / "index.jsonl")
    assert events[:3] == [(NAMES[0], event) for event in ("started", "ended", "finished")]
    assert sorted(run for run, event in events if event == "finished") == sorted(NAMES)
    before = (tmp_path / "index.jsonl").read_bytes()
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == []
    assert now.counts["done"] == 4
    assert (tmp_path / "index.jsonl").read_bytes() == before


def test_failures_progress_and_giving_up(tmp_path: Path) -> None:
    script: dict[str, list[tuple[int | None, int]]] = {
        NAMES[0]: [(1, 0), (-6, 0), (5, 0), (0, 512)],  # never gets anywhere: the fourth try is not made
        NAMES[1]: [(1, 0), (-9, 128), (1, 128), (1, 128), (-9, 256), (75, 256), (0, 512)],
        NAMES[2]: [(7, 128), (0, 512)],  # no memory: not tried again
        NAMES[3]: [(None, 0)] * 9 + [(0, 512)],  # nodes die; it is not its fault
    }
    engine, quiet, end = drive_once(tmp_path, script)
    assert {name: engine.begun.count(name) for name in NAMES} == dict(zip(NAMES, (3, 7, 1, 10), strict=True))
    assert isinstance(end, SweepIncomplete)
    assert end.exit_code == 1
    for words in ("2 of 4 runs are done, 2 failed: starpilot-ppo-0, starpilot-ppo-1.", "dcpg sweep x --retry", "logs"):
        assert words in str(end)
    said = "\n".join(quiet.said)
    assert "starpilot-ppo-0 is given up: it failed 3 times without progress (last exit code 5)" in said
    assert "starpilot-ppo-1 is given up: it ran out of memory, and would again" in said
    assert "starpilot-ppo-0 was killed by signal 6 and is tried again (2 without progress)." in said
    index = Index(tmp_path / "index.jsonl")
    assert [index[name].failed for name in NAMES] == [True, False, True, False]
    assert [index[name].attempts for name in NAMES] == [3, 7, 1, 10]
    failed = [event for event in index.events if event.event == "failed"]
    assert [(event.run, event.code, event.last_lines) for event in failed] == [
        (NAMES[2], 7, f"last lines of {NAMES[2]}"), (NAMES[0], 5, f"last lines of {NAMES[0]}"),
    ]  # fmt: skip

    engine, _, end = drive_once(tmp_path)  # what was given up stays so
    assert engine.begun == []
    assert isinstance(end, SweepIncomplete)
    engine, _, end = drive_once(tmp_path, {NAMES[0]: [(1, 0), (1, 0), (0, 512)]}, retry=True)
    assert engine.begun == [NAMES[0], NAMES[2], NAMES[0], NAMES[0]]
    assert end.counts["done"] == 4
    events = indexed(tmp_path / "index.jsonl")
    assert sorted(run for run, event in events if event == "finished") == sorted(NAMES)


def test_lost_ten_times(tmp_path: Path) -> None:
    engine, quiet, end = drive_once(tmp_path, {NAMES[0]: [(None, 0)] * 11})
    assert engine.begun.count(NAMES[0]) == 10
    assert isinstance(end, SweepIncomplete)
    assert any(
        "its worker or its storage was lost, or it was stopped, 10 times without progress" in text
        for text in quiet.said
    )


@pytest.mark.parametrize("code", [0, 75])
def test_an_end_without_a_result_or_a_failure_is_not_repeated_for_ever(code: int, tmp_path: Path) -> None:
    engine, _, end = drive_once(tmp_path, {NAMES[0]: [(code, 0)] * 11})
    assert engine.begun.count(NAMES[0]) == 10
    assert isinstance(end, SweepIncomplete)


@pytest.mark.parametrize("code", [2, 6])
def test_what_refuses_every_run_stops_the_sweep_and_gives_nobody_up(code: int, tmp_path: Path) -> None:
    engine, _, end = drive_once(tmp_path, {name: [(code, 0)] * 5 for name in NAMES})
    assert engine.begun == NAMES[:3]
    assert engine.stopped
    assert isinstance(end, SweepIncomplete)
    assert "3 runs in a row could not begin" in str(end)
    assert f"The last one said: last lines of {NAMES[2]} When the cause is gone: dcpg sweep x" in str(end)
    engine, _, now = drive_once(tmp_path, {NAMES[1]: [(code, 0), (0, 512)]})  # one alone is its own matter
    assert engine.begun == [*NAMES, NAMES[1]]
    assert now.counts["done"] == 4


def test_a_run_that_failed_waits_before_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RETRY_SECONDS", 0.3)
    began: dict[str, list[float]] = {}
    engine = Memory(tmp_path, {NAMES[0]: [(1, 0), (1, 0), (0, 512)]}, lambda: None)
    engine.then = lambda: began.setdefault(engine.begun[-1], []).append(time.monotonic())
    Driver(planned(), tmp_path, Quiet()).run(engine.make, "dcpg sweep x")
    first, second, third = began[NAMES[0]]
    assert second - first >= 0.3
    assert third - second >= 0.6


def test_a_damaged_run_stops_nobody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, planned().jobs[1], place(128))
    (path / "config.json").write_text("{")
    engine, _, end = drive_once(tmp_path)
    assert engine.begun == [name for name in NAMES if name != NAMES[1]]
    assert isinstance(end, SweepIncomplete)
    assert f"3 of 4 runs are done, 1 failed: {NAMES[1]}." in str(end)
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path), "--json")
    assert code == 0
    (row,) = [row for row in json.loads(out)["runs"] if row["status"] == "failed"]
    assert (row["name"], "cannot be read" in row["last_lines"]) == (NAMES[1], True)


def test_a_result_counts_however_its_process_ended(tmp_path: Path) -> None:
    engine, _, end = drive_once(tmp_path, {NAMES[0]: [(-9, 512)]})
    assert engine.begun == NAMES
    assert end.counts["done"] == 4


class Died(Exception):
    """Raised to kill the driver."""


def test_counts_survive_the_driver(tmp_path: Path) -> None:
    calls = []

    def die() -> None:
        calls.append(1)
        if len(calls) == 9:
            raise Died

    failing: dict[str, list[tuple[int | None, int]]] = {name: [(1, 0)] * 5 for name in NAMES}
    with pytest.raises(Died):
        drive_once(tmp_path, failing, then=die)
    assert [Index(tmp_path / "index.jsonl")[name].failures for name in NAMES] == [2, 2, 2, 2]
    engine, _, _ = drive_once(tmp_path, {name: [(1, 0)] * 5 for name in NAMES})
    assert engine.begun == NAMES  # one more try each: the ninth attempt's end was never heard of


def test_a_driver_that_died_before_it_gave_up(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    index = Index(tmp_path / "index.jsonl")
    end_attempt(index, 7, run=NAMES[0])
    engine, _, end = drive_once(tmp_path)
    assert engine.begun == NAMES[1:]
    assert isinstance(end, SweepIncomplete)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_stops_the_sweep(tmp_path: Path, name: str) -> None:
    engine, _, end = drive_once(tmp_path, then=lambda: os.kill(os.getpid(), signal.Signals[name]))
    assert isinstance(end, Stopped)
    assert end.exit_code == 75
    assert engine.stopped
    assert engine.begun == NAMES[:1]
    assert str(end) == (f"Stopped by {name}, and the runs are saved; 1 of 4 runs are done. Go on with: dcpg sweep x")
    index = Index(tmp_path / "index.jsonl")
    assert [index[n].attempts for n in NAMES] == [1, 0, 0, 0]  # the others never began
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == NAMES[1:]
    assert now.counts["done"] == 4


def test_one_driver_per_directory(tmp_path: Path) -> None:
    held = Lock(tmp_path / "lock")
    held.acquire()
    with pytest.raises(BadInput, match="is in use by process"):
        Driver(planned(), tmp_path, Quiet()).run(lambda jobs: Memory(tmp_path, {}, lambda: None), "")
    held.release()
    assert list(tmp_path.iterdir()) == []


def test_more_seeds_run_alone_and_another_configuration_is_refused(tmp_path: Path) -> None:
    drive_once(tmp_path)
    engine, _, now = drive_once(tmp_path, plan=planned(seeds=3))
    assert engine.begun == ["starpilot-ppo-2", "starpilot-dcpg-2"]
    assert now.counts["done"] == 6
    other = planned(seeds=4, set={"dcpg": {"algorithm": {"E_aux": 3}}})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=r"starpilot-dcpg-0: it has algorithm\.E_aux=6, the sweep 3"):
        drive_once(tmp_path, plan=other)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_more_steps_go_on_and_fewer_are_refused(tmp_path: Path) -> None:
    drive_once(tmp_path, {NAMES[2]: [(7, 256)]})
    engine, quiet, end = drive_once(tmp_path, {name: [(0, 1024)] for name in NAMES}, plan=planned(steps=1024))
    assert engine.begun == [name for name in NAMES if name != NAMES[2]]  # that one was given up
    assert quiet.said[0] == "4 runs of fewer steps will go on to the sweep's number of steps."
    assert isinstance(end, SweepIncomplete)
    assert "3 of 4 runs are done, 1 failed" in str(end)
    finished = [run for run, event in indexed(tmp_path / "index.jsonl") if event == "finished"]
    assert sorted(finished) == sorted(engine.begun)
    with pytest.raises(BadInput, match="starpilot-ppo-0: it has steps=1024, the sweep 512"):
        drive_once(tmp_path)


def test_a_lost_index_and_lost_results(tmp_path: Path) -> None:
    drive_once(tmp_path)
    (tmp_path / "index.jsonl").unlink()
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == []
    assert now.counts["done"] == 4
    assert indexed(tmp_path / "index.jsonl") == [(name, "finished") for name in NAMES]
    shutil.rmtree(tmp_path / "runs" / NAMES[1])
    engine, _, now = drive_once(tmp_path)
    assert engine.begun == [NAMES[1]]
    finished = [run for run, event in indexed(tmp_path / "index.jsonl") if event == "finished"]
    assert sorted(finished) == sorted(NAMES)


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot be written to .*choose another out="):
        drive_once(tmp_path / "file" / "sweep")


def test_what_is_automatic_is_resolved_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the driver's machine; a sweep that goes on elsewhere keeps what its first runs have."""
    monkeypatch.setattr("dcpg.machine.automatic.bf16_pays", lambda device: True)
    engine, _, _ = drive_once(tmp_path, plan=planned(preset="laptop", steps=8192))
    machines = [job.config.machine for job in engine.jobs.values()]
    assert {(m.device, m.precision) for m in machines} == {("cpu", "bf16")}
    assert all(m.chunk > 0 for m in machines)
    monkeypatch.setattr("dcpg.machine.automatic.bf16_pays", lambda device: False)
    engine, _, _ = drive_once(tmp_path, plan=planned(preset="laptop", steps=8192, seeds=3))
    assert len(engine.jobs) == 2  # the new seed alone
    assert {job.config.machine.precision for job in engine.jobs.values()} == {"bf16"}


def test_runs_of_other_sizes_keep_their_own_chunks_when_a_sweep_goes_on(tmp_path: Path) -> None:
    """Frames of two sizes: what one run has must not reach the others."""
    plan = planned(methods=["ppo"], seeds=1, grid={"env": {"frame_size": [64, 32]}})
    engine, _, now = drive_once(tmp_path, plan=plan)
    assert now.counts["done"] == 2
    chunks = {job.config.env.frame_size: job.config.machine.chunk for job in engine.jobs.values()}
    assert len(set(chunks.values())) == 2
    engine, _, now = drive_once(tmp_path, plan=plan)
    assert (engine.begun, now.counts["done"]) == ([], 2)
    more = planned(methods=["ppo"], seeds=2, grid={"env": {"frame_size": [64, 32]}})
    engine, _, now = drive_once(tmp_path, plan=more)
    assert now.counts["done"] == 4
    assert {job.config.env.frame_size: job.config.machine.chunk for job in engine.jobs.values()} == chunks


def test_a_precision_that_was_given_is_not_what_automatic_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcpg.machine.automatic.bf16_pays", lambda device: False)
    grid = {"machine": {"precision": ["bf16", "auto"]}}
    plan = planned(methods=["ppo"], seeds=1, preset="laptop", steps=8192, grid=grid)
    given, automatic = plan.jobs
    write_run(tmp_path, replace(given, config=settled(given.config)), place(8192), finished=True)
    engine, _, _ = drive_once(tmp_path, plan=plan)
    assert {name: job.config.machine.precision for name, job in engine.jobs.items()} == {automatic.name: "fp32"}


def away_once(monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    """Let the first reading of a config.json fail for which `when` says so, as network storage may."""
    done: list[Path] = []

    def flaky(path: Path, most: int) -> bytes:
        if path.name == "config.json" and not done and when():
            done.append(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return read(path, most)

    read = files.read_regular
    monkeypatch.setattr(files, "read_regular", flaky)


@pytest.mark.parametrize("code", [0, -9])
def test_storage_that_is_away_when_an_attempt_ends_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    script: dict[str, list[tuple[int | None, int]]] = {NAMES[0]: [(code, 512 if code == 0 else 128)]}
    ended: list[int] = []
    away_once(monkeypatch, lambda: bool(ended))
    monkeypatch.setattr(driver, "RETRY_SECONDS", 0.0)
    engine, quiet, now = drive_once(tmp_path, script, then=lambda: ended.append(1))
    assert any("cannot be read now" in said for said in quiet.said)
    assert now.counts["done"] == 4
    assert engine.begun.count(NAMES[0]) == 2


def test_a_finished_run_that_cannot_be_read_for_a_moment_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive_once(tmp_path)
    monkeypatch.setattr(view, "AWAY_PAUSES", (0.0,))
    with monkeypatch.context() as changed:
        away_once(changed, lambda: True)
        found = statuses(planned(), SweepDirectory(tmp_path))
    assert [one.state for one in found.values()] == ["finished"] * 4
    before = (tmp_path / "index.jsonl").read_bytes()

    def away(path: Path, most: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(files, "read_regular", away)
    with pytest.raises(Unavailable, match="cannot be read now"):  # and nothing is decided
        drive_once(tmp_path)
    assert (tmp_path / "index.jsonl").read_bytes() == before


def test_runs_whose_storage_is_away_are_waited_for_longer_and_longer() -> None:
    waits = [_patience(RunHistory(lost=lost), None) for lost in range(1, 10)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]  # times five seconds: twenty minutes
    assert _patience(RunHistory(lost=3), 0) == 4  # its result could not be seen
    assert _patience(RunHistory(lost=3), 75) == 0
    assert _patience(RunHistory(failures=2), -9) == 2


def test_an_engine_that_fails_is_stopped_so_that_the_other_runs_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Memory):
        def wait(self, seconds: float) -> list[Outcome]:
            if self.begun and not self.stopped:
                raise DcpgError("No node is left.")
            return super().wait(seconds)

    engine = Failing(tmp_path, {}, lambda: None)
    with pytest.raises(DcpgError, match="No node is left"):
        Driver(planned(), tmp_path, Quiet()).run(engine.make, "dcpg sweep x")
    assert engine.stopped
    assert engine.closed
    assert len(engine.begun) == 1
    assert not engine.attempts  # each was waited for


def test_runs_that_are_gone_are_not_called_done(tmp_path: Path) -> None:
    def move() -> None:  # when a second run has ended
        first, second = (tmp_path / "runs" / name for name in NAMES[:2])
        if first.exists() and second.exists():
            first.rename(tmp_path / "elsewhere")

    _, _, end = drive_once(tmp_path, then=move)
    assert isinstance(end, StorageFailed)
    assert f"1 run that was done cannot be found in {tmp_path / 'runs'} any more, such as {NAMES[0]}" in str(end)


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ("dcpg sweep 'my file.toml' --out x --retry", "dcpg sweep 'my file.toml' --retry --out {there}"),
        ("curl -s http://there/x | sh", ""),
        ("dcpg sweep x; rm -r y", "dcpg sweep 'x;' rm -r y --out {there}"),
        ("dcpg sweep $(x)", "dcpg sweep '$(x)' --out {there}"),
        ("dcpg sweep 'x", ""),
    ],
)
def test_a_recorded_command_is_one_call_of_this_program(tmp_path: Path, recorded: str, shown: str) -> None:
    drive_once(tmp_path)
    plain = json.loads((tmp_path / "sweep.json").read_bytes())
    (tmp_path / "sweep.json").write_text(json.dumps(plain | {"command": recorded}))
    assert driver_of(tmp_path) == (False, shown.format(there=tmp_path))

"""`dcpg sweep status`, from the sweep's directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dcpg.storage.files import dump
from dcpg.storage.lock import Lock
from tests.cli.test_cli import run as command
from tests.sweep.fakes import NAMES, TINY, drive_once, place, planned, write_run


def test_status(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script: dict[str, list[tuple[int | None, int]]] = {NAMES[0]: [(-6, 0)] * 3, NAMES[2]: [(75, 256), (7, 256)]}
    drive_once(tmp_path, script)
    shutil.rmtree(tmp_path / "runs" / NAMES[3])
    lock = Lock(tmp_path / "runs" / NAMES[1] / "lock")
    write_run(tmp_path, planned().jobs[1], place(384))
    lock.acquire()
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path), "--json")
    found = json.loads(out)
    assert code == 0
    assert sorted(tmp_path.rglob("*")) == before
    runs = found.pop("runs")
    assert (found.pop("driver_running"), found.pop("command")) == (False, f"dcpg sweep x --out {tmp_path}")
    assert found == {
        "done": 0, "running": 1, "waiting": 1, "failed": 2, "steps": 640, "steps_total": 2048, "steps_per_s": 40.0,
        "seconds_left": (128 + 512) / 40, "analyses_missing": 0,
    }  # fmt: skip
    assert runs[0] == {
        "name": NAMES[0], "method": "ppo", "game": "starpilot", "seed": 0, "status": "failed", "steps": 0,
        "train_return": None, "test_return": None, "attempts": 3, "last_lines": f"last lines of {NAMES[0]}",
    }  # fmt: skip
    assert runs[1] == {
        "name": NAMES[1], "method": "dcpg", "game": "starpilot", "seed": 0, "status": "running", "steps": 384,
        "train_return": 3.0, "test_return": 2.0, "attempts": 1,
    }  # fmt: skip
    assert [run["status"] for run in runs] == ["failed", "running", "failed", "waiting"]
    lock.release()
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path))
    assert code == 0
    assert "0 done  0 running  2 waiting  2 failed" in out
    assert out.splitlines()[-1] == f"No driver is running. Go on with: dcpg sweep x --out {tmp_path}"
    assert "failed: starpilot-ppo-0: last lines of starpilot-ppo-0" in out


def test_status_knows_the_driver_and_what_starts_it_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def last() -> str:
        return command(capsys, "sweep", "status", str(tmp_path))[1].splitlines()[-1].strip()

    drive_once(tmp_path, {NAMES[0]: [(7, 0)]}, then=lambda: None)
    again = f"dcpg sweep x --out {tmp_path}"
    assert last() == f"No driver is running. When the cause of the failures is gone: {again} --retry"
    drive_once(tmp_path, retry=True)
    assert last().startswith("starpilot  ")  # nothing is left to do
    shutil.rmtree(tmp_path / "runs" / NAMES[3])
    assert last() == f"No driver is running. Go on with: {again}"
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    assert last() == "Its driver is running."
    lock.release()
    plain = json.loads((tmp_path / "sweep.json").read_text())
    del plain["command"]  # of an older release
    (tmp_path / "sweep.json").write_bytes(dump(plain))
    assert last() == "No driver is running. Go on with: the command that started the sweep"


def test_one_run_is_no_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, _, end = drive_once(tmp_path, {NAMES[0]: [(7, 0)]}, plan=planned(methods="ppo", seeds=1))
    assert str(end).startswith("0 of 1 run is done, 1 failed: starpilot-ppo-0.")
    assert command(capsys, "sweep", "status", str(tmp_path))[1].startswith(f"small: 1 run in {tmp_path}")


def test_status_of_odd_directories(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drive_once(tmp_path / "sweep")
    plan = tmp_path / "sweep" / "sweep.json"
    whole = json.loads(plan.read_text())
    for content, said in [
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
        (dump({**whole, "schema": 99}), "is not a sweep that this program knows"),
        (dump({**whole, "sweep": {**TINY, "games": "../../etc"}}), "Unknown game"),
        (dump({**whole, "runs": ["../../etc"]}), "does not name the runs that it describes"),
    ]:
        plan.write_bytes(content)
        code, _, err = command(capsys, "sweep", "status", str(tmp_path / "sweep"))
        assert code == 2
        assert said in err
    assert command(capsys, "sweep", "status", str(tmp_path))[0] == 2
    assert command(capsys, "sweep", "status")[0] == 2

"""Faults 20 to 24 in a sweep on this machine: its runs and its driver are killed, and every result is there once."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dcpg.config.command import train_command
from dcpg.config.resolve import available_cores
from dcpg.sweep.plan import Job, Plan, read
from tests.faults import driver
from tests.faults.driver import ROOT, Driver, Ended, Process, each, record, until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(available_cores() < 2, reason="two runs must run side by side"),
]

SWEEP = """
methods = ["ddcpg", "ppo"]
games = "starpilot"
seeds = 3
steps = 512
preset = "tiny"

[set]
evaluation.max_steps = 12
evaluation.episodes = 2
env.frame_size = 16
network.channels = [4]

[set.ddcpg]
algorithm.E_aux = 2
"""
PAUSED, KILLED, ABORTS, EXHAUSTS = "starpilot-ddcpg-0", "starpilot-ppo-0", "starpilot-ppo-1", "starpilot-ddcpg-2"


@dataclass
class Sweep:
    """A sweep with faults in its runs."""

    runs: Driver
    folder: Path
    starts: int = 0
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        self.file, self.out, self.faults = self.folder / "six.toml", self.folder / "six", self.folder / "faults"
        self.faults.mkdir()
        self.file.write_text(SWEEP)
        self.plan = read(str(self.file))

    def fault(self, run: str, *attempts: str) -> None:
        """Set the faults of each attempt at a run."""
        (self.faults / f"{run}.json").write_text(json.dumps(attempts))

    def start(self, *words: str) -> Process:
        self.starts += 1
        env = {"PYTHONPATH": f"{ROOT / 'tests/faults/sweep_child'}:{ROOT}", "DCPG_SWEEP_FAULTS": str(self.faults)}
        arguments = ["sweep", str(self.file), "--out", str(self.out), *words]
        return self.runs.start(arguments, "set dcpg.sweep.driver.RETRY_SECONDS 0.1", env=env)

    def attempts(self, run: str) -> list[int]:
        """The processes that worked on a run."""
        file = self.faults / f"{run}.attempts"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def events(self, run: str) -> list[dict[str, Any]]:
        """The events of a run in the index."""
        rows = map(json.loads, (self.out / "index.jsonl").read_text().splitlines())
        return [row for row in rows if row["run"] == run]

    def status(self) -> dict[str, Any]:
        ended = self.runs.run(["sweep", "status", str(self.out), "--json"])
        assert ended.code == 0, str(ended)
        found: dict[str, Any] = json.loads(ended.out)
        return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.fixture(scope="module")
def undisturbed(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each run of the sweep on its own, as `dcpg train` makes it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    file = folder / "six.toml"
    file.write_text(SWEEP)
    jobs = read(str(file)).jobs

    def work(job: Job) -> None:
        ended = runs.run(train_command(job.config, folder / job.name).split()[1:])
        assert ended.code == 0, str(ended)

    each(jobs, work)
    return {job.name: folder / job.name for job in jobs}


def finished_once(sweep: Sweep, undisturbed: dict[str, Path], names: list[str]) -> None:
    """No result is lost and none doubled: each has the bytes of a run without faults, and is in the index once."""
    lines = {name: Counter(row["event"] for row in sweep.events(name))["finished"] for name in names}
    lost = [name for name in names if lines[name] == 0]
    doubled = [name for name in names if lines[name] > 1]
    assert (lost, doubled) == ([], [])
    for name in names:
        out = sweep.out / "runs" / name
        assert driver.differences(out, undisturbed[name]) == [], name
        assert driver.temporary(out) == []


def test_a_sweep_in_which_everything_dies(
    runs: Driver, undisturbed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    sweep = Sweep(runs, tmp_path_factory.mktemp("sweep"))
    pauses = [str(sweep.folder / f"go-{i}") for i in range(3)]
    sweep.fault(PAUSED, f"at auxiliary 10 wait:{pauses[0]}", f"at policy 5 wait:{pauses[2]}", "")
    sweep.fault(KILLED, f"at policy 20 wait:{pauses[1]}", "at policy 30 kill", "at evaluate 3 kill", "")
    sweep.fault(ABORTS, "at env 20 abort")
    sweep.fault(EXHAUSTS, "at auxiliary 2 exhaust")

    # the driver is killed while two runs are in the middle: they end with it
    first = sweep.start()
    until(lambda: all(Path(f"{pause}.reached").exists() for pause in pauses[:2]))
    first.kill()
    assert first.wait().code == -9
    until(lambda: all(gone(sweep.attempts(name)[0]) for name in (PAUSED, KILLED)), 20)
    assert sweep.status()["running"] == 0

    # one run is killed and tried again, and then a signal stops the sweep
    second = sweep.start()
    until(lambda: Path(f"{pauses[2]}.reached").exists() and len(sweep.attempts(KILLED)) >= 2)
    until(lambda: -9 in [row.get("code") for row in sweep.events(KILLED)])
    os.kill(second.pid, signal.SIGUSR1)
    Path(pauses[2]).touch()
    ended = second.wait()
    assert ended.code == 75, str(ended)
    assert "Stopped by SIGUSR1" in ended.err
    assert f"dcpg sweep {sweep.file} --out {sweep.out}" in ended.err
    assert [row["code"] for row in sweep.events(PAUSED) if row["event"] == "ended"] == [75]

    # to the end: all runs but those that cannot finish
    ended = sweep.start().wait()
    assert ended.code == 1, str(ended)
    assert "4 of 6 runs are done, 2 failed" in ended.err
    good = [job.name for job in sweep.plan.jobs if job.name not in (ABORTS, EXHAUSTS)]
    finished_once(sweep, undisturbed, good)
    _check_failed(sweep)
    codes = Counter(row["code"] for job in sweep.plan.jobs for row in sweep.events(job.name) if row["event"] == "ended")
    assert codes[-9] >= 1

    # what is done is not touched again; what failed can be tried again when its cause is gone
    before = {name: driver.listing(sweep.out / "runs" / name) for name in good}
    tried = {name: len(sweep.attempts(name)) for name in good}
    for name in (ABORTS, EXHAUSTS):
        sweep.fault(name, "")
    ended = sweep.start("--retry").wait()
    assert ended.code == 0, str(ended)
    assert {name: driver.listing(sweep.out / "runs" / name) for name in good} == before
    assert {name: len(sweep.attempts(name)) for name in good} == tried
    everyone = [job.name for job in sweep.plan.jobs]
    finished_once(sweep, undisturbed, everyone)
    assert sweep.status()["done"] == 6

    # without the index, from the directories alone
    (sweep.out / "index.jsonl").unlink()
    ended = sweep.start().wait()
    assert ended.code == 0, str(ended)
    finished_once(sweep, undisturbed, everyone)
    assert {name: len(sweep.attempts(name)) for name in good} == tried
    for fault, number in {
        "21 local sweep: the environment aborts": codes[-6],
        "22 local sweep: out of memory, not tried again": codes[7],
        "23 local sweep: run killed -9": codes[-9],
        "23 local sweep: run asked to stop": codes[75],
        "24 local sweep: driver killed -9, two runs in the middle": 1,
        "24 local sweep: driver stopped by SIGUSR1": 1,
    }.items():
        record(fault, number, number)
    print(f"a local sweep of {len(everyone)} runs, {sweep.starts} drivers: 0 results lost, 0 doubled")
    shutil.rmtree(sweep.folder)


def _check_failed(sweep: Sweep) -> None:
    failed = {run["name"]: run for run in sweep.status()["runs"] if run["status"] == "failed"}
    assert sorted(failed) == sorted((ABORTS, EXHAUSTS))
    assert [row["code"] for row in sweep.events(ABORTS) if row["event"] == "ended" and row["code"] != 75] == [-6] * 3
    assert "Fatal Python error: Aborted" in failed[ABORTS]["last_lines"]
    assert [row["code"] for row in sweep.events(EXHAUSTS) if row["event"] == "ended" and row["code"] != 75] == [7]
    assert "There was no memory left" in failed[EXHAUSTS]["last_lines"]
    for name in (ABORTS, EXHAUSTS):
        (last,) = [row for row in sweep.events(name) if row["event"] == "failed"]
        assert last["last_lines"] == failed[name]["last_lines"]


def test_two_drivers(runs: Driver, tmp_path: Path) -> None:
    """The second one refuses, and the first one's runs are not disturbed."""
    sweep = Sweep(runs, tmp_path)
    pause = tmp_path / "go"
    sweep.fault(PAUSED, f"at policy 2 wait:{pause}", "")
    first = sweep.start()
    until(Path(f"{pause}.reached").exists)
    ended: Ended = sweep.start().wait()
    assert ended.code == 2, str(ended)
    assert f"is in use by process {first.pid}" in ended.err
    os.kill(first.pid, signal.SIGINT)
    pause.touch()
    ended = first.wait()
    assert ended.code == 75, str(ended)
    assert all(gone(pid) for pid in sweep.attempts(PAUSED))
    record("25 two drivers on one sweep", 1, 1)

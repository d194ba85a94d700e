"""What a sweep would take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dcpg.config.resolve import available_cores
from dcpg.machine.needs import free_memory
from dcpg.storage.rows import Event
from dcpg.sweep import dry_run, local
from dcpg.sweep.dry_run import (
    SweepEstimate,
    UnfinishedRuns,
    count_sweep,
    describe,
    describe_times,
    measure_speeds,
    roughly,
)
from dcpg.sweep.index import Index
from dcpg.sweep.local import capacity, run_needs
from dcpg.sweep.plan import Plan
from tests.cli.test_cli import run as command
from tests.sweep.fakes import NAMES, place, planned, write_run


def fake_training(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if every method made 100 steps per second, and ppo 200; returns the methods that were probed."""
    asked = []

    def training(config: Any, spaces: Any, rollouts: int) -> float:
        asked.append(config.method)
        return rollouts * config.rollout_size / (200 if config.method == "ppo" else 100)

    monkeypatch.setattr(dry_run, "training", training)
    monkeypatch.setattr(local, "available_cores", lambda: 4)
    monkeypatch.setattr(local, "free_memory", lambda: 1e12)
    return asked


def measured(plan: Plan, root: Path) -> SweepEstimate:
    return measure_speeds(count_sweep(plan, root), lambda number, total, method: None)


def test_counts_come_before_any_speed_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_training(monkeypatch)
    plan = planned()
    lines = list(describe(plan, tmp_path, count_sweep(plan, tmp_path)))
    assert asked == []
    assert lines[0] == "small: 4 runs of 512 steps; 2,048 steps in whole rollouts"
    assert " GB of disk" in lines[-1]
    one = planned(methods="ppo", seeds=1)
    assert next(describe(one, tmp_path, count_sweep(one, tmp_path))).startswith("small: 1 run of 512 steps")


def test_methods_that_cost_alike_have_one_figure_with_a_spread() -> None:
    speeds = {"ppo": 78.4, "plr": 86.1, "ucb-drac": 43.2, "dcpg": 36.4, "ddcpg": 33.1}
    groups = tuple(UnfinishedRuns(method, 2, 864_000, speed) for method, speed in speeds.items())
    lines = list(describe_times(SweepEstimate((), {}, 0, groups, local.Capacity(2, "2 cores, 1 per run"))))
    assert lines == [
        "  plr, ppo: 4 runs, 78 to 86 steps/s, about 88 min each, 5.8 h in all",
        "  ucb-drac, dcpg: 4 runs, 36 to 43 steps/s, about 3.0 h each, 12 h in all",
        "  ddcpg: 2 runs, 33 steps/s, about 3.6 h each, 7.3 h in all",
        "On this machine, one after another: about 25 h.",
        "2 side by side (2 cores, 1 per run): about 13 h.",
    ]


def test_durations_are_rounded() -> None:
    said = [roughly(seconds) for seconds in (0.4, 7.3, 119, 121, 7_100, 7_300, 100_000, 200_000, 808_000_000)]
    assert said == ["0 s", "7 s", "120 s", "2.0 min", "120 min", "2.0 h", "28 h", "2.3 days", "9,400 days"]


def test_dry_run_of_table1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = fake_training(monkeypatch)
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capsys, "sweep", "table1", "--dry-run")
    assert code == 0
    assert err.splitlines()[:2] == ["Measuring speed 1 of 7: ppo", "Measuring speed 2 of 7: ucb-drac"]
    assert len(asked) == 7  # one probe per method
    whole = 25_000_000 // 16_384 * 16_384
    seconds = 160 * whole / 200 + 6 * 160 * whole / 100
    lines = out.splitlines()
    assert lines[0] == f"table1: 1,120 runs of 25,000,000 steps; {1120 * whole:,} steps in whole rollouts"
    assert lines[1].startswith("Runs: bigfish-ppo-0, bossfight-ppo-0, ")
    assert lines[2] == "In sweeps/table1: 0 finished, 0 interrupted, 1120 not begun."
    assert f"{'3.3' if torch.version.cuda else '2.8'} GB of memory" in lines[4]
    assert lines[3] == "After training: ood-actions of 160 runs, 0 there already."
    assert 3000 < seconds / 86400 < 3050
    assert lines[5:] == [
        "  ppo: 160 runs, 200 steps/s, about 35 h each, 230 days in all",
        "  ucb-drac, plr, daac, ppg, dcpg, ddcpg: 960 runs, 100 steps/s, about 2.9 days each, 2,800 days in all",
        "On this machine, one after another: about 3,000 days.",
        "4 side by side (4 cores, 1 per run): about 750 days.",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "first"), [("ablations", "960 runs of 25,000,000"), ("stiffness", "256 runs of 8,000,000")]
)
def test_dry_run_of_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, first: str
) -> None:
    asked = fake_training(monkeypatch)
    code, out, _ = command(capsys, "sweep", name, "--dry-run", "--out", str(tmp_path / "out"))
    assert code == 0
    assert out.startswith(f"{name}: {first} steps")
    assert len(asked) == {"ablations": 6, "stiffness": 2}[name]
    assert ("`analyse`" in out) == (name == "stiffness")


def test_cost_of_what_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_training(monkeypatch)
    plan = planned()
    write_run(tmp_path, plan.jobs[0], place(512), finished=True)
    write_run(tmp_path, plan.jobs[1], place(384))
    Index(tmp_path / "index.jsonl").append(Event(run=NAMES[2], event="failed"))
    found = measured(plan, tmp_path)
    assert [(s.method, s.runs, s.steps, s.steps_per_s) for s in found.unfinished] == [
        ("dcpg", 2, 128 + 512, 100.0), ("ppo", 1, 512, 200.0),
    ]  # fmt: skip
    assert found.seconds == pytest.approx(640 / 100 + 512 / 200)
    assert found.seconds_side_by_side == pytest.approx(3.2)  # the longest cannot be divided
    assert found.disk == sum(run_needs(job).disk for job in plan.jobs)
    text = "\n".join(describe(plan, tmp_path, found))
    assert "1 finished, 1 interrupted, 2 not begun (1 of these failed before" in text
    elsewhere = planned(set={"machine": {"device": "cuda:99"}})
    text = "\n".join(describe(elsewhere, tmp_path / "new", measured(elsewhere, tmp_path / "new")))
    assert "Time and memory cannot be estimated here: machine.device is 'cuda:99'" in text


def test_a_real_probe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('methods = ["ppo", "dcpg"]\ngames = "starpilot"\nseeds = 2\npreset = "tiny"\nsteps = 512\n')
    code, out, err = command(capsys, "sweep", str(file), "--dry-run", "--out", str(tmp_path / "out"))
    assert code == 0
    assert err.splitlines() == ["Measuring speed 1 of 2: ppo", "Measuring speed 2 of 2: dcpg"]
    assert out.count(" steps/s, about ") in (1, 2)  # one line if they cost alike
    assert sorted(tmp_path.iterdir()) == [file]
    runs = capacity(planned().jobs).runs
    assert f"{runs} side by side" in out
    assert runs == max(1, min(available_cores(), int(free_memory() // run_needs(planned().jobs[1]).memory)))

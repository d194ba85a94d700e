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
from dcpg.sweep.dry_run import describe, estimate_sweep
from dcpg.sweep.index import Index
from dcpg.sweep.local import capacity, run_needs
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


def test_dry_run_of_table1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = fake_training(monkeypatch)
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(capsys, "sweep", "table1", "--dry-run")
    assert code == 0
    assert len(asked) == 7  # one probe per method
    whole = 25_000_000 // 16_384 * 16_384
    seconds = 160 * whole / 200 + 6 * 160 * whole / 100
    lines = out.splitlines()
    assert lines[0] == f"table1: 1,120 runs of 25,000,000 steps; {1120 * whole:,} steps in whole rollouts"
    assert lines[1].startswith("Runs: bigfish-ppo-0, bossfight-ppo-0, ")
    assert lines[2] == "In sweeps/table1: 0 finished, 0 interrupted, 1120 not begun."
    assert f"{'3.3' if torch.version.cuda else '2.8'} GB of memory" in lines[4]
    assert lines[3] == "After training: ood-actions of 160 runs, 0 there already."
    assert lines[-2] == f"On this machine, one after another: about {seconds / 86400:.1f} days."
    assert lines[-1] == f"4 side by side (4 cores, 1 per run): about {seconds / 4 / 86400:.1f} days."
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
    found = estimate_sweep(plan, tmp_path)
    assert [(s.method, s.runs, s.steps, s.steps_per_s) for s in found.unfinished] == [
        ("dcpg", 2, 128 + 512, 100.0), ("ppo", 1, 512, 200.0),
    ]  # fmt: skip
    assert found.seconds == pytest.approx(640 / 100 + 512 / 200)
    assert found.seconds_side_by_side == pytest.approx(3.2)  # the longest cannot be divided
    assert found.disk == sum(run_needs(job).disk for job in plan.jobs)
    text = "\n".join(describe(plan, tmp_path, found))
    assert "1 finished, 1 interrupted, 2 not begun (1 of these failed before" in text
    elsewhere = planned(set={"machine": {"device": "cuda:99"}})
    text = "\n".join(describe(elsewhere, tmp_path / "new", estimate_sweep(elsewhere, tmp_path / "new")))
    assert "Time and memory cannot be estimated here: machine.device is 'cuda:99'" in text


def test_a_real_probe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text('methods = ["ppo", "dcpg"]\ngames = "starpilot"\nseeds = 2\npreset = "tiny"\nsteps = 512\n')
    code, out, _ = command(capsys, "sweep", str(file), "--dry-run", "--out", str(tmp_path / "out"))
    assert code == 0
    assert out.count(" steps/s ") == 2
    assert sorted(tmp_path.iterdir()) == [file]
    runs = capacity(planned().jobs).runs
    assert f"{runs} side by side" in out
    assert runs == max(1, min(available_cores(), int(free_memory() // run_needs(planned().jobs[1]).memory)))

"""The engine on this machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dcpg.errors import BadInput
from dcpg.sweep import local
from dcpg.sweep.attempt import Attempt, Outcome
from dcpg.sweep.local import LocalEngine, capacity, run_needs
from tests.sweep.fakes import NAMES, planned


def test_how_many_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(methods=["ppo", "ddcpg"], preset="paper", steps=25_000_000)
    most = max(run_needs(job).memory for job in plan.jobs)
    assert most == run_needs(plan.jobs[1]).memory > run_needs(plan.jobs[0]).memory
    monkeypatch.setattr(local, "available_cores", lambda: 8)
    monkeypatch.setattr(local, "free_memory", lambda: 100 * most)
    assert capacity(plan.jobs).runs == 8
    monkeypatch.setattr(local, "free_memory", lambda: 3.5 * most)
    assert capacity(plan.jobs).runs == 3
    assert "GB of memory" in capacity(plan.jobs).reason
    monkeypatch.setattr(local, "free_memory", lambda: 0.5 * most)
    with pytest.raises(BadInput, match="There is no room for a run"):
        capacity(plan.jobs)
    anyway = planned(methods=["ppo", "ddcpg"], preset="paper", steps=25_000_000, set={"check_room": False})
    assert capacity(anyway.jobs).runs == 1
    monkeypatch.setattr(local, "free_memory", lambda: 100 * most)
    wide = planned(set={"machine": {"threads": 3}})
    assert capacity(wide.jobs).runs == 2
    with pytest.raises(BadInput, match="must be auto, cpu, cuda or"):
        capacity(planned(set={"machine": {"device": "abacus"}}).jobs)


def test_gpus_are_handed_out_one_per_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(local, "available_cores", lambda: 8)
    monkeypatch.setattr(local, "free_memory", lambda: 1e12)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    plan = planned(set={"machine": {"device": "cuda"}})
    assert capacity(plan.jobs) == local.Capacity(2, "2 GPUs, one per run", ("4", "6"))
    assert capacity(planned(set={"machine": {"device": "cuda:1"}}).jobs).runs == 1
    seen: list[str] = []

    def attempted(attempt: Attempt, should_stop: Callable[[], bool], environment: dict[str, str]) -> Outcome:
        seen.append(environment["CUDA_VISIBLE_DEVICES"])
        if attempt.name == NAMES[1]:
            raise OSError(28, "No space left on device")
        return Outcome(attempt.name, 0, "here")

    monkeypatch.setattr(local, "run_attempt", attempted)
    engine = LocalEngine(plan.jobs)
    for name in NAMES:
        engine.submit(Attempt(str(tmp_path), name, {}))
    outcomes: list[Outcome] = []
    while len(outcomes) < 4:
        outcomes += engine.wait(5.0)
    assert {o.name: o.code for o in outcomes} == {NAMES[0]: 0, NAMES[1]: 1, NAMES[2]: 0, NAMES[3]: 0}
    assert "No space left" in next(o.last_lines for o in outcomes if o.name == NAMES[1])
    assert set(seen) <= {"4", "6"}
    engine.stop()
    engine.submit(Attempt(str(tmp_path), NAMES[0], {}))
    assert engine.wait(5.0)[0].code == 75
    assert len(seen) == 4
    engine.close()
    assert engine.wait(0.0) == []


def test_closing_ends_attempts_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process of a run that would never end is killed."""
    real, children = subprocess.Popen, []

    def popen(words: list[str], **how: Any) -> Any:
        assert words[-1] == "dcpg.sweep.child"
        children.append(real(["sleep", "1000"], **how))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    engine = LocalEngine(planned().jobs)
    (tmp_path / "runs").mkdir(exist_ok=True)
    engine.submit(Attempt(str(tmp_path), NAMES[0], {}))
    while not children:
        time.sleep(0.01)
    engine.close()
    assert children[0].returncode == -9

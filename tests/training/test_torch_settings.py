"""What environments and observers change in torch is not what a run computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import dcpg
from tests.training.test_resume import BANDIT, TINY, OneStep, bandit


def test_whatever_sets_torchs_threads_a_run_has_its_own(tmp_path: Path) -> None:
    """An environment or an observer may; a resume would have the run's again, and end with other bytes."""
    threads = []

    class Restless(dcpg.Observer):
        def progress(self, phase: str, place: str) -> None:
            threads.append(torch.get_num_threads())
            torch.set_num_threads(3)

    more = TINY | {"machine.threads": 2}
    dcpg.train(
        "ppo", "maze", preset="tiny", steps=128, out=tmp_path, settings=more, observer=Restless(), progress=False
    )
    assert set(threads) == {2}


def test_whatever_sets_torchs_default_type_a_run_computes_in_its_own(tmp_path: Path) -> None:
    class Doubles(OneStep):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            torch.set_default_dtype(torch.float64)
            return super().step(action)

    def doubling(num_envs: int, seed: int, name: str = "") -> Any:
        return SyncVectorEnv([Doubles] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    settings = BANDIT | {"env.num_envs": 8, "rollout_length": 16}
    try:
        for name, make in (("plain", bandit), ("doubling", doubling)):
            dcpg.train(
                "dcpg", env=make, preset="tiny", steps=512, out=tmp_path / name, settings=settings, progress=False
            )
    finally:
        torch.set_default_dtype(torch.float32)
    rows = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("plain", "doubling")]
    assert rows[0] == rows[1]

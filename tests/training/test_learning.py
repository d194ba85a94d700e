"""A tiny task that each method must solve, on unseen levels too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import dcpg
from dcpg.methods import METHODS
from tests.small import each


class Signpost(gymnasium.Env[Any, Any]):
    """A bright corner says which of four actions is right; the rest of the picture is the level's own noise."""

    def __init__(self, first: int, count: int, channels: int = 3) -> None:
        self.first, self.count, self.channels = first, count, channels
        self.observation_space = gymnasium.spaces.Box(0, 255, (16, 16, channels), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.level = self.first + int(self.np_random.integers(self.count))
        self.rng, self.t = np.random.default_rng(self.level), 0
        self.noise = self.rng.integers(0, 90, (16, 16, self.channels), np.uint8)
        return self._see(), {"level_seed": self.level}

    def _see(self) -> np.ndarray:
        self.corner = int(self.rng.integers(4))
        picture = self.noise.copy()
        r, c = 10 * (self.corner // 2), 10 * (self.corner % 2)
        picture[r : r + 6, c : c + 6] = 255
        return picture

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward = float(action == self.corner)
        return self._see(), reward, self.t == 8, False, {"level_seed": self.level}


def make(num_envs: int, seed: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Signpost(0, 20)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def make_test(num_envs: int, seed: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Signpost(1000, 10**6)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


# PLR sets levels, which only Procgen lets it do; beside that it is PPO
@pytest.mark.parametrize("name", each(name for name in METHODS if name != "plr"))
def test_each_method_solves_a_tiny_task(name: str, tmp_path: Path) -> None:
    settings = {
        "env.num_envs": 16, "rollout_length": 16, "machine.threads": 1,
        "network.channels": "8,8", "network.features": 32,
        "algorithm.gamma": 0.5, "algorithm.learning_rate": 3e-3, "algorithm.minibatches": 4,
        "algorithm.N_pi": 4, "algorithm.segments": 8, "algorithm.E_aux": 3,
        "evaluation.every": 1000, "evaluation.episodes": 30,
    }  # fmt: skip
    known = {name for name, *_ in _names(name)}
    settings = {k: v for k, v in settings.items() if k in known}
    run = dcpg.train(name, env=make, test_env=make_test, steps=9_000, out=tmp_path / "run", settings=settings)
    # 8 steps an episode; guessing gives 2
    assert run.summary["train_return"] > 6.5
    assert run.summary["test_return"] > 6.5
    again = dcpg.evaluate(run, levels="test", env=make, test_env=make_test)
    assert again["returns"] == run.summary["test_returns"]
    assert all(level >= 1000 for level in again["level_seeds"])


def _names(method: str) -> Any:
    from dcpg.config.resolve import resolve
    from dcpg.settings import dotted

    return dotted(resolve(method, "maze"))


def test_own_environments_need_their_function_again(tmp_path: Path) -> None:
    from dcpg.errors import BadInput

    settings = {"evaluation.episodes": 2}
    run = dcpg.train("ppo", env=make, preset="tiny", steps=256, out=tmp_path / "run", settings=settings)
    assert run.summary["test_return"] is None
    with pytest.raises(BadInput, match=r"your own, test_learning.make .*dcpg.resume\(.*, env=\.\.\.\)"):
        dcpg.resume(run.directory)
    with pytest.raises(BadInput, match="no unseen levels"):
        dcpg.evaluate(run, levels="test", env=make)
    with pytest.raises(BadInput, match="only on Procgen"):
        dcpg.evaluate(run, levels="0-3", env=make)
    longer = dcpg.resume(run, steps=512, env=make)
    assert longer.summary["steps"] == 512

"""Atari's Breakout: PPO plays it for a minute or two, which shows that it runs; to learn it takes millions of steps.

pip install ale-py
python docs/examples/ale_breakout.py

An action lasts four frames, and at each of them the emulator repeats the action before instead with probability 0.25
(sticky actions). That is all the chance there is. Atari has no levels, so the test is the same game with other seeds.
Frames are grey, and one of them does not show where the ball is going: `env.frame_stack` makes the last four one
observation.
"""

from __future__ import annotations

import ale_py
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

TASK = "ALE/Breakout-v5"  # frame skip 4, sticky actions with probability 0.25
SIZE = 64

gymnasium.register_envs(ale_py)


def shares(pixels: int, size: int) -> np.ndarray:
    """The weights [size, pixels] that shrink a line of pixels: every new one is the mean of those that it covers."""
    edges = np.arange(size + 1) * pixels / size
    starts = np.arange(pixels)
    covered = np.minimum(edges[1:, None], starts + 1) - np.maximum(edges[:-1, None], starts)
    return (np.maximum(covered, 0) * size / pixels).astype(np.float32)


class Small(gymnasium.ObservationWrapper):
    """Frames of 210 x 160 shrunk to SIZE x SIZE, uint8, in NumPy."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        rows, columns = env.observation_space.shape
        self.rows, self.columns = shares(rows, SIZE), shares(columns, SIZE).T
        self.observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The mean grey of every small pixel, rounded."""
        return np.rint(self.rows @ observation.astype(np.float32) @ self.columns).astype(np.uint8)


def make(num_envs: int, seed: int, render_mode: str | None = None) -> SyncVectorEnv:
    """Environments that step together. With `render_mode="rgb_array"`, `render()` returns the screens in colour.

    `seed` has no use here: only `reset(seed=...)` sets the emulators' seeds.
    """

    def one() -> gymnasium.Env:
        return Small(gymnasium.make(TASK, obs_type="grayscale", render_mode=render_mode))

    return SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


make_test = make  # the same game: evaluations are reset with seeds of their own

SETTINGS = {
    "env.num_envs": 8,
    "env.frame_stack": 4,
    "rollout_length": 128,
    "network.channels": (4, 8, 8),
    "network.features": 64,
    "evaluation.every": 10,
    "evaluation.episodes": 4,
    "machine.threads": 1,
}

if __name__ == "__main__":
    import dcpg

    run = dcpg.train("ppo", env=make, test_env=make_test, steps=16_384, settings=SETTINGS, out="runs/breakout")
    print(f"training {run.summary['train_return']:.2f}, other seeds {run.summary['test_return']:.2f}")

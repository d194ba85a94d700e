"""MiniGrid: DCPG learns for a minute or two to reach the goal on 200 layouts, and is tested on others.

pip install minigrid
python docs/examples/minigrid_levels.py

The task is MiniGrid-FourRooms, made smaller: four rooms of 3 x 3 cells are joined by four doors. The level's seed
decides where the doors, the goal and the agent are. The agent sees up to 7 x 7 cells in front of it, but not through
walls. Reaching the goal gives 1, less 0.009 for every step it took; after 100 steps the episode is truncated.

Not every task of MiniGrid can show generalisation: MiniGrid-SimpleCrossingS9N1 has only 42 layouts, and the seeds 0 to
199 have all of them.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import minigrid  # noqa: F401  registers MiniGrid's environments
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

TASK = "MiniGrid-FourRooms-v0"
TRAIN_LEVELS = 200  # seeds 0 .. 199 are for training, all above are unseen
LAST_LEVEL = 2**31 - 1
TILE = 3  # pixels of a cell: the 7 x 7 cells become an image of 21 x 21
SIZE, STEPS = 9, 100  # of the grid with its walls, and of an episode; MiniGrid itself has 19 and 100
ACTIONS = 3  # turn left, turn right, go forward: the first three of MiniGrid's seven, and all that this task needs


class Levels(gymnasium.Wrapper):
    """Every episode is one of the levels first .. last - 1, drawn by a generator of its own, and reports which."""

    def __init__(self, env: gymnasium.Env, seed: int, first: int, last: int) -> None:
        super().__init__(env)
        self.first, self.last = first, last
        self.rng = np.random.default_rng(seed)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Start a new level. The seed is for the choice of levels, not for the level itself."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        level = int(self.rng.integers(self.first, self.last))
        observation, info = self.env.reset(seed=level, options=options)
        return observation, {**info, "level_seed": level}


def environments(num_envs: int, seed: int, first: int, last: int, render_mode: str | None) -> SyncVectorEnv:
    """Environments that step together and reset in the step in which an episode ends. Images, uint8 [21, 21, 3]."""

    def one(seed: int) -> gymnasium.Env:
        env = gymnasium.make(TASK, max_steps=STEPS, render_mode=render_mode)
        env.unwrapped.width = env.unwrapped.height = SIZE  # the task itself has no argument for its size
        return Levels(ImgObsWrapper(RGBImgPartialObsWrapper(env, tile_size=TILE)), seed, first, last)

    return SyncVectorEnv([lambda n=n: one(seed + n) for n in range(num_envs)], autoreset_mode=AutoresetMode.SAME_STEP)


def make(num_envs: int, seed: int, render_mode: str | None = None) -> SyncVectorEnv:
    """Environments with the training levels. With `render_mode="rgb_array"`, `render()` draws the whole grids."""
    return environments(num_envs, seed, 0, TRAIN_LEVELS, render_mode)


def make_test(num_envs: int, seed: int, render_mode: str | None = None) -> SyncVectorEnv:
    """Environments with levels that are not used in training."""
    return environments(num_envs, seed, TRAIN_LEVELS, LAST_LEVEL, render_mode)


SETTINGS = {
    "env.num_envs": 32,
    "rollout_length": 64,
    "algorithm.N_pi": 4,
    "network.channels": (8, 16),
    "network.features": 64,
    "evaluation.every": 10,
    "evaluation.episodes": 20,
    "machine.threads": 1,  # a network this small gains nothing from more
}

if __name__ == "__main__":
    import dcpg

    run = dcpg.train("dcpg", env=make, test_env=make_test, steps=40_000, settings=SETTINGS, out="runs/minigrid")
    print(f"training levels {run.summary['train_return']:.2f}, unseen levels {run.summary['test_return']:.2f}")

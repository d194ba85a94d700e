"""Corridor: a small procedurally generated environment, and DCPG trained on it for a minute or two.

A runner moves one cell to the right at every step and goes up, straight on or down. There is a wall at every fourth
column, with a gap of two cells. Passing a wall gives 1; running into it ends the episode; so does the last wall.
The level's seed decides where the gaps are and which colours the level has.
"""

from __future__ import annotations

import io
import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

ROWS, VIEW, WALLS, SPACING, GAP = 8, 8, 8, 4, 2
TRAIN_LEVELS = 200  # seeds 0 .. 199 are for training, all above are unseen
LAST_LEVEL = 2**31 - 1


def level(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The level of a seed: the upper row of every gap, and three colours (ground, wall, runner)."""
    rng = np.random.default_rng(seed)
    gaps = np.empty(WALLS, np.int64)
    row = (ROWS - GAP) // 2
    for i in range(WALLS):
        row = int(np.clip(row + rng.integers(-3, 4), 0, ROWS - GAP))  # always close enough to be reached
        gaps[i] = row
    ground, wall, runner = rng.integers(0, 60, 3), rng.integers(80, 170, 3), rng.integers(190, 256, 3)
    return gaps, np.stack([ground, wall, runner]).astype(np.uint8)


class Corridor(gymnasium.vector.VectorEnv):
    """N corridors that step together. Observations are images, uint8 [16, 16, 3]."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, seed: int, first: int, last: int, render_mode: str | None) -> None:
        self.num_envs, self.first, self.last = num_envs, first, last  # levels first .. last - 1
        self.render_mode = render_mode
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (2 * ROWS, 2 * VIEW, 3), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.levels, self.rows, self.columns = np.zeros((3, num_envs), np.int64)
        self.gaps = np.zeros((num_envs, WALLS), np.int64)
        self.colours = np.zeros((num_envs, 3, 3), np.uint8)
        self.rng = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start a new level in every environment."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self._begin(range(self.num_envs))
        return self._pictures(), {"level_seed": self.levels.copy()}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Move one cell; an episode that ends is reset in the same step (SAME_STEP)."""
        self.rows = np.clip(self.rows + np.asarray(actions) - 1, 0, ROWS - 1)
        self.columns += 1
        wall = self.columns // SPACING - 1
        at_wall = self.columns % SPACING == 0
        gap = self.gaps[np.arange(self.num_envs), np.maximum(wall, 0)]
        through = at_wall & (self.rows >= gap) & (self.rows < gap + GAP)
        ended = (at_wall & ~through) | (through & (wall == WALLS - 1))
        self._begin(np.flatnonzero(ended))
        never = np.zeros(self.num_envs, bool)
        return self._pictures(), through.astype(np.float32), ended, never, {"level_seed": self.levels.copy()}

    def _begin(self, which: Any) -> None:
        for n in which:
            self.levels[n] = self.rng.integers(self.first, self.last)
            self.gaps[n], self.colours[n] = level(int(self.levels[n]))
            self.rows[n], self.columns[n] = ROWS // 2, 0

    def _pictures(self) -> np.ndarray:
        """The observations: the runner is in the second column of the view, and a cell has two by two pixels."""
        kinds = np.zeros((self.num_envs, ROWS, VIEW), np.int64)  # 0 ground, 1 wall, 2 runner
        for n in range(self.num_envs):
            for x in range(VIEW):
                column = self.columns[n] - 1 + x
                if column > 0 and column % SPACING == 0 and column // SPACING <= WALLS:
                    gap = self.gaps[n, column // SPACING - 1]
                    kinds[n, :, x] = 1
                    kinds[n, gap : gap + GAP, x] = 0
            kinds[n, self.rows[n], 1] = 2
        small = self.colours[np.arange(self.num_envs)[:, None, None], kinds]
        return small.repeat(2, axis=1).repeat(2, axis=2)

    def render(self) -> tuple[np.ndarray, ...]:
        """A picture of each corridor, for videos."""
        return tuple(self._pictures().repeat(8, axis=1).repeat(8, axis=2))

    # With these two methods, a stopped run continues exactly where it was.

    def get_state(self) -> list[bytes]:
        """Everything that determines the future."""
        arrays = io.BytesIO()
        np.save(arrays, np.stack([self.levels, self.rows, self.columns]), allow_pickle=False)
        return [arrays.getvalue(), json.dumps(self.rng.bit_generator.state).encode()]

    def set_state(self, state: list[bytes]) -> None:
        """Go back to a state that `get_state` returned."""
        self.levels, self.rows, self.columns = np.load(io.BytesIO(state[0]), allow_pickle=False)
        self.rng.bit_generator.state = json.loads(state[1])
        for n in range(self.num_envs):
            self.gaps[n], self.colours[n] = level(int(self.levels[n]))


def make(num_envs: int, seed: int, render_mode: str | None = None) -> Corridor:
    """Environments with the training levels. A video is made with render_mode="rgb_array"."""
    return Corridor(num_envs, seed, 0, TRAIN_LEVELS, render_mode)


def make_test(num_envs: int, seed: int, render_mode: str | None = None) -> Corridor:
    """Environments with levels that are not used in training."""
    return Corridor(num_envs, seed, TRAIN_LEVELS, LAST_LEVEL, render_mode)


SETTINGS = {
    "env.num_envs": 32,
    "rollout_length": 32,
    "algorithm.N_pi": 4,
    "network.channels": (8, 16),
    "network.features": 64,
    "evaluation.every": 10,
    "machine.threads": 1,  # a network this small gains nothing from more
}

if __name__ == "__main__":
    import dcpg

    run = dcpg.train("dcpg", env=make, test_env=make_test, steps=40_000, settings=SETTINGS, out="runs/corridor")
    print(
        f"training levels {run.summary['train_return']:.2f}, unseen levels {run.summary['test_return']:.2f} of {WALLS}"
    )

"""Procgen from EnvPool, where the project's own Procgen has no wheel; DCPG learns a game for a few minutes.

python docs/examples/envpool_procgen.py --game starpilot --steps 100000

The levels and rules are Procgen's. What differs is in docs/own-environment.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import envpool
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import dcpg
from dcpg.envs.base import averaged
from dcpg.envs.procgen import GAMES
from dcpg.methods import METHODS

TRAIN_LEVELS = 200  # levels 0 .. 199 are for training, all above are unseen
LAST_LEVEL = 2**31 - 1
SIZE = 32  # of frames: the mean of every 2 x 2 pixels, as with the preset `laptop` on the project's own Procgen


class EnvPoolProcgen(gymnasium.vector.VectorEnv):
    """N environments of one game in easy mode. Observations are images, uint8 [SIZE, SIZE, 3]."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, seed: int, game: str, first: int, last: int) -> None:
        self.num_envs, self.seed = num_envs, seed
        self.task = f"{game.capitalize()}Easy-v0"
        self.levels = {"start_level": first, "num_levels": last - first}  # levels first .. last - 1
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(15)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.pool: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start a new level in every environment. EnvPool takes a seed only when it makes the environments."""
        if self.pool is None or seed is not None:
            self.close()
            self.seed = self.seed if seed is None else seed
            self.pool = envpool.make_gymnasium(
                self.task, num_envs=self.num_envs, seed=self.seed, channel_first=False, **self.levels
            )
        frames, info = self.pool.reset()
        return averaged(frames, 64 // SIZE), {"level_seed": info["level_seed"]}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step; after an episode's end, the next one ignores the action and only resets (NEXT_STEP)."""
        frames, rewards, terminated, truncated, info = self.pool.step(np.asarray(actions))
        return averaged(frames, 64 // SIZE), rewards, terminated, truncated, {"level_seed": info["level_seed"]}

    def close(self, **kwargs: Any) -> None:
        """End EnvPool's threads, which it does when nothing refers to it any more."""
        self.pool = None


def makers(game: str) -> tuple[Callable[[int, int], EnvPoolProcgen], Callable[[int, int], EnvPoolProcgen]]:
    """The functions that make the environments of a game: with the training levels, and with unseen ones."""

    def make(num_envs: int, seed: int) -> EnvPoolProcgen:
        return EnvPoolProcgen(num_envs, seed, game, 0, TRAIN_LEVELS)

    def make_test(num_envs: int, seed: int) -> EnvPoolProcgen:
        return EnvPoolProcgen(num_envs, seed, game, TRAIN_LEVELS, LAST_LEVEL)

    return make, make_test


SETTINGS = {"evaluation.episodes": 20}  # during training; the preset has 100


def main(words: list[str] | None = None, preset: str = "laptop", settings: dict[str, Any] = SETTINGS) -> None:
    """Train, evaluate the agent on both kinds of levels and print its returns."""
    parser = argparse.ArgumentParser(description="Train on EnvPool's Procgen, levels 0 to 199 in easy mode.")
    parser.add_argument("--game", default="starpilot", choices=GAMES)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", help="the run's folder; runs/envpool-GAME-METHOD if left out")
    parser.add_argument("--method", default="dcpg", choices=sorted(METHODS))
    chosen = parser.parse_args(words)
    make, make_test = makers(chosen.game)
    run = dcpg.train(
        chosen.method,
        env=make,
        test_env=make_test,
        preset=preset,
        steps=chosen.steps,
        out=chosen.out or f"runs/envpool-{chosen.game}-{chosen.method}",
        settings=settings,
    )
    for levels, name in (("train", "training"), ("test", "unseen")):
        played = dcpg.evaluate(run, levels=levels, episodes=50, env=make, test_env=make_test)
        print(f"{name} levels: return {played['return']:.2f}, mean of {len(played['returns'])} episodes")


if __name__ == "__main__":
    main()

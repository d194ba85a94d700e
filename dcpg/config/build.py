"""Builds what a configuration describes: its network, its environments, its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dcpg.config.schema import OWN, Config
from dcpg.core.bandit import UCB, Augmenter, Fixed
from dcpg.core.evaluation import Protocol
from dcpg.core.networks import Network
from dcpg.envs.base import Spaces, VectorEnv
from dcpg.envs.levels import EachOnce, LevelChooser, ListedLevels, PrioritisedLevels
from dcpg.envs.library import NUM_ACTIONS
from dcpg.envs.procgen import Procgen, train_seed
from dcpg.errors import BadInput
from dcpg.ranks import ALONE, Ranks
from dcpg.seeding import generator, rand_seed
from dcpg.storage.rows import SPLITS


def build_network(config: Config, shape: tuple[int, ...], actions: int) -> Network:
    """The untrained network; its weights depend on the seed alone."""
    method = config.declared()
    network = Network(method.networks, shape, actions, config.network, config.machine.precision)
    network.initialise(generator(config.seed, "init"))
    if config.machine.compile:
        network.compile_encoders()
    return network


@dataclass(frozen=True)
class EnvMaker:
    """The user's own environment: functions (num_envs, seed) -> Gymnasium vector environment."""

    train: Callable[[int, int], Any]
    test: Callable[[int, int], Any] | None = None


def train_levels(config: Config, ranks: Ranks = ALONE) -> LevelChooser | None:
    """The chooser of the training levels, or None if the environment draws them itself."""
    c, n = config.levels, config.env.num_envs
    if c.sampler == "prioritised":
        levels = c.seeds or range(c.start, c.start + c.count)
        return PrioritisedLevels(levels, n, config.seed, c.beta, c.rho)
    own = ranks.slice(n)
    return ListedLevels(c.seeds, own.stop - own.start, config.seed, "train-levels", own.start) if c.seeds else None


def make_train(config: Config, maker: EnvMaker | None, levels: LevelChooser | None, ranks: Ranks = ALONE) -> VectorEnv:
    """The training environments of a run, or this rank's slice of them: the same ones as in a single process."""
    n, seed, own = config.env.num_envs, train_seed(config.seed), ranks.slice(config.env.num_envs)
    if config.game.startswith(OWN):
        return _user_env(config, maker, "train", n, seed)
    env = _procgen(config, own.stop - own.start, seed, levels=levels, count=config.levels.count)
    if not ranks.alone and levels is None:  # listed levels start from states that do not depend on the seed
        whole = _procgen(config, n, seed, count=config.levels.count)
        states = whole.state()
        whole.close()
        env.restore(states[own])
    return env


def known_spaces(config: Config) -> Spaces | None:
    """The spaces of the training environments, if they are known before the environments are made: on Procgen."""
    if config.game.startswith(OWN):
        return None
    return Spaces((config.env.frame_size, config.env.frame_size, 3), np.dtype(np.uint8), NUM_ACTIONS)


def make_one(config: Config, maker: EnvMaker | None) -> VectorEnv:
    """A single training environment, to inspect its spaces."""
    if config.game.startswith(OWN):
        return _user_env(config, maker, "train", 1, train_seed(config.seed))
    return _procgen(config, 1, 0)


def splits(config: Config, maker: EnvMaker | None) -> dict[str, Callable[[int, int], VectorEnv]]:
    """For training levels and for unseen ones, a function (num_envs, k) that makes the environments of evaluation k."""
    if config.game.startswith(OWN):
        names = list(SPLITS) if maker is not None and maker.test is not None else ["train"]
        return {name: partial(_user_evaluation_env, config, maker, name) for name in names}

    def train(n: int, k: int) -> VectorEnv:
        seed = rand_seed(config.seed, "eval", "train", k)
        listed = ListedLevels(config.levels.seeds, n, seed, "eval-levels") if config.levels.seeds else None
        return _procgen(config, n, seed, levels=listed, count=config.levels.count)

    def test(n: int, k: int) -> VectorEnv:
        return _procgen(config, n, rand_seed(config.seed, "eval", "test", k), count=0)

    return {"train": train, "test": test}


def make_levels(config: Config, levels: Sequence[int], render: bool = False) -> VectorEnv:
    """One environment per level, each starting on that level."""
    if config.game.startswith(OWN):
        raise BadInput("Levels can be chosen by number only on Procgen; use train or test.")
    return _procgen(config, len(levels), 0, levels=EachOnce(levels), render=render)


def _procgen(
    config: Config, n: int, seed: int, *, levels: LevelChooser | None = None, count: int = 0, render: bool = False
) -> Procgen:
    return Procgen(
        n,
        config.game,
        seed=seed,
        mode=config.env.mode,
        start=config.levels.start,
        count=count,
        levels=levels,
        frame_size=config.env.frame_size,
        threads=config.machine.threads,
        render=render,
    )


def _user_evaluation_env(config: Config, maker: EnvMaker | None, split: str, n: int, k: int) -> VectorEnv:
    return _user_env(config, maker, split, n, rand_seed(config.seed, "eval", split, k))


def _user_env(config: Config, maker: EnvMaker | None, split: str, n: int, seed: int) -> VectorEnv:
    from dcpg.envs.adapter import GymnasiumEnv

    if maker is None:
        raise BadInput(
            f"{config.game.removeprefix(OWN)} is an environment of your own; continue from Python, with env=... ."
        )
    make = maker.train if split == "train" or maker.test is None else maker.test
    return GymnasiumEnv(make(n, seed), seed)


def protocol_of(config: Config, greedy: bool = False) -> Protocol:
    """How a run is evaluated: values come from the head that gives the advantages, with that head's discount."""
    method = config.declared()
    gamma = method.targets[method.advantages].gamma
    return Protocol(method.advantages, gamma, config.evaluation.max_steps, greedy)


def augmenter_of(config: Config, ranks: Ranks = ALONE) -> Augmenter | None:
    """The chooser of the augmentation of each rollout, or None if the run uses none."""
    if config.augment == "none":
        return None
    if config.augment != "ucb":
        return Fixed(config.augment)
    return UCB(config.declared().advantages, config.drac.c, config.drac.window, ranks)


def check_fits(config: Config, env: VectorEnv) -> None:
    """Refuse an environment that does not provide what the method needs."""
    method = config.declared()
    if method.needs_levels and not env.has_levels:
        raise BadInput(
            f"{config.method} must know the level of each state: give it as info['level_seed'] from reset and step."
        )
    height, width, channels = env.shape if len(env.shape) == 3 else (0, 0, 0)
    if method.augmented and not (height == width >= 16 and channels == 3 and env.dtype == np.uint8):
        raise BadInput(
            f"augment={config.augment} needs square colour images, uint8 and at least 16 x 16; this environment's "
            f"observations are {env.dtype} {env.shape}."
        )

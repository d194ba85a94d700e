"""Builds what a configuration describes: its network, its environments, its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dcpg.config.environments import EnvMaker
from dcpg.config.schema import OWN, Config
from dcpg.core.bandit import UCB, Augmenter, Fixed
from dcpg.core.evaluation import Protocol
from dcpg.core.networks import Network
from dcpg.envs.base import Spaces, VectorEnv
from dcpg.envs.levels import EachOnce, LevelChooser, ListedLevels, PrioritisedLevels
from dcpg.envs.library import NUM_ACTIONS
from dcpg.envs.procgen import Procgen, train_seed
from dcpg.envs.stack import FrameStack
from dcpg.errors import BadInput
from dcpg.ranks import ALONE, Ranks
from dcpg.seeding import generator, rand_seed
from dcpg.storage.rows import SPLITS

MOST_PARAMETERS = 500_000_000  # of a network; the paper's has 0.6 million


def network_shapes(config: Config, shape: tuple[int, ...], actions: int) -> Network:
    """The network without memory for its weights; BadInput if it has too many."""
    network = Network(config.declared().networks, shape, actions, config.network, device="meta")
    number = sum(p.numel() for p in network.parameters())
    if number > MOST_PARAMETERS:
        raise BadInput(
            f"This network would have {number:,} parameters, more than {MOST_PARAMETERS:,}; lower network.channels, "
            "network.width or network.features."
        )
    return network


def build_network(config: Config, shape: tuple[int, ...], actions: int) -> Network:
    """The untrained network; its weights depend on the seed alone."""
    network_shapes(config, shape, actions)  # refuses one that is too large
    method = config.declared()
    network = Network(method.networks, shape, actions, config.network, config.machine.precision)
    network.initialise(generator(config.seed, "init"))
    if config.machine.compile:
        network.compile_encoders()
    return network


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
    if maker is not None:
        return _own(config, maker, "train", n, seed)
    env = _procgen(config, own.stop - own.start, seed, levels=levels, count=config.levels.count)
    if not ranks.alone and levels is None:  # listed levels start from states that do not depend on the seed
        whole = _procgen(config, n, seed, count=config.levels.count)
        states = whole.state()
        whole.close()
        env.take(states[own])
    return _with_stack(config, env)


def known_spaces(config: Config) -> Spaces | None:
    """The spaces of the training environments, if they are known before the environments are made: on Procgen."""
    if config.game.startswith(OWN):
        return None
    size, k = config.env.frame_size, config.env.frame_stack
    return Spaces((size, size, 3 * k), np.dtype(np.uint8), NUM_ACTIONS, Procgen.raw_shape, stack=k)


def spaces_of(config: Config, maker: EnvMaker | None) -> Spaces:
    """The spaces of the training environments; one of your own is made for that, and closed again."""
    known = known_spaces(config)
    if known is not None:
        return known
    assert maker is not None
    env = _own(config, maker, "train", 1, train_seed(config.seed))
    env.close()
    return Spaces.of(env)


def splits(config: Config, maker: EnvMaker | None, render: bool = False) -> dict[str, Callable[[int, int], VectorEnv]]:
    """For training levels and for unseen ones, a function (num_envs, k) that makes the environments of evaluation k.

    With `render`, your own environments are asked to draw themselves.
    """

    def train(n: int, k: int) -> VectorEnv:
        seed = rand_seed(config.seed, "eval", "train", k)
        listed = ListedLevels(config.levels.seeds, n, seed, "eval-levels") if config.levels.seeds else None
        return _with_stack(config, _procgen(config, n, seed, levels=listed, count=config.levels.count))

    def test(n: int, k: int) -> VectorEnv:
        return _with_stack(config, _procgen(config, n, rand_seed(config.seed, "eval", "test", k), count=0))

    def own(name: str, maker: EnvMaker) -> Callable[[int, int], VectorEnv]:
        return lambda n, k: _own(config, maker, name, n, rand_seed(config.seed, "eval", name, k), render)

    if maker is not None:
        return {name: own(name, maker) for name in SPLITS if name == "train" or maker.test is not None}
    return {"train": train, "test": test}


def make_levels(config: Config, levels: Sequence[int], render: bool = False) -> VectorEnv:
    """One environment per level, each starting on that level."""
    if config.game.startswith(OWN):
        raise BadInput("Levels can be chosen by number only on Procgen; use train or test.")
    return _with_stack(config, _procgen(config, len(levels), 0, levels=EachOnce(levels), render=render))


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


def _own(config: Config, maker: EnvMaker, split: str, n: int, seed: int, render: bool = False) -> VectorEnv:
    return _with_stack(config, maker.make(split, n, seed, config.env.frame_stack, render))


def _with_stack(config: Config, env: VectorEnv) -> VectorEnv:
    return env if config.env.frame_stack == 1 else FrameStack(env, config.env.frame_stack)


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
    if method.augmented and env.stack > 1:
        raise BadInput(f"augment={config.augment} is made for single frames; use env.frame_stack=1.")
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

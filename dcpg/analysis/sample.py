"""Fresh rollouts of a trained agent on its training levels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from dcpg.config.build import splits
from dcpg.config.environments import EnvMaker
from dcpg.core.collector import collect, with_rewards
from dcpg.core.rollout import Rollout
from dcpg.core.targets import with_targets
from dcpg.runs.agent import Agent
from dcpg.seeding import generator


def rollouts(agent: Agent, states: int, maker: EnvMaker | None = None, burn_in: int = 0) -> Iterator[Rollout]:
    """Rollouts of the run's own length that hold at least `states` states, with the targets of its method.

    Every environment plays `burn_in` steps first: without them all episodes begin together, and the rollouts hold
    little but their beginnings. Rewards are scaled with a copy of the run's own statistics, which continue from where
    the run left them.
    """
    c = agent.config
    env = splits(c, maker)["train"](c.env.num_envs, agent.k)
    normaliser = dataclasses.replace(agent.normaliser, sums=np.zeros(c.env.num_envs))

    def sample(length: int, *key: int | str) -> Rollout:
        g = generator(c.seed, "analyse", agent.steps, *key)
        uniform = torch.rand(length, c.env.num_envs, generator=g, dtype=torch.float64)
        return with_rewards(collect(env, agent.actor, uniform, lambda: None), normaliser)

    try:
        for first in range(0, burn_in, c.rollout_length):  # in pieces, for the frames of all would take much memory
            sample(min(c.rollout_length, burn_in - first), "burn-in", first)
        for i in range(-(-states // c.rollout_size)):
            yield with_targets(sample(c.rollout_length, i), agent.method)
    finally:
        env.close()

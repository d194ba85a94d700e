"""A trained agent, from a run's directory or from an export of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcpg.config.build import EnvMaker, build_network, make_one
from dcpg.config.schema import Config
from dcpg.config.written import read_written
from dcpg.core.actor import Actor, sample_actions
from dcpg.envs.base import Spaces, VectorEnv
from dcpg.errors import BadInput, NoValidCheckpoint
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of, prepare
from dcpg.seeding import generator
from dcpg.storage.checkpoint import Damaged
from dcpg.storage.rundir import RunDirectory
from dcpg.training.weights import Moment, find, load_weights


class Agent:
    """A policy that acts: `agent.act(observation)`."""

    def __init__(self, config: Config, moment: Moment, env: VectorEnv) -> None:
        config = settled(config, Spaces.of(env))
        self.config, self.moment = config, moment
        self.normaliser, self.steps, self.k = moment.normaliser, moment.steps, moment.k
        self.method, self.shape, self.env = config.declared(), env.shape, env
        network = build_network(config, env.shape, env.num_actions)
        if moment.weights is not None:
            load_weights(network, moment.weights)
        try:
            device = device_of(config)
        except BadInput:  # trained on an accelerator that this machine does not have
            device = torch.device("cpu")
        prepare(device)
        self.network = network.to(device)
        self.actor = Actor(self.network, tuple(self.method.targets), config.machine.chunk, device)
        self._acted = 0

    def act(self, observation: NDArray[Any], greedy: bool = False) -> NDArray[np.int64]:
        """Actions for one observation or a batch of them: sampled from the policy, or its most likely ones."""
        observation = np.asarray(observation)
        shapes = (self.env.raw_shape, self.shape)  # as the environment gives it, or as the networks see it
        single = observation.shape in shapes
        batch = observation[None] if single else observation
        if batch.shape[1:] not in shapes:
            raise BadInput(f"An observation has shape {self.env.raw_shape}; got {observation.shape}.")
        log_policy = self.actor.log_policy(batch if batch.shape[1:] == self.shape else self.env.arrange(batch))
        if greedy:
            actions = log_policy.argmax(1)
        else:
            g = generator(self.config.seed, "agent", self._acted)
            actions = sample_actions(log_policy, torch.rand(len(log_policy), generator=g, dtype=torch.float64))
            self._acted += 1
        chosen: NDArray[np.int64] = actions.numpy() + self.env.first_action
        return chosen[0] if single else chosen


def load_agent(directory: str | Path, at: int | None = None, maker: EnvMaker | None = None) -> Agent:
    """The agent of a run: its newest valid checkpoint, the milestone at `at` steps, or the untrained agent (0).

    A folder written by `dcpg export` holds the weights of one moment only.
    """
    run = RunDirectory(Path(directory))
    config = read_written(run).config
    torch.set_num_threads(config.machine.threads)
    moment = find(run, config, at)
    env = make_one(config, maker)
    env.close()
    try:
        return Agent(config, moment, env)
    except Damaged as error:
        raise NoValidCheckpoint(f"{directory}: {error}.") from None

"""A trained agent, from a run's directory or from an export of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcpg.config.build import build_network, spaces_of
from dcpg.config.environments import EnvMaker, maker_for
from dcpg.config.schema import Config
from dcpg.config.written import read_written, warn_of_plugins
from dcpg.core.actor import Actor, sample_actions
from dcpg.envs.base import Spaces, can_become
from dcpg.errors import BadInput, NoValidCheckpoint, NumericalFailure
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of, prepare
from dcpg.machine.needs import check_address_space
from dcpg.seeding import generator
from dcpg.storage.checkpoint import Damaged
from dcpg.storage.rundir import RunDirectory
from dcpg.training.weights import Moment, check_weights, find, load_weights


class Agent:
    """A policy that acts: `agent.act(observation)`. It carries its shapes and needs no environment.

    Attributes:
        spaces: The observations and actions that it was trained with.
        shape: The shape of an observation as the networks see it.
        steps: The environment steps that it was trained for.
        config: The configuration of its run.
        network: Its PyTorch network.
    """

    def __init__(self, config: Config, moment: Moment, spaces: Spaces) -> None:
        config = settled(config, spaces)
        check_address_space()
        self.config, self.moment = config, moment
        self.normaliser, self.steps, self.k = moment.normaliser, moment.steps, moment.k
        self.method, self.shape, self.spaces = config.declared(), spaces.shape, spaces
        if moment.weights is not None:
            check_weights(config, spaces, moment.weights)
        network = build_network(config, spaces.shape, spaces.actions)
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
        """Choose actions for one observation or a batch of them.

        With `env.frame_stack=k`, an observation is the last k frames, oldest first: [k, *frame].

        Args:
            observation: As the environment returns it, or as the networks see it (`agent.shape`).
            greedy: Take the most likely action instead of sampling from the policy.

        Returns:
            The environment's own number of the action, or an array of them for a batch.

        Raises:
            BadInput: The observation has another shape or type than the agent was trained with.
        """
        observation = np.asarray(observation)
        shapes = (self.spaces.raw_shape, self.shape)  # as the environment gives it, or as the networks see it
        single = observation.shape in shapes
        batch = observation[None] if single else observation
        if batch.shape[1:] not in shapes or not len(batch):
            raise BadInput(f"An observation has shape {self.spaces.raw_shape}; got {observation.shape}.")
        if not can_become(batch.dtype, self.spaces.dtype):
            raise BadInput(f"An observation has the type {self.spaces.dtype}; got {batch.dtype}.")
        batch = batch.astype(self.spaces.dtype, copy=False)
        log_policy = self.actor.log_policy(batch if batch.shape[1:] == self.shape else self.spaces.arrange(batch))
        if log_policy.isnan().any():
            raise NumericalFailure("The policy is not finite for this observation; does it have numbers that are not?")
        if greedy:
            actions = log_policy.argmax(1)
        else:
            g = generator(self.config.seed, "agent", self._acted)
            actions = sample_actions(log_policy, torch.rand(len(log_policy), generator=g, dtype=torch.float64))
            self._acted += 1
        chosen: NDArray[np.int64] = actions.numpy() + self.spaces.first_action
        return chosen[0] if single else chosen


def load_agent(directory: str | Path, at: int | None = None, maker: EnvMaker | None = None) -> Agent:
    """The agent of a run: its newest valid checkpoint, the milestone at `at` steps, or the untrained agent (0).

    A folder written by `dcpg export` holds the weights of one moment only. `maker` is for runs of older releases on the
    user's own environment, which do not record its spaces.
    """
    run = RunDirectory(Path(directory))
    written = read_written(run)
    warn_of_plugins(written)
    config, spaces = written.config, written.spaces
    torch.set_num_threads(config.machine.threads)
    moment = find(run, written, at)
    if spaces is None:
        if maker is None:
            maker_for(config.game, None, None, None, f"load {directory}")  # says what is missing
        spaces = spaces_of(config, maker)
    try:
        return Agent(config, moment, spaces)
    except Damaged as error:
        raise NoValidCheckpoint(f"{directory}: {error}.") from None

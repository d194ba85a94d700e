"""Evaluation: the first episode of each of n new environments, with sampled actions (paper, Section 5).

Evaluation k of a run is a pure function of (weights, reward variance, seed, k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcpg.core.actor import Actor, sample_actions
from dcpg.core.rewards import RewardNormaliser
from dcpg.envs.base import Step, VectorEnv
from dcpg.errors import NumericalFailure
from dcpg.seeding import generator

PAPER_GAMMA = 0.999  # the discount of the paper's true values, whatever the method's own discount


ROUND = 100  # levels that are played in parallel


TABLE = 256  # steps of acting noise that are drawn at once


@dataclass(frozen=True)
class Episodes:
    """The results of the first episode of every environment."""

    returns: list[float]  # raw
    levels: list[int]
    lengths: list[int]
    predicted_value: float  # mean V at the initial states
    true_value: float  # mean discounted normalised return, gamma 0.999
    true_value_own_gamma: float  # with the method's own gamma

    def row(self) -> dict[str, Any]:
        """The columns of an evaluation's row."""
        return {
            "mean": float(np.mean(self.returns)),
            "returns": self.returns,
            "levels": self.levels,
            "predicted_value": self.predicted_value,
            "true_value": self.true_value,
            "true_value_own_gamma": self.true_value_own_gamma,
        }


@dataclass(frozen=True)
class Protocol:
    """How an evaluation is played."""

    head: str  # the value head whose prediction is compared
    gamma: float  # the method's own discount
    max_steps: int
    greedy: bool = False


@dataclass(frozen=True)
class Turn:
    """One step of an evaluation, for `watch`: the agent's outputs for the states before it, and its result."""

    playing: NDArray[np.bool_]  # [N], environments whose first episode was not over
    log_policy: Tensor  # float32 [playing, actions]
    values: Tensor  # float32 [playing], V of the protocol's head
    actions: NDArray[np.int64]  # [N], meaningless where `playing` is False
    step: Step


def play(
    env: VectorEnv,
    actor: Actor,
    normaliser: RewardNormaliser,
    protocol: Protocol,
    key: tuple[int, str, str, int],  # (seed, "eval", split, k)
    between_steps: Callable[[], None] = lambda: None,
    watch: Callable[[Turn], None] | None = None,
) -> Episodes:
    """Play the first episode of every environment; only unfinished ones go through the network."""
    n = env.num_envs
    frames, levels = env.observe()
    log_policy, values = actor(frames)
    predicted = float(values[protocol.head].double().mean())
    returns, lengths = np.zeros(n), np.zeros(n, np.int64)
    true, true_own = np.zeros(n), np.zeros(n)
    alive = np.ones(n, bool)
    noise = torch.empty(0)
    for t in range(protocol.max_steps):
        between_steps()
        if t % TABLE == 0:
            g = generator(*key, t // TABLE)
            noise = torch.rand(TABLE, n, generator=g, dtype=torch.float64)
        if t > 0 and watch is None:  # values are computed only for `watch`
            log_policy = actor.log_policy(frames[alive])
        elif t > 0:
            log_policy, values = actor(frames[alive])
        if not (log_policy.isfinite().all() and values[protocol.head].isfinite().all()):
            raise NumericalFailure(
                f"The network's outputs are not finite, in step {t} of an evaluation: the environment may have given "
                "observations that are not."
            )
        actions = np.zeros(n, np.int64)
        rows = torch.from_numpy(alive)
        chosen = log_policy.argmax(1) if protocol.greedy else sample_actions(log_policy, noise[t % TABLE][rows])
        actions[alive] = chosen.numpy()
        step = env.step(actions)
        live = alive & step.valid
        if not np.isfinite(step.rewards[live]).all():
            raise NumericalFailure(f"The environment gave a reward that is not finite, in step {t} of an evaluation.")
        returns[live] += step.rewards[live]
        scaled = normaliser.scale(step.rewards)
        true[live] += PAPER_GAMMA**t * scaled[live]
        true_own[live] += protocol.gamma**t * scaled[live]
        lengths[live] += 1
        if watch is not None:
            watch(Turn(alive, log_policy, values[protocol.head], actions, step))
        alive = alive & ~step.dones
        frames = step.frames
        if not alive.any():
            break
    return Episodes(
        returns.tolist(), levels.tolist(), lengths.tolist(), predicted, float(true.mean()), float(true_own.mean())
    )

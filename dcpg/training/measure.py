"""The paper's analyses of what a value network or a discriminator has learnt.

Stiffness and wrong actions can also be measured while a run goes on, on each rollout and at the parameters that acted
(`--set analyse=stiffness`). Values and returns per level are part of every evaluation.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dcpg.config.schema import Config
from dcpg.core import stiffness
from dcpg.core import wrong_actions as actions
from dcpg.core.networks import Network
from dcpg.core.rollout import Rollout
from dcpg.methods import Method


def states_and_targets(tau: Rollout, head: str) -> tuple[Tensor, Tensor]:
    """The states of a rollout [n, *observation] and a value head's targets [n]; dead steps have none."""
    frames, returns = tau.frames[:-1].flatten(0, 1), tau.returns[head].flatten()
    if tau.valid.all():
        return frames, returns  # no copy
    valid = tau.valid.flatten()
    return frames[valid], returns[valid]


def live(
    config: Config, method: Method, network: Network, tau: Rollout, between_chunks: Callable[[], None]
) -> dict[str, float]:
    """What a run's configuration asks to be measured on tau, as columns of metrics.jsonl."""
    row: dict[str, float] = {}
    chunk = config.machine.chunk
    if "stiffness" in config.analyse:
        frames, returns = states_and_targets(tau, method.advantages)
        row |= stiffness.stiffness(network, method.advantages, frames, returns, chunk, between_chunks).row()
    if "ood-actions" in config.analyse:
        count = network.get_submodule("policy").out_features
        assert isinstance(count, int)
        row |= actions.believed_actions(network, tau, config.game, count, chunk, between_chunks).row()
    return row

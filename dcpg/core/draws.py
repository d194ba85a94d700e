"""Random additions to a minibatch, drawn before its terms are computed.

A draw takes a minibatch, the data it comes from, a generator and the number of actions, and returns the minibatch
with more fields, on the CPU: the loop moves the minibatch to its device afterwards. The generator is keyed by the
position of the loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.batch import Batch

if TYPE_CHECKING:
    from dcpg.core.method import Draw
    from dcpg.core.rollout import Rollout


def draw_negatives(batch: Batch, data: Any, generator: torch.Generator, actions: int) -> Batch:
    """Wrong next states and wrong actions, drawn within the minibatch as the authors' code does.

    A wrong next state is that of any other sample, uniformly. A wrong action follows the minibatch's histogram of
    actions without the true one; if no other action occurs, it is uniform over the others.
    """
    b = len(batch)
    offset = torch.randint(1, b, (b,), generator=generator) if b > 1 else torch.zeros(1, dtype=torch.int64)
    negative_next = (torch.arange(b) + offset) % b
    counts = torch.bincount(batch.actions[batch.valid > 0], minlength=actions)
    return replace(
        batch, negative_next=negative_next, negative_actions=_wrong_actions(batch.actions, counts, generator)
    )


def draw_negatives_from_B(batch: Batch, data: Any, generator: torch.Generator, actions: int) -> Batch:
    """Wrong next states and wrong actions, drawn from all of B as the paper writes them.

    A wrong next state is that of any other step in B, uniformly. A wrong action follows the histogram of all actions
    in B without the true one; if no other action occurs, it is uniform over the others.
    """
    steps = len(data.own) * data.frames.length  # at least the two of a segment
    offset = torch.randint(1, steps, (len(batch),), generator=generator)
    wrong = data.following((data.numbers(batch.segments) + offset) % steps)
    negative_actions = _wrong_actions(batch.actions, data.action_counts(actions), generator)
    return replace(batch, other_frames=wrong, negative_actions=negative_actions)


def draw_wrong_actions_from_B(batch: Batch, data: Any, generator: torch.Generator, actions: int) -> Batch:
    """The wrong actions of `draw_negatives_from_B` alone: a term without wrong next states needs no frame of B."""
    return replace(batch, negative_actions=_wrong_actions(batch.actions, data.action_counts(actions), generator))


def _wrong_actions(true: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """For each action another one, with probabilities in proportion to the counts."""
    b, actions = len(true), len(counts)
    uniform = torch.rand(b, generator=generator, dtype=torch.float64)
    weights = counts.expand(b, actions).clone()
    weights[torch.arange(b), true] = 0
    no_other = weights.sum(1) == 0
    weights[no_other] = 1
    weights[torch.arange(b), true] = 0
    cumulative = weights.cumsum(1)
    rank = (uniform * cumulative[:, -1]).long()  # an integer in [0, total)
    return (cumulative <= rank[:, None]).sum(1)


def draw_pairs(batch: Batch, tau: Rollout, generator: torch.Generator, actions: int) -> Batch:
    """For each state another one of its level in the same rollout, uniformly, and which of them is earlier.

    The other may be the state itself. Levels and step counts are those of the two states themselves.
    """
    levels, counts = tau.levels.flatten(), tau.step_counts.flatten()
    rows = tau.valid.flatten().nonzero().squeeze(1)
    rows = rows[levels[rows].argsort(stable=True)]  # grouped by level
    own, sorted_levels = levels[batch.rows], levels[rows]
    first, last = torch.searchsorted(sorted_levels, own), torch.searchsorted(sorted_levels, own, right=True)
    chance = torch.rand(len(batch), generator=generator, dtype=torch.float64)
    others = rows[first + (chance * (last - first)).long()]
    return replace(
        batch,
        other_frames=tau.states(others),
        other_is_earlier=(counts[others] < counts[batch.rows]).float(),
    )


def draw_augmentation(first: Draw | None) -> Draw:
    """A draw of the parameters of tau's augmentation for each frame, after `first` if there is one."""

    def draw(batch: Batch, tau: Rollout, generator: torch.Generator, actions: int) -> Batch:
        batch = first(batch, tau, generator, actions) if first is not None else batch
        parameters = AUGMENTATIONS[tau.augmentation].draw(len(batch), generator)
        return replace(batch, augmentation={tau.augmentation: parameters})

    return draw

"""Evaluation: the first episode of each environment, and the true value by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dcpg.core.actor import sample_actions
from dcpg.core.evaluation import Protocol, play
from dcpg.core.rewards import RewardNormaliser
from dcpg.envs.base import Step
from dcpg.errors import NumericalFailure


class Scripted:
    """Environment i gives reward i + 1 a step, ends after 2 + i steps, and goes on with another episode."""

    def __init__(self, n: int) -> None:
        self.num_envs, self.t = n, 0

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((self.num_envs, 1)), np.arange(self.num_envs) + 50

    def step(self, actions: np.ndarray) -> Step:
        self.t += 1
        n = self.num_envs
        dones = self.t % (2 + np.arange(n)) == 0
        off, on = np.zeros(n, bool), np.ones(n, bool)
        rewards = np.arange(1, n + 1).astype(np.float32)
        return Step(np.full((n, 1), self.t), rewards, dones, on, dones, np.zeros(n, np.int64), off, None)


class Watching:
    """An actor that notes how many observations it is given."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, frames: np.ndarray) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.log_policy(frames), {"value": torch.full((len(frames),), 2.5)}

    def log_policy(self, frames: np.ndarray) -> torch.Tensor:
        self.sizes.append(len(frames))
        return torch.full((len(frames), 3), -np.log(3.0))


def evaluated(**more: Any) -> tuple[Any, Watching]:
    actor = Watching()
    protocol = Protocol("value", gamma=0.5, max_steps=more.pop("max_steps", 100))
    normaliser = RewardNormaliser(np.zeros(1), var=4.0 - 1e-8)
    return play(Scripted(3), actor, normaliser, protocol, (0, "eval", "train", 0)), actor  # type: ignore[arg-type]


def test_first_episodes_and_values_by_hand() -> None:
    episodes, actor = evaluated()
    assert episodes.lengths == [2, 3, 4]
    assert episodes.returns == [2.0, 6.0, 12.0]
    assert episodes.levels == [50, 51, 52]
    assert episodes.predicted_value == 2.5
    # rewards are divided by 2: 0.5, 1, 1.5 a step, without an extra factor gamma on the first
    own = [0.5 * 1.5, 1.0 * 1.75, 1.5 * 1.875]
    paper = [r * sum(0.999**t for t in range(n)) for r, n in ((0.5, 2), (1.0, 3), (1.5, 4))]
    np.testing.assert_allclose(episodes.true_value_own_gamma, np.mean(own))
    np.testing.assert_allclose(episodes.true_value, np.mean(paper))
    assert actor.sizes == [3, 3, 2, 1]  # only unfinished episodes go through the network


def test_an_endless_episode_counts_as_it_stands() -> None:
    episodes, _ = evaluated(max_steps=3)
    assert episodes.lengths == [2, 3, 3]
    assert episodes.returns == [2.0, 6.0, 9.0]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("watched", [False, True])
def test_outputs_that_are_not_finite_end_an_evaluation(first: int, watched: bool) -> None:
    class Lost(Watching):
        def log_policy(self, frames: np.ndarray) -> torch.Tensor:
            found = super().log_policy(frames)
            return found if len(self.sizes) <= first else found * torch.nan

    with pytest.raises(NumericalFailure, match=f"not finite, in step {first} of an evaluation"):
        play(
            Scripted(3), Lost(), RewardNormaliser.fresh(3), Protocol("value", 0.5, 100), (0, "eval", "train", 0),  # type: ignore[arg-type]
            watch=(lambda turn: None) if watched else None,
        )  # fmt: skip


def test_actions_are_drawn_by_inverse_cdf() -> None:
    log_policy = torch.log(torch.tensor([[0.2, 0.3, 0.5]])).expand(5, 3)
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.999999999], dtype=torch.float64)
    assert sample_actions(log_policy, uniform).tolist() == [0, 0, 1, 1, 2]
    certain = torch.tensor([[0.0, -200.0, -200.0]])
    assert sample_actions(certain, torch.tensor([1 - 1e-16], dtype=torch.float64)).tolist() == [0]
    many = sample_actions(log_policy[:1].expand(20000, 3), torch.rand(20000, dtype=torch.float64))
    np.testing.assert_allclose(torch.bincount(many) / 20000, [0.2, 0.3, 0.5], atol=0.02)


def test_splitting_the_environments_changes_no_action() -> None:
    log_policy = torch.log_softmax(torch.randn(8, 15), 1)
    uniform = torch.rand(8, dtype=torch.float64)
    halves = [sample_actions(log_policy[i : i + 4], uniform[i : i + 4]) for i in (0, 4)]
    assert torch.equal(torch.cat(halves), sample_actions(log_policy, uniform))

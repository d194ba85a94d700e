"""The UCB bandit against a sequence computed by hand, and its state."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.bandit import UCB


def rollout(mean: float, head: str = "value") -> Any:
    """A rollout whose valid value targets have this mean; a dead step must not count."""
    returns = torch.tensor([[mean - 1.0, mean + 1.0], [mean, 1e6]])
    return SimpleNamespace(returns={head: returns}, valid=torch.tensor([[True, True], [True, False]]))


def test_a_sequence_by_hand() -> None:
    bandit = UCB("value", c=0.1, window=2)
    arms = list(AUGMENTATIONS)
    bandit.observe(rollout(99.0))  # the first rollout came before any choice: it rewards nobody
    assert (bandit.choose(), bandit.total, bandit.counts) == ("crop", 1, [1] * 8)
    assert bandit.rewards == [[]] * 8

    # crop: Q = 0.01, 0.1 sqrt(ln 2 / 2) = 0.0589 -> 0.0689; untried arms 0.1 sqrt(ln 2) = 0.0833: the first of them
    bandit.observe(rollout(0.01))
    assert (bandit.choose(), bandit.total, bandit.counts[:2]) == ("random-conv", 2, [2, 1])

    # random-conv is rewarded with 0.2: 0.2 + 0.1 sqrt(ln 3 / 2) = 0.2741; untried 0.1048; crop 0.01 + 0.0741
    bandit.observe(rollout(0.2))
    assert (bandit.choose(), bandit.counts[:2]) == ("random-conv", [2, 2])

    # again with -0.1: mean 0.05 + 0.1 sqrt(ln 4 / 3) = 0.1180; untried 0.1 sqrt(ln 4) = 0.1177; it stays
    bandit.observe(rollout(-0.1))
    assert bandit.choose() == "random-conv"

    # the window of two forgets 0.2: mean (-0.1 + 0.05) / 2 = -0.025; untried 0.1 sqrt(ln 5) = 0.1269: grayscale
    bandit.observe(rollout(0.05))
    assert bandit.choose() == "grayscale"
    assert [round(r, 6) for r in bandit.rewards[1]] == [-0.1, 0.05]
    assert bandit.total == 5
    assert bandit.counts == [2, 4, 1, 1, 1, 1, 1, 1]
    assert arms[bandit.arm] == "grayscale"


def test_a_good_first_arm_is_never_left() -> None:
    """With c = 0.1 an untried arm's bound stays below 0.1 sqrt(ln 1525) = 0.27."""
    bandit = UCB("value", c=0.1, window=10)
    for _ in range(1525):
        bandit.observe(rollout(0.3))
        assert bandit.choose() == "crop"
    assert len(bandit.rewards[0]) == 10
    assert 0.1 * math.sqrt(math.log(bandit.total)) < 0.28


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40), st.floats(0, 1), st.integers(1, 5))
def test_counts_add_up_and_the_state_goes_on_exactly(rewards: list[float], c: float, window: int) -> None:
    bandit = UCB("V", c, window)
    for r in rewards[: len(rewards) // 2]:
        bandit.observe(rollout(r, "V"))
    other = UCB("V", c, window)
    other.restore(json.loads(json.dumps(bandit.state())))
    for r in rewards[len(rewards) // 2 :]:
        bandit.observe(rollout(r, "V"))
        other.observe(rollout(r, "V"))
        assert bandit.choose() == other.choose()
    assert bandit.state() == other.state()
    assert bandit.total == len(rewards)  # the first rewards nobody, and counting starts at 1
    assert sum(bandit.counts) - 8 == bandit.total - 1
    assert all(len(last) == min(n - 1, window) for last, n in zip(bandit.rewards, bandit.counts, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"arm": 8}, {"arm": -1}, {"arm": 1.0}, {"arm": None}, {"arm": math.inf}, {"counts": [1] * 7},
        {"counts": [0, 3, 1, 1, 1, 1, 1, 1]}, {"counts": [10**400] * 8}, {"counts": {}}, {"rewards": [[math.inf]] * 8},
        {"rewards": [[0.5] * 3, *[[]] * 7]}, {"total": 0}, {"total": 5}, {"total": "3"},
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    bandit = UCB("value", 0.1, 10)
    for _ in range(3):
        bandit.observe(rollout(1.0))
    assert bandit.state() == {"total": 3, "counts": [3, *[1] * 7], "rewards": [[1.0, 1.0], *[[]] * 7], "arm": 0}
    bandit.restore(bandit.state())
    with pytest.raises(ValueError, match="bandit"):
        bandit.restore(bandit.state() | change)

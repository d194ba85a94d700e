"""The reward normaliser against a straight computation."""

from __future__ import annotations

import json

import numpy as np

from dcpg.core.rewards import RewardNormaliser


def straight(rewards: np.ndarray, dones: np.ndarray) -> tuple[np.ndarray, float]:
    """Every sum ever seen, with the initial statistics as 1e-4 samples of mean 0 and variance 1."""
    T, N = rewards.shape
    sums, seen, out = np.zeros(N), [], np.zeros((T, N))
    var = 1.0
    for t in range(T):
        sums = 0.99 * sums + rewards[t]
        seen.extend(sums.tolist())
        x, prior = np.array(seen), 1e-4
        total = prior + len(x)
        mean = x.sum() / total
        var = (prior * (1.0 + mean**2) + ((x - mean) ** 2).sum()) / total
        out[t] = np.clip(rewards[t] / np.sqrt(var + 1e-8), -10, 10)
        sums = np.where(dones[t], 0, sums)
    return out, var


def test_equals_a_straight_computation_over_two_rollouts() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(0.3, 2, (60, 5)) * (rng.random((60, 5)) < 0.4)
    dones = rng.random((60, 5)) < 0.1
    expected, var = straight(rewards, dones)
    normaliser = RewardNormaliser.fresh(5)
    valid = np.ones((30, 5), bool)
    ours = np.concatenate([normaliser(rewards[:30], dones[:30], valid), normaliser(rewards[30:], dones[30:], valid)])
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(normaliser.var, var, rtol=1e-9)


def test_first_step_by_hand_and_clipping() -> None:
    normaliser = RewardNormaliser.fresh(2)
    out = normaliser(np.array([[0.0, 2.0]]), np.zeros((1, 2), bool), np.ones((1, 2), bool))
    # two sums 0 and 2: mean 1, variance 1, and 1e-4 samples of variance 1 about 0
    np.testing.assert_allclose(normaliser.var, (2 * 1 + 1e-4 + 1e-4 * 2 / 2.0001) / 2.0001, rtol=1e-9)
    np.testing.assert_allclose(out[0, 1], 2 / np.sqrt(normaliser.var + 1e-8), rtol=1e-6)
    # numpy 2 would compute in float64 with a scalar of its own, and the true values would have other last digits
    assert normaliser.scale(np.array([0.1], np.float32)).dtype == np.float32
    assert RewardNormaliser(np.zeros(1), var=1e-6).scale(np.array([5.0, -5.0])).tolist() == [10.0, -10.0]


def test_dead_steps_count_nothing() -> None:
    rewards = np.array([[1.0, 1.0], [9.0, 1.0], [1.0, 1.0]])
    dones, valid = np.zeros((3, 2), bool), np.ones((3, 2), bool)
    valid[1, 0] = False
    a, b = RewardNormaliser.fresh(2), RewardNormaliser.fresh(2)
    out = a(rewards, dones, valid)
    other = rewards.copy()
    other[1, 0] = -77
    assert (b(other, dones, valid) == out).all()
    assert out[1, 0] == 0
    assert a.count == 5 + 1e-4


def test_state_restores_to_the_last_bit() -> None:
    rng = np.random.default_rng(1)
    a = RewardNormaliser.fresh(3)
    valid = np.ones((20, 3), bool)
    a(rng.normal(size=(20, 3)), rng.random((20, 3)) < 0.2, valid)
    b = RewardNormaliser.fresh(3)
    b.restore(json.loads(json.dumps(a.state())))
    more, dones = rng.normal(size=(20, 3)), rng.random((20, 3)) < 0.2
    assert (a(more, dones, valid) == b(more, dones, valid)).all()
    assert a.state() == b.state()

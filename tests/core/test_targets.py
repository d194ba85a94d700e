"""GAE by hand and against a direct sum."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpg.core.targets import gae, normalise, with_targets
from tests.small import declare, network_of, rollout_of


def test_gae_by_hand() -> None:
    # gamma 0.5, lambda 0.5; the episode ends at the second step
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    values = torch.tensor([[10.0], [20.0], [30.0], [40.0]])
    dones = torch.tensor([[False], [True], [False]])
    # delta_2 = 3 + 0.5*40 - 30 = -7;  delta_1 = 2 - 20 = -18;  delta_0 = 1 + 0.5*20 - 10 = 1
    # A_2 = -7;  A_1 = -18 (cut);  A_0 = 1 + 0.25 * -18 = -3.5
    assert gae(rewards, values, dones, 0.5, 0.5).squeeze(1).tolist() == [-3.5, -18.0, -7.0]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_discounted_sum_of_deltas(T: int, N: int, seed: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    r, v, d = rng.normal(size=(T, N)), rng.normal(size=(T + 1, N)), rng.random((T, N)) < 0.3
    expected = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                alive = 0.0 if d[k, n] else 1.0
                expected[t, n] += weight * (r[k, n] + gamma * alive * v[k + 1, n] - v[k, n])
                weight *= gamma * lam * alive
                if not alive:
                    break
    ours = gae(torch.tensor(r), torch.tensor(v), torch.tensor(d), gamma, lam)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_advantages_are_normalised_over_the_rollout_without_dead_steps() -> None:
    a = torch.tensor([[1.0, 2.0], [3.0, 1000.0]])
    valid = torch.tensor([[True, True], [True, False]])
    # mean 2, standard deviation (ddof 1) 1
    np.testing.assert_allclose(normalise(a, valid), [[-1 / 1.00001, 0.0], [1 / 1.00001, 0.0]], rtol=1e-6)


def test_constant_advantages_stay_finite() -> None:
    assert normalise(torch.full((2, 2), 7.0), torch.ones(2, 2, dtype=torch.bool)).abs().max() == 0
    assert normalise(torch.full((1, 1), 7.0), torch.ones(1, 1, dtype=torch.bool)).isfinite().all()


def test_a_truncated_episode_bootstraps_after_normalisation_and_a_dead_step_cuts() -> None:
    import dataclasses

    method, _ = declare("dcpg")
    tau = rollout_of(method, network_of(method))
    gamma = method.targets["value"].gamma
    dones = torch.zeros_like(tau.dones)
    dones[3, 0] = True
    final = torch.zeros_like(tau.rewards)
    final[3, 0] = 5.0
    cut = with_targets(dataclasses.replace(tau, dones=dones, final_values={"value": final}), method)
    v = tau.values["value"]
    expected = tau.rewards[3, 0] + gamma * 5.0  # nothing flows in from the next episode
    torch.testing.assert_close(cut.returns["value"][3, 0], expected)
    torch.testing.assert_close(cut.advantages_raw[3, 0], expected - v[3, 0])

    dead = torch.ones_like(tau.valid)
    dead[4, 0] = False
    with_dead = with_targets(dataclasses.replace(tau, dones=dones, valid=dead), method)
    changed = dataclasses.replace(tau, dones=dones, valid=dead, rewards=tau.rewards.clone())
    changed.rewards[4:, 0] = 100.0
    # whatever happens at and after the dead step does not reach the episode before it
    torch.testing.assert_close(with_targets(changed, method).returns["value"][:4, 0], with_dead.returns["value"][:4, 0])
    assert with_dead.advantages[4, 0] == 0

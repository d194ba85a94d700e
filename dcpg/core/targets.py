"""Generalised advantage estimation and the value function targets (paper, Section 2.2; Schulman et al. 2016)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from dcpg.core.method import Method
from dcpg.core.rollout import Rollout
from dcpg.ranks import ALONE, Ranks


def gae(
    rewards: Tensor,  # float32 [T, N]
    values: Tensor,  # float32 [T+1, N], V(s_t) recorded while acting; the last row bootstraps
    dones: Tensor,  # bool [T, N], True where step t ended an episode (or is a dead step)
    gamma: float,
    lam: float,
) -> Tensor:
    """Advantages [T, N]: A_t = delta_t + gamma lam m A_{t+1}, delta_t = r_t + gamma m V_{t+1} - V_t, m = not done."""
    goes_on = (~dones).to(values.dtype)
    deltas = rewards + gamma * values[1:] * goes_on - values[:-1]
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(deltas.shape[0])):
        following = deltas[t] + gamma * lam * goes_on[t] * following
        advantages[t] = following
    return advantages


def normalise(advantages: Tensor, valid: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the rollout (ddof 1, + 1e-5); dead steps get 0."""
    counted = advantages[valid]
    mean, deviation = _moments(counted) if ranks.alone else _moments_over_ranks(counted.double(), ranks)
    return torch.where(valid, (advantages - mean) / (deviation + 1e-5), torch.zeros(()))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(), x.std() if x.numel() > 1 else torch.zeros(())


def _moments_over_ranks(x: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over all ranks, from sums in float64."""
    count, total = ranks.total(torch.tensor([len(x), x.sum()], dtype=torch.float64))
    mean = total / count
    squares = ranks.total((x - mean).square().sum())
    return mean.float(), (squares / (count - 1)).sqrt().float() if count > 1 else torch.zeros(())


def with_targets(tau: Rollout, method: Method, ranks: Ranks = ALONE) -> Rollout:
    """tau with the value targets of the method and the advantages of the head it names."""
    cut = tau.dones | ~tau.valid
    returns: dict[str, Tensor] = {}
    advantages: dict[str, Tensor] = {}

    def of(head: str, gamma: float) -> Tensor:
        rewards = tau.rewards + gamma * tau.final_values[head]
        return gae(rewards, tau.values[head], cut, gamma, method.targets[head].lam)

    for head, target in method.targets.items():
        advantages[head] = of(head, target.gamma)
        returns[head] = advantages[head] + tau.values[head][:-1]
    raw = advantages[method.advantages]
    used = raw if method.advantage_gamma is None else of(method.advantages, method.advantage_gamma)
    return dataclasses.replace(tau, returns=returns, advantages_raw=raw, advantages=normalise(used, tau.valid, ranks))

"""Generalised advantage estimation and the value function targets (paper, Section 2.2; Schulman et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor


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


def normalise(advantages: Tensor, valid: Tensor) -> Tensor:
    """Advantages over the whole rollout with mean 0 and deviation 1 (ddof 1, + 1e-5); dead steps get 0."""
    counted = advantages[valid]
    deviation = counted.std() if counted.numel() > 1 else torch.zeros(())
    return torch.where(valid, (advantages - counted.mean()) / (deviation + 1e-5), torch.zeros(()))

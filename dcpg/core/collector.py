"""Line 4 of Algorithm 1: sampling a rollout with the policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dcpg.core.actor import Actor, sample_actions
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.rollout import Rollout
from dcpg.envs.base import VectorEnv


def with_rewards(tau: Rollout, normaliser: RewardNormaliser) -> Rollout:
    """tau with normalised rewards; the normaliser moves on."""
    rewards = normaliser(tau.raw_rewards.numpy(), tau.dones.numpy(), tau.valid.numpy())
    return dataclasses.replace(tau, rewards=torch.from_numpy(rewards))


def collect(
    env: VectorEnv,
    actor: Actor,
    uniform: Tensor,  # float64 [T, N], one entry an action
    between_steps: Callable[[], None],
) -> Rollout:
    """Sample T steps with the policy; rewards are normalised afterwards, for acting does not need them."""
    T, N = uniform.shape
    first, levels_now = env.observe()
    frames = np.empty((T + 1, *first.shape), first.dtype)
    frames[0] = first
    actions = torch.empty(T, N, dtype=torch.int64)
    log_probs = torch.empty(T, N)
    values = {head: torch.empty(T + 1, N) for head in actor.heads}
    final_values = {head: torch.zeros(T, N) for head in actor.heads}
    rewards = np.empty((T, N), np.float32)
    dones, valid, crosses = np.empty((3, T, N), bool)
    levels = np.empty((T, N), np.int64)
    for t in range(T):
        between_steps()
        log_policy, value = actor(frames[t])
        actions[t] = sample_actions(log_policy, uniform[t])
        log_probs[t] = log_policy.gather(1, actions[t][:, None]).squeeze(1)
        for head, v in value.items():
            values[head][t] = v
        levels[t] = levels_now
        step = env.step(actions[t].numpy())
        frames[t + 1], rewards[t], dones[t], valid[t] = step.frames, step.rewards, step.dones, step.valid
        crosses[t], levels_now = step.crosses, step.levels
        if step.final_frames is not None and step.truncated.any():
            cut = torch.from_numpy(step.truncated)
            for head, v in actor.values(step.final_frames[step.truncated]).items():
                final_values[head][t, cut] = v
    for head, v in actor.values(frames[T]).items():
        values[head][T] = v
    return Rollout(
        frames=torch.from_numpy(frames),
        actions=actions,
        log_probs=log_probs,
        values=values,
        final_values=final_values,
        raw_rewards=torch.from_numpy(rewards),
        dones=torch.from_numpy(dones),
        valid=torch.from_numpy(valid),
        crosses=torch.from_numpy(crosses),
        levels=torch.from_numpy(levels),
    )

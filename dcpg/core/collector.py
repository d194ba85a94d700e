"""Line 4 of Algorithm 1: sample a rollout with the policy and compute its targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dcpg.core.actor import Actor, sample_actions
from dcpg.core.bandit import Augmenter
from dcpg.core.episodes import EpisodeCounter
from dcpg.core.method import Method
from dcpg.core.observer import LoopObserver
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.rollout import Rollout
from dcpg.core.state import Memory, State
from dcpg.core.targets import with_targets
from dcpg.envs.base import VectorEnv
from dcpg.envs.levels import LevelChooser
from dcpg.ranks import ALONE, Ranks
from dcpg.seeding import generator


class Sampler(Protocol):
    """The source of the loop's rollouts."""

    actor: Actor

    @property
    def augmentation(self) -> str:
        """The augmentation of the newest rollout; empty if there is none."""

    def sample(self, rollout: int) -> Rollout: ...


class Collector:
    """Samples rollouts, and keeps the reward statistics, episodes, levels and augmentations that go with them.

    Level choosers advance while a rollout is being sampled, so the state is taken at its start: an interrupted rollout
    is sampled again, exactly.
    """

    def __init__(
        self,
        env: VectorEnv,
        actor: Actor,
        method: Method,
        *,
        seed: int,
        length: int,
        levels: LevelChooser | None = None,
        augmenter: Augmenter | None = None,
        ranks: Ranks = ALONE,
        observer: LoopObserver | None = None,
    ) -> None:
        self.env, self.actor, self.method = env, actor, method
        self.seed, self.length, self.ranks, self.observer = seed, length, ranks, observer or LoopObserver()
        self.num_envs = env.num_envs * ranks.size  # over all ranks
        self.own = ranks.slice(self.num_envs)
        self.normaliser, self.episodes = RewardNormaliser.fresh(self.num_envs), EpisodeCounter(self.num_envs)
        self.augmenter = augmenter
        self.choosers = {
            name: chooser for name, chooser in (("levels", levels), ("augmentation", augmenter)) if chooser is not None
        }
        self.counters: dict[str, Memory] = {"normaliser": self.normaliser, "episodes": self.episodes}
        self._state_at_start = self._current_state()

    @property
    def augmentation(self) -> str:
        return self.augmenter.choose() if self.augmenter is not None else ""

    def sample(self, rollout: int) -> Rollout:
        """Sample rollout number `rollout` and compute its targets."""
        uniform = torch.rand(
            self.length, self.num_envs, generator=generator(self.seed, "act", rollout), dtype=torch.float64
        )
        with self.observer.sampling():
            tau = collect(self.env, self.actor, uniform[:, self.own], self.observer.between_environment_steps)
        self.observer.sampled()
        tau = with_targets(self._counted(tau), self.method, self.ranks)
        for chooser in self.choosers.values():
            chooser.observe(tau)
        self._state_at_start = self._current_state()
        return tau.with_augmentation(self.augmentation)

    def _counted(self, tau: Rollout) -> Rollout:
        """tau with normalised rewards and step counts; every rank counts the environments of all ranks."""
        columns = self.ranks.columns
        whole = dataclasses.replace(
            tau,
            raw_rewards=columns(tau.raw_rewards),
            dones=columns(tau.dones),
            valid=columns(tau.valid),
            levels=columns(tau.levels),
        )
        rewards = with_rewards(whole, self.normaliser).rewards
        counts = torch.from_numpy(self.episodes.count(whole))
        rewards, counts = (x[:, self.own].contiguous() for x in (rewards, counts))
        return dataclasses.replace(tau, rewards=rewards, step_counts=counts)

    def row(self) -> dict[str, Any]:
        """The choosers' columns of metrics.jsonl for the newest rollout."""
        return {name: value for chooser in self.choosers.values() for name, value in chooser.row().items()}

    def _current_state(self) -> State:
        with self.observer.sampling():
            blobs = self.env.state()
        return State(
            {name: counter.state() for name, counter in self.counters.items()},  # every rank counts all environments
            own={name: chooser.state() for name, chooser in self.choosers.items()},
            blobs=blobs,
        )

    def state(self) -> State:
        return self._state_at_start

    def restore(self, state: State) -> None:
        """Return to the start of a rollout; environments that cannot save their state begin new episodes."""
        for name, counter in self.counters.items():
            counter.restore(state.plain[name])
        for name, chooser in self.choosers.items():
            chooser.restore(state.own[name])
        assert state.blobs is not None
        with self.observer.restoring():
            self.env.restore(state.blobs)
        if not self.env.exact_state:
            self.episodes.begin_anew()
            self.normaliser.sums[:] = 0
        self._state_at_start = State(state.plain, own=state.own, blobs=state.blobs)


def with_rewards(tau: Rollout, normaliser: RewardNormaliser) -> Rollout:
    """tau with normalised rewards; updates the normaliser's statistics."""
    rewards = normaliser(tau.raw_rewards.numpy(), tau.dones.numpy(), tau.valid.numpy())
    return dataclasses.replace(tau, rewards=torch.from_numpy(rewards))


def collect(
    env: VectorEnv,
    actor: Actor,
    uniform: Tensor,  # float64 [T, N], one number per action
    between_steps: Callable[[], None],
) -> Rollout:
    """Sample T steps with the policy; rewards are normalised afterwards, because acting does not need them."""
    (T, N), stack = uniform.shape, env.stack
    now, levels_now = env.observe()
    channels = now.shape[-1] // stack
    frames = np.empty((stack + T, *now.shape[:-1], channels), now.dtype)  # each frame once
    frames[:stack] = np.split(now, stack, axis=-1)
    actions = torch.empty(T, N, dtype=torch.int64)
    log_probs = torch.empty(T, N)
    values = {head: torch.empty(T + 1, N) for head in actor.heads}
    final_values = {head: torch.zeros(T, N) for head in actor.heads}
    rewards = np.empty((T, N), np.float32)
    dones, valid, crosses = np.empty((3, T, N), bool)
    levels = np.empty((T, N), np.int64)
    for t in range(T):
        between_steps()
        log_policy, value = actor(now)
        actions[t] = sample_actions(log_policy, uniform[t])
        log_probs[t] = log_policy.gather(1, actions[t][:, None]).squeeze(1)
        for head, v in value.items():
            values[head][t] = v
        levels[t] = levels_now
        step = env.step(actions[t].numpy())
        now, rewards[t], dones[t], valid[t] = step.frames, step.rewards, step.dones, step.valid
        frames[stack + t] = now[..., -channels:]
        crosses[t], levels_now = step.crosses, step.levels
        if step.final_frames is not None and step.truncated.any():
            cut = torch.from_numpy(step.truncated)
            for head, v in actor.values(step.final_frames[step.truncated]).items():
                final_values[head][t, cut] = v
    for head, v in actor.values(now).items():
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
        stack=stack,
    )

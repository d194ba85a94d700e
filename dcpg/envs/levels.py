"""Choosers of the next level of an environment: uniform over a list, one level each, or prioritised level replay.

A chooser is called at every episode's end and once per environment at the start. It observes every rollout, its state
is saved in checkpoints, and its random draws are keyed like all others (`dcpg/seeding.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcpg.seeding import generator


class Played(Protocol):
    """What a chooser observes of a rollout."""

    @property
    def advantages_raw(self) -> Tensor:
        """R - V of each step, float32 [T, N]."""

    @property
    def dones(self) -> Tensor:
        """Whether each step ended an episode, bool [T, N]."""

    @property
    def levels(self) -> Tensor:
        """The level of each step, int64 [T, N]."""


class LevelChooser(Protocol):
    """Chooses the level that an environment plays next."""

    levels: list[int]  # the seeds it chooses from

    def choose(self, env: int) -> int:
        """The seed of the next level of environment `env`."""

    def observe(self, tau: Played) -> None:
        """Learn from a rollout that was played on the chosen levels."""

    def row(self) -> dict[str, Any]:
        """The columns that this chooser adds to metrics.jsonl."""

    def state(self) -> Any:
        """JSON data from which `restore` continues exactly."""

    def restore(self, state: Any) -> None: ...


class Blind:
    """A chooser that learns nothing from rollouts."""

    def observe(self, tau: Played) -> None: ...

    def row(self) -> dict[str, Any]:
        return {}


class ListedLevels(Blind):
    """Uniform over an explicit list of level seeds."""

    def __init__(self, levels: Sequence[int], num_envs: int, seed: int, name: str, first: int = 0) -> None:
        # first: the index of this rank's first environment
        self.levels, self.seed, self.name, self.first = list(levels), seed, name, first
        self.episodes = [0] * num_envs

    def choose(self, env: int) -> int:
        """Drawn from the key (seed, name, environment, episode)."""
        self.episodes[env] += 1
        g = generator(self.seed, self.name, self.first + env, self.episodes[env])
        return self.levels[int(torch.randint(len(self.levels), (), generator=g))]

    def state(self) -> Any:
        """The number of episodes that each environment has begun."""
        return list(self.episodes)

    def restore(self, state: Any) -> None:
        episodes = [int(n) for n in state]
        if len(episodes) != len(self.episodes):
            raise ValueError(f"the listed levels have {len(episodes)} environments instead of {len(self.episodes)}")
        self.episodes = episodes


class EachOnce(Blind):
    """Environment i plays the i-th level, and repeats it if it continues."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = list(levels)

    def choose(self, env: int) -> int:
        return self.levels[env]

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None: ...


class PrioritisedLevels:
    """Levels by prioritised replay: those whose value errs most, and those not chosen for long.

    Equation: P = (1 - rho) P_S + rho P_C, P_S ~ rank(mean |R - V|)^(-1/beta), P_C ~ choices since the last one
    Source: Jiang et al. 2021 (PLR); paper, Appendix D

    Until every level has a score, an environment gets a level without one, uniformly.
    """

    def __init__(self, levels: Sequence[int], num_envs: int, seed: int, beta: float, rho: float) -> None:
        self.levels, self.num_envs, self.seed, self.beta, self.rho = list(levels), num_envs, seed, beta, rho
        self.index = {level: i for i, level in enumerate(self.levels)}
        self.scores: NDArray[np.float64] = np.full(len(self.levels), np.nan)  # NaN: not scored yet
        self.staleness: NDArray[np.int64] = np.zeros(len(self.levels), np.int64)  # choices since it was chosen
        self.choices = 0

    def choose(self, env: int) -> int:
        """At the start each environment gets the next level of the list; then come unscored levels, then replay."""
        chance = torch.rand((), generator=generator(self.seed, "prioritised", self.choices), dtype=torch.float64)
        unscored = np.flatnonzero(np.isnan(self.scores))
        if self.choices < self.num_envs:
            chosen = env % len(self.levels)
        elif len(unscored):
            chosen = int(unscored[int(chance * len(unscored))])
        else:
            cumulative = np.cumsum(self.distribution())
            chosen = int(np.searchsorted(cumulative, float(chance) * cumulative[-1], side="right"))
            chosen = min(chosen, len(self.levels) - 1)
        self.choices += 1
        self.staleness += 1
        self.staleness[chosen] = 0
        return self.levels[chosen]

    def distribution(self) -> NDArray[np.float64]:
        """P over the levels, once all have a score."""
        total = self.staleness.sum()
        stale = self.staleness / total if total else np.full(len(self.levels), 1 / len(self.levels))
        mixed: NDArray[np.float64] = (1 - self.rho) * rank_prioritised(self.scores, self.beta) + self.rho * stale
        return mixed

    def observe(self, tau: Played) -> None:
        """Each part of an episode scores its level with its mean |R - V|; a later part replaces an earlier one."""
        for level, score in level_scores(tau):
            self.scores[self.index[level]] = score

    def row(self) -> dict[str, Any]:
        """The number of levels with a score, and the probability of the likeliest level."""
        scored = int((~np.isnan(self.scores)).sum())
        top = float(np.max(self.distribution())) if scored == len(self.levels) else None
        return {"levels_scored": scored, "levels_top_probability": top}

    def state(self) -> Any:
        scores = [None if np.isnan(s) else float(s) for s in self.scores]
        return {"scores": scores, "staleness": self.staleness.tolist(), "choices": self.choices}

    def restore(self, state: Any) -> None:
        """Restore a state; raise ValueError for other levels or a state that no run can have."""
        scores, staleness, choices = state["scores"], state["staleness"], state["choices"]
        if not isinstance(scores, list) or not len(scores) == len(staleness) == len(self.levels):
            raise ValueError(f"the level sampler does not have {len(self.levels)} levels")
        fits = (
            all(s is None or (isinstance(s, float) and math.isfinite(s) and s >= 0) for s in scores)
            and all(type(n) is int and 0 <= n <= choices for n in staleness)
            and (type(choices) is int and choices >= self.num_envs)
            and (choices == 0 or 0 in staleness)
        )
        if not fits:
            raise ValueError("the level sampler's state is impossible")
        self.scores = np.array([np.nan if s is None else s for s in scores], np.float64)
        self.staleness, self.choices = np.array(staleness, np.int64), choices


def rank_prioritised(scores: NDArray[np.float64], beta: float) -> NDArray[np.float64]:
    """P_S: proportional to rank^(-1/beta), rank 1 for the highest score; of equal scores the first ranks higher."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    weights = ranks ** (-1 / beta)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def level_scores(tau: Played) -> list[tuple[int, float]]:
    """(level, mean |R - V|) of every part of an episode in a rollout: first those that ended, then the unfinished ones.

    R - V is the advantage before it is normalised. Parts come environment by environment, each in time order.
    """
    size, dones, levels = tau.advantages_raw.abs().double().numpy(), tau.dones.numpy(), tau.levels.numpy()
    ended, unfinished = [], []
    steps, environments = size.shape
    for n in range(environments):
        start = 0
        for end in np.flatnonzero(dones[:, n]) + 1:
            ended.append((int(levels[start, n]), float(size[start:end, n].mean())))
            start = int(end)
        if start < steps:
            unfinished.append((int(levels[start, n]), float(size[start:, n].mean())))
    return ended + unfinished

"""The training episodes: their returns, lengths and levels, across rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.core.rollout import Rollout


class EpisodeCounter:
    """Raw returns of the unfinished episodes, and of those that ended in the newest rollout."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)
        self.finished: list[tuple[float, int, int]] = []  # (return, length, level)

    def count(self, tau: Rollout) -> NDArray[np.int64]:
        """Count the episodes of a rollout; afterwards `finished` holds those that ended in it.

        Returns for each s_t how many steps its episode had before it, [T, N].
        """
        rewards, dones, valid = tau.raw_rewards.numpy(), tau.dones.numpy(), tau.valid.numpy()
        levels = tau.levels.numpy()
        self.finished = []
        before = np.empty(rewards.shape, np.int64)
        for t in range(rewards.shape[0]):
            before[t] = self.lengths
            self.returns += np.where(valid[t], rewards[t], 0.0)
            self.lengths += valid[t]
            for n in np.flatnonzero(dones[t]):
                self.finished.append((float(self.returns[n]), int(self.lengths[n]), int(levels[t, n])))
            self.returns[dones[t]] = 0.0
            self.lengths[dones[t]] = 0
        return before

    def row(self) -> dict[str, Any]:
        """The columns of metrics.jsonl."""
        returns, lengths, levels = ([episode[i] for episode in self.finished] for i in range(3))
        return {"episode_returns": returns, "episode_lengths": lengths, "episode_levels": levels}

    def begin_anew(self) -> None:
        """Drop unfinished episodes, because the environments start new ones."""
        self.returns[:] = 0
        self.lengths[:] = 0

    def state(self) -> dict[str, Any]:
        return {"returns": self.returns.tolist(), "lengths": self.lengths.tolist(), **self.row()}

    def restore(self, state: dict[str, Any]) -> None:
        returns, lengths = np.array(state["returns"], np.float64), np.array(state["lengths"], np.int64)
        if returns.shape != self.returns.shape or lengths.shape != self.lengths.shape:
            raise ValueError(f"the episode counts have shape {returns.shape} instead of {self.returns.shape}")
        self.returns, self.lengths = returns, lengths
        ended = zip(*(state[name] for name in self.row()), strict=True)
        self.finished = [(float(r), int(n), int(level)) for r, n, level in ended]

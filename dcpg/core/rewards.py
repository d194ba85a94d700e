"""The reward normaliser of all methods (baselines' VecNormalize, gamma 0.99), run over a rollout after collection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.errors import NumericalFailure

GAMMA = 0.99  # authors' code: not the 0.999 of the returns


EPSILON = 1e-8


CLIP = 10.0


@dataclass
class RewardNormaliser:
    """Divides rewards by the running standard deviation of the discounted return; the mean is not subtracted."""

    sums: NDArray[np.float64]  # [N], each environment's running discounted return
    mean: float = 0.0
    var: float = 1.0
    count: float = 1e-4

    @classmethod
    def fresh(cls, num_envs: int) -> RewardNormaliser:
        """The statistics at the start of a run."""
        return cls(np.zeros(num_envs))

    def __call__(self, rewards: NDArray[Any], dones: NDArray[Any], valid: NDArray[Any]) -> NDArray[np.float32]:
        """Normalised rewards [T, N]; a step updates the statistics before it is divided. Dead steps are ignored."""
        if not np.isfinite(rewards).all():
            t, n = np.argwhere(~np.isfinite(rewards))[0]
            raise NumericalFailure(
                f"The environment gave the reward {rewards[t, n]} (environment {n}, step {t} of the rollout)."
            )
        out = np.zeros(rewards.shape, np.float32)
        for t in range(rewards.shape[0]):
            live = valid[t]
            self.sums[live] = GAMMA * self.sums[live] + rewards[t, live]
            if live.any():
                self._merge(self.sums[live])
            out[t, live] = self.scale(rewards[t, live])
            self.sums[dones[t]] = 0.0
        return out

    def scale(self, rewards: NDArray[Any]) -> NDArray[Any]:
        """Rewards divided with the statistics as they are now (for evaluation)."""
        deviation = math.sqrt(self.var + EPSILON)  # a plain float: numpy 2 would compute in float64 with its own
        scaled: NDArray[Any] = np.clip(rewards / deviation, -CLIP, CLIP)
        return scaled

    def _merge(self, batch: NDArray[np.float64]) -> None:
        n, mean, var = batch.size, float(batch.mean()), float(batch.var())
        total, delta = self.count + n, mean - self.mean
        m2 = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean, self.var, self.count = self.mean + delta * n / total, m2 / total, total

    def state(self) -> dict[str, Any]:
        return {"sums": self.sums.tolist(), "mean": self.mean, "var": self.var, "count": self.count}

    def restore(self, state: Any) -> None:
        """Restore a state; raise ValueError for another number of environments or impossible statistics."""
        sums = np.array(state["sums"], np.float64)
        mean, var, count = float(state["mean"]), float(state["var"]), float(state["count"])
        if sums.shape != self.sums.shape:
            raise ValueError("the reward normaliser has another number of environments")
        if not np.isfinite([*sums, mean, var, count]).all() or var < 0 or count <= 0:
            raise ValueError("the reward normaliser's statistics are impossible")
        self.sums, self.mean, self.var, self.count = sums, mean, var, count

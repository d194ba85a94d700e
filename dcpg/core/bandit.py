"""Choosers of the augmentation of DrAC: a fixed one, or the UCB bandit of UCB-DrAC (Raileanu et al. 2021)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from dcpg.core.rollout import Rollout


class Augmenter(Protocol):
    """Chooses the augmentation for the update on each rollout."""

    def choose(self) -> str:
        """The augmentation for the rollout that was observed last."""

    def observe(self, tau: Rollout) -> None:
        """Learn from a rollout that was sampled after the update with the previous choice."""

    def row(self) -> dict[str, Any]:
        """The columns that this chooser adds to metrics.jsonl."""

    def state(self) -> Any:
        """JSON data from which `restore` continues exactly."""

    def restore(self, state: Any) -> None: ...


class Fixed:
    """Always the same augmentation.

    Equation: g = the one that `augment` names
    Source: Raileanu et al. 2021 (DrAC)
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def choose(self) -> str:
        return self.name

    def observe(self, tau: Rollout) -> None: ...

    def row(self) -> dict[str, Any]:
        return {"augmentation": self.name}

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None: ...


class UCB:
    """The augmentation that has done best, with a bonus for those seldom tried.

    Equation: argmax Q + c sqrt(ln N / n), Q the mean of an arm's last rewards, n and N the choices counted from 1
    Source: Raileanu et al. 2021 (UCB-DrAC); paper, Appendix D

    The reward of an arm is the mean value target of the rollout that follows the update made with it.
    """

    arms = tuple(AUGMENTATIONS)

    def __init__(self, head: str, c: float, window: int, ranks: Ranks = ALONE) -> None:
        # head: the value head whose mean target is the reward
        self.head, self.c, self.window, self.ranks = head, c, window, ranks
        self.total = 1
        self.counts = [1] * len(self.arms)
        self.rewards: list[list[float]] = [[] for _ in self.arms]  # the last `window` of each arm
        self.arm: int | None = None  # None before the first rollout

    def choose(self) -> str:
        return self.arms[self.arm or 0]

    def observe(self, tau: Rollout) -> None:
        """Reward the arm in use, then choose the next one; ties go to the first arm."""
        if self.arm is not None:
            self.total += 1
            self.counts[self.arm] += 1
            targets = tau.returns[self.head][tau.valid].double()
            total, count = self.ranks.total(torch.tensor([targets.sum(), len(targets)], dtype=torch.float64))
            reward = float(total / count)
            self.rewards[self.arm] = [*self.rewards[self.arm], reward][-self.window :]
        bounds = [
            (sum(rewards) / len(rewards) if rewards else 0.0) + self.c * math.sqrt(math.log(self.total) / count)
            for rewards, count in zip(self.rewards, self.counts, strict=True)
        ]
        self.arm = bounds.index(max(bounds))

    def row(self) -> dict[str, Any]:
        return {"augmentation": self.choose()}

    def state(self) -> Any:
        return {
            "total": self.total,
            "counts": list(self.counts),
            "rewards": [list(last) for last in self.rewards],
            "arm": self.arm,
        }

    def restore(self, state: Any) -> None:
        """Restore a state; raise ValueError for one that no run can have."""
        total, counts, rewards, arm = (state[name] for name in ("total", "counts", "rewards", "arm"))
        arms = range(len(self.arms))
        if not (isinstance(counts, list) and isinstance(rewards, list) and len(counts) == len(rewards) == len(arms)):
            raise ValueError("the bandit has other arms")
        fits = (
            all(type(n) is int and n >= 1 for n in counts)
            and (type(total) is int and total == sum(counts) - len(arms) + 1)
            and all(len(last) == min(n - 1, self.window) for last, n in zip(rewards, counts, strict=True))
            and all(isinstance(r, float) and math.isfinite(r) for last in rewards for r in last)
            and ((arm is None and total == 1) or (type(arm) is int and arm in arms))
        )
        if not fits:
            raise ValueError("the bandit's state is impossible")
        self.total, self.counts, self.rewards, self.arm = total, counts, rewards, arm

"""The buffer B of the auxiliary phase: what a method keeps of every rollout since the last one.

A segment is the T+1 frames of one environment in one rollout, compressed. On Procgen segments are 9 to 357 times
smaller than their frames, so the paper's whole B fits in 0.02 to 0.7 GB. B holds compressed copies: it never aliases
a live rollout.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.rollout import PER_STEP, FrameShape, Rollout, check_rollout_tensors
from dcpg.text import counted


@dataclass(frozen=True)
class Kept:
    """What B keeps of one rollout: what the method's `keep` names, which steps are valid, and `crosses` for stacks."""

    segments: list[bytes]  # s: N compressed segments
    tensors: dict[str, Tensor]  # valid, returns/HEAD (R), actions (a), crosses (done), each [T, N]


class Buffer:
    """B: the rollouts since the last auxiliary phase, and pi_old's outputs on them while that phase lasts."""

    def __init__(self, keep: Sequence[str], heads: Sequence[str], frames: FrameShape) -> None:
        self.frames = frames
        self.heads = tuple(heads)  # value heads whose targets are kept
        self.dynamics = "a" in keep  # keeps a, and with it s' of each segment's last step
        self.names = ["valid", *(f"returns/{head}" for head in heads)]
        self.names += ["actions"] if "a" in keep else []
        self.names += ["crosses"] if "done" in keep or frames.stack > 1 else []  # or to know which frames to stack
        self.envs = range(frames.num_envs)  # environments whose segments `order` returns
        self.rollouts: dict[int, Kept] = {}
        self.old_log_policy: Tensor | None = None  # float32 [segments of B, T, actions]

    def add(self, number: int, tau: Rollout) -> None:
        """Keep a rollout; adding it again changes nothing."""
        if number not in self.rollouts:
            tensors = tau.tensors()
            self.rollouts[number] = Kept(tau.segments, {name: tensors[name] for name in self.names})

    def restore(self, number: int, tensors: Mapping[str, Tensor], segments: list[bytes]) -> None:
        """Restore what was kept of a rollout; tensors that B does not keep are left out."""
        kept = {name: tensors[name] for name in self.names}
        check_rollout_tensors(kept, {name: PER_STEP.get(name, torch.float32) for name in self.names}, self.frames)
        if len(segments) != self.frames.num_envs:
            raise ValueError(f"{counted(len(segments), 'segment')} for {counted(self.frames.num_envs, 'environment')}")
        for segment in segments:
            self.frames.open(segment)  # raises: what cannot be opened would end the run later, again and again
        self.rollouts[number] = Kept(segments, kept)

    def clear(self) -> None:
        self.rollouts.clear()
        self.old_log_policy = None

    def __len__(self) -> int:
        """The number of segments."""
        return len(self.rollouts) * self.frames.num_envs

    def _places(self, segments: Tensor) -> list[tuple[Kept, int]]:
        kept, N = list(self.rollouts.values()), self.frames.num_envs
        return [(kept[i // N], i % N) for i in segments.tolist()]

    def states(self, segments: Tensor) -> NDArray[Any]:
        """The states s_0 .. s_{T-1} of some segments, [T, S, ...]."""
        return np.stack([self._open(kept, n)[:-1] for kept, n in self._places(segments)], axis=1)

    def _open(self, kept: Kept, n: int) -> NDArray[Any]:
        """The T+1 observations of one segment."""
        crosses = kept.tensors["crosses"][:, n] if self.frames.stack > 1 else None
        return self.frames.states(kept.segments[n], crosses)

    def minibatch(self, segments: Tensor) -> Batch:
        """Whole segments as one batch, samples in the order [T, S]."""
        places = self._places(segments)
        T, S = self.frames.length, len(places)
        frames = np.empty((T * S + (S if self.dynamics else 0), *self.frames.observation), self.frames.dtype)
        for j, (kept, n) in enumerate(places):
            segment = self._open(kept, n)
            frames[j : T * S : S] = segment[:-1]
            if self.dynamics:
                frames[T * S + j] = segment[-1]

        def column(name: str) -> Tensor:
            return torch.stack([kept.tensors[name][:, n] for kept, n in places], dim=1).flatten()

        empty = torch.empty(0)
        assert self.old_log_policy is not None
        return Batch(
            frames=torch.from_numpy(frames),
            valid=column("valid").float(),
            returns={head: column(f"returns/{head}") for head in self.heads},
            actions=column("actions") if self.dynamics else empty,
            # frames are laid out as [T, S] followed by the S last ones, so s_{t+1} is always S rows further
            next_rows=torch.arange(S, T * S + S) if self.dynamics else empty,
            crosses=column("crosses").float() if "crosses" in self.names else empty,
            old_log_policy=self.old_log_policy[segments].transpose(0, 1).flatten(0, 1),
            segments=segments,
        )

    def part(self, envs: range) -> Buffer:
        """A view of the buffer in which `own` and `order` are only the segments of some environments."""
        view = copy.copy(self)
        view.envs = envs
        return view

    @property
    def own(self) -> Tensor:
        """The indices of the segments of this view's environments, in ascending order."""
        return torch.arange(len(self)).view(-1, self.frames.num_envs)[:, self.envs.start : self.envs.stop].flatten()

    def order(self, generator: torch.Generator) -> Tensor:
        """The indices of the segments, shuffled."""
        own = self.own
        return own[torch.randperm(len(own), generator=generator)]

    def numbers(self, segments: Tensor) -> Tensor:
        """The numbers, from 0, of the samples of a minibatch among all steps of this view: segment by segment."""
        first = torch.searchsorted(self.own, segments) * self.frames.length
        return (torch.arange(self.frames.length)[:, None] + first).flatten()

    def following(self, numbers: Tensor) -> Tensor:
        """s_{t+1} of single steps of this view, by their numbers; every segment is opened once."""
        frames = np.empty((len(numbers), *self.frames.observation), self.frames.dtype)
        segments, steps = self.own[numbers // self.frames.length], (numbers % self.frames.length).numpy()
        for segment in sorted(set(segments.tolist())):
            rows = (segments == segment).numpy()
            ((kept, n),) = self._places(torch.tensor([segment]))
            frames[rows] = self._open(kept, n)[steps[rows] + 1]
        return torch.from_numpy(frames)

    def action_counts(self, actions: int) -> Tensor:
        """How often each action was taken at the valid steps of this view."""
        counts = torch.zeros(actions, dtype=torch.int64)
        for kept in self.rollouts.values():
            taken, valid = (kept.tensors[name][:, self.envs.start : self.envs.stop] for name in ("actions", "valid"))
            counts += torch.bincount(taken[valid], minlength=actions)
        return counts

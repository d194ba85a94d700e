"""The buffer B of the auxiliary phase: every environment's segment of every rollout, compressed.

A segment is the T+1 frames of one environment in one rollout, in time order, compressed with zstd level 1. On
Procgen such segments are 9 to 357 times smaller than their frames, so the paper's whole B fits in 0.02 to 0.7 GB.
B holds compressed copies: it never aliases a live rollout.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.rollout import Rollout

LEVEL = 1


def compress(frames: Tensor) -> list[bytes]:
    """The segments of frames [T+1, N, ...], one byte string an environment."""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    array = frames.numpy()
    return [compressor.compress(np.ascontiguousarray(array[:, n]).tobytes()) for n in range(array.shape[1])]


def decompress(segment: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A segment's frames [T+1, ...]; the size must be what the shape says."""
    size = int(np.prod(shape)) * dtype.itemsize
    if zstandard.frame_content_size(segment) != size:
        raise ValueError(f"a segment does not hold {size} bytes")
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(segment), dtype).reshape(shape)


@dataclass(frozen=True)
class Kept:
    """One rollout in B: compressed frames and its small tensors (frames left out)."""

    segments: list[bytes]  # N compressed segments
    tau: Rollout  # without frames: a few numbers a transition, against 12,288 bytes for a frame


class Buffer:
    """B: the rollouts since the last auxiliary phase, and pi_old's outputs on them while that phase lasts."""

    def __init__(
        self, keep: tuple[str, ...], length: int, num_envs: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.keep, self.num_envs, self.shape, self.dtype = keep, num_envs, (length + 1, *shape), dtype
        self.envs = range(num_envs)  # whose segments `order` gives
        self.rollouts: dict[int, Kept] = {}
        self.old_log_policy: Tensor | None = None  # float32 [segments of B, T, actions]

    def add(self, rollout: int, tau: Rollout, segments: list[bytes]) -> None:
        """Keep a rollout; adding it again changes nothing."""
        if rollout not in self.rollouts:
            self.rollouts[rollout] = Kept(segments, replace(tau, frames=torch.empty(0)))

    def clear(self) -> None:
        """Start a new phase."""
        self.rollouts.clear()
        self.old_log_policy = None

    def __len__(self) -> int:
        return len(self.rollouts) * self.num_envs

    def _places(self, segments: Tensor) -> list[tuple[Kept, int]]:
        kept = list(self.rollouts.values())
        return [(kept[i // self.num_envs], i % self.num_envs) for i in segments.tolist()]

    def states(self, segments: Tensor) -> NDArray[Any]:
        """The states s_0 .. s_{T-1} of some segments, [T, S, ...]."""
        opened = [decompress(kept.segments[n], self.shape, self.dtype) for kept, n in self._places(segments)]
        return np.stack([frames[:-1] for frames in opened], axis=1)

    def minibatch(self, segments: Tensor) -> Batch:
        """Whole segments as one batch, samples in the order [T, S]."""
        places = self._places(segments)
        opened = [decompress(kept.segments[n], self.shape, self.dtype) for kept, n in places]
        T, S = self.shape[0] - 1, len(places)
        dynamics = "a" in self.keep
        frames = np.empty((T * S + (S if dynamics else 0), *self.shape[1:]), self.dtype)
        for j, segment in enumerate(opened):
            frames[j : T * S : S] = segment[:-1]
            if dynamics:
                frames[T * S + j] = segment[-1]

        def column(pick: Any) -> Tensor:
            return torch.stack([pick(kept.tau)[:, n] for kept, n in places], dim=1).flatten()

        empty = torch.empty(0)
        assert self.old_log_policy is not None
        return Batch(
            frames=torch.from_numpy(frames),
            valid=column(lambda tau: tau.valid).float(),
            returns={head: column(lambda tau, head=head: tau.returns[head]) for head in places[0][0].tau.returns},
            actions=column(lambda tau: tau.actions) if dynamics else empty,
            # frames are laid out [T, S] and then the S last ones, so s_{t+1} is always S rows further
            next_rows=torch.arange(S, T * S + S) if dynamics else empty,
            crosses=column(lambda tau: tau.crosses).float() if "done" in self.keep else empty,
            old_log_policy=self.old_log_policy[segments].transpose(0, 1).flatten(0, 1),
            segments=segments,
        )

    def part(self, envs: range) -> Buffer:
        """The same buffer, of which `order` gives the segments of some environments alone."""
        view = copy.copy(self)
        view.envs = envs
        return view

    def order(self, generator: torch.Generator) -> Tensor:
        """The segments, shuffled."""
        own = torch.arange(len(self)).view(-1, self.num_envs)[:, self.envs.start : self.envs.stop].flatten()
        return own[torch.randperm(len(own), generator=generator)]

"""A rollout tau: T steps of N environments, with named tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.state import check_shape
from dcpg.text import counted

COMPRESSION_LEVEL = 1  # zstd's fastest
PER_STEP = {  # dtype of each tensor [T, N]
    "actions": torch.int64,
    "log_probs": torch.float32,
    "raw_rewards": torch.float32,
    "dones": torch.bool,
    "valid": torch.bool,
    "crosses": torch.bool,
    "levels": torch.int64,
    "rewards": torch.float32,
    "step_counts": torch.int64,
    "advantages_raw": torch.float32,
    "advantages": torch.float32,
}
PER_HEAD = ("values", "final_values", "returns")  # value head -> float32, [T, N] or [T+1, N]


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments. It is not modified once its targets are computed."""

    frames: Tensor  # env dtype [stack-1 + T+1, N, *frame], the first stack-1 of them as the first observation has them
    actions: Tensor  # int64 [T, N]
    log_probs: Tensor  # float32 [T, N], log pi(a|s) while acting
    values: dict[str, Tensor]  # value head -> V(s_t) while acting, float32 [T+1, N]
    final_values: dict[str, Tensor]  # value head -> V at a truncated episode's last observation, else 0, float32 [T, N]
    raw_rewards: Tensor  # float32 [T, N]
    dones: Tensor  # bool [T, N], the step ended an episode
    valid: Tensor  # bool [T, N], False for a dead step
    crosses: Tensor  # bool [T, N], frames[t+1] is not the successor of frames[t]
    levels: Tensor  # int64 [T, N], the level of s_t
    rewards: Tensor = field(default_factory=lambda: torch.empty(0))  # normalised, float32 [T, N]
    step_counts: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [T, N], steps of its episode before s_t
    returns: dict[str, Tensor] = field(default_factory=dict)  # value head -> value target R_t, float32 [T, N]
    # R - V of the head that gives the advantages, by which levels are scored, float32 [T, N]
    advantages_raw: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))  # normalised over the rollout, float32 [T, N]
    augmentation: str = ""  # the augmentation that DrAC's terms use on this rollout
    stack: int = 1  # frames of one observation

    def __len__(self) -> int:
        return self.actions.numel()

    def states(self, rows: Tensor) -> Tensor:
        """The observations at `rows` of the flattened [T+1, N], stacked here if they have several frames."""
        frames = self.frames.flatten(0, 1)
        if self.stack == 1:
            return frames.index_select(0, rows.to(frames.device, non_blocking=True))
        chosen = self._stacked_rows[:, rows].to(frames.device, non_blocking=True)
        return torch.cat([frames.index_select(0, one) for one in chosen], dim=-1)

    @cached_property
    def _stacked_rows(self) -> Tensor:
        """For each row of [T+1, N], its frames as rows of the flattened frames, int64 [stack, (T+1) N]."""
        N = self.actions.shape[1]
        return (stacked_places(self.crosses, self.stack) * N + torch.arange(N)).flatten(1)

    def minibatch(self, rows: Tensor) -> Batch:
        """The transitions at `rows` of the flattened [T, N]."""

        def flat(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, rows.to(x.device, non_blocking=True))

        T = self.actions.shape[0]
        return Batch(
            frames=self.states(rows),
            valid=torch.ones(len(rows)),
            returns={head: flat(x) for head, x in self.returns.items()},
            rows=rows,
            actions=flat(self.actions),
            log_probs=flat(self.log_probs),
            advantages=flat(self.advantages),
            old_values={head: flat(x[:T]) for head, x in self.values.items()},
        )

    def on(self, device: torch.device) -> Rollout:
        """This rollout with its frames on a device; all other tensors are small and stay on the CPU."""
        frames = self.frames.to(device)
        return self if frames is self.frames else dataclasses.replace(self, frames=frames)

    def order(self, generator: torch.Generator) -> Tensor:
        """The rows of all valid transitions, shuffled."""
        rows = self.valid.flatten().nonzero().squeeze(1)
        return rows[torch.randperm(len(rows), generator=generator)]

    def part(self, envs: range) -> Rollout:
        """This rollout with only the transitions of some environments counted as valid."""
        if len(envs) == self.valid.shape[1]:
            return self
        among = torch.zeros_like(self.valid[0])
        among[envs.start : envs.stop] = True
        return dataclasses.replace(self, valid=self.valid & among)

    @cached_property
    def segments(self) -> list[bytes]:
        """The frames of each environment in time order, compressed when B or a checkpoint first asks for them."""
        compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)
        array = self.frames.numpy()
        return [compressor.compress(np.ascontiguousarray(array[:, n]).tobytes()) for n in range(array.shape[1])]

    def with_augmentation(self, name: str) -> Rollout:
        """This rollout with the augmentation that was chosen for it."""
        tau = dataclasses.replace(self, augmentation=name)
        if "segments" in self.__dict__:
            tau.__dict__["segments"] = self.segments
        return tau

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the frames, under flat names such as `returns/value`."""
        flat = {name: getattr(self, name) for name in PER_STEP}
        for name in PER_HEAD:
            flat |= {f"{name}/{head}": x for head, x in getattr(self, name).items()}
        return flat

    @classmethod
    def restored(
        cls,
        tensors: Mapping[str, Tensor],
        segments: list[bytes],
        frames: FrameShape,
        heads: Sequence[str],
        actions: int,
    ) -> Rollout:
        """A rollout from `tensors()` and `segments`; raise ValueError if they do not fit this run."""
        expected = PER_STEP | {f"{name}/{head}": torch.float32 for name in PER_HEAD for head in heads}
        check_rollout_tensors(tensors, expected, frames)
        check_actions(tensors["actions"], actions)
        fields: dict[str, Any] = {name: tensors[name] for name in PER_STEP}
        fields |= {name: {head: tensors[f"{name}/{head}"] for head in heads} for name in PER_HEAD}
        tau = cls(frames=torch.from_numpy(frames.opened(segments)), stack=frames.stack, **fields)
        tau.__dict__["segments"] = segments  # fills the cached property
        return tau


def stacked_places(crosses: Tensor, stack: int) -> Tensor:
    """The places in `Rollout.frames` of each observation's frames, oldest first, int64 [stack, T+1, N].

    An episode that begins in the rollout has only its own frames: its first one stands for those before it.
    """
    T, N = crosses.shape
    now = torch.arange(T + 1)[:, None]
    begins = torch.where(crosses, now[1:], 1 - stack)  # frame t+1 begins an episode where step t crosses
    first = torch.cat([torch.full((1, N), 1 - stack), begins]).cummax(0).values
    return torch.stack([torch.maximum(now - lag, first) for lag in reversed(range(stack))]) + stack - 1


@dataclass(frozen=True)
class FrameShape:
    """The shape and dtype of a rollout's frames, by which segments are decompressed."""

    length: int  # T
    num_envs: int  # N
    frame: tuple[int, ...]
    dtype: np.dtype[Any]
    stack: int = 1

    @property
    def observation(self) -> tuple[int, ...]:
        """The shape of one observation: its frames are along the last axis."""
        return (*self.frame[:-1], self.frame[-1] * self.stack)

    def states(self, segment: bytes, crosses: Tensor | None) -> NDArray[Any]:
        """The T+1 observations of a segment; `crosses` [T] is needed if they have several frames."""
        frames = self.open(segment)
        if self.stack == 1:
            return frames
        assert crosses is not None
        return np.concatenate([frames[places] for places in stacked_places(crosses[:, None], self.stack)[..., 0]], -1)

    def open(self, segment: bytes) -> NDArray[Any]:
        """Decompress the frames of a segment; one with another number of bytes is refused first."""
        shape = (self.length + self.stack, *self.frame)
        size = int(np.prod(shape)) * self.dtype.itemsize
        if zstandard.frame_content_size(segment) != size:
            raise ValueError(f"a segment does not hold {size} bytes")
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(segment), self.dtype).reshape(shape)

    def opened(self, segments: list[bytes]) -> NDArray[Any]:
        """Decompress the segments of all environments, as `Rollout.frames` has them."""
        if len(segments) != self.num_envs:
            raise ValueError(f"{counted(len(segments), 'segment')} for {counted(self.num_envs, 'environment')}")
        frames = np.empty((self.length + self.stack, self.num_envs, *self.frame), self.dtype)
        for n, segment in enumerate(segments):
            frames[:, n] = self.open(segment)
        return frames


def check_rollout_tensors(found: Mapping[str, Tensor], expected: Mapping[str, torch.dtype], frames: FrameShape) -> None:
    """Refuse tensors of a rollout that have other names, shapes or dtypes than expected."""
    if found.keys() != expected.keys():
        raise ValueError(f"a rollout has other tensors: {sorted(found.keys() ^ expected.keys())[:3]}")
    for name, tensor in found.items():
        if tensor.dtype != expected[name]:  # first: not every type can be asked for its finite numbers
            raise ValueError(f"{name} of a rollout is {tensor.dtype} instead of {expected[name]}")
        check_shape(f"{name} of a rollout", tensor, (frames.length + name.startswith("values/"), frames.num_envs))


def check_actions(found: Tensor, count: int) -> None:
    """Refuse actions that an environment with `count` actions does not have."""
    if not ((found >= 0) & (found < count)).all():
        raise ValueError("a rollout has actions that the environment does not have")

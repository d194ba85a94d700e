"""The interface of environments that the rest of the project uses."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dcpg.errors import BadInput

Array = NDArray[Any]
NUMBERS = "biuf"  # kinds of dtypes: bool, integers, floats


def can_become(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether observations of a type may be converted to a space's: numbers to any float, or to what holds them all."""
    return found.kind in NUMBERS and (wanted.kind == "f" or np.can_cast(found, wanted, "safe"))


def saved_array(data: bytes, like: Array) -> Array:
    """What `np.save` wrote, in the dtype of `like`; ValueError for another shape, before memory is taken for it."""
    file = io.BytesIO(data)
    try:
        header: Any = np.lib.format  # which has no types
        read = {(1, 0): header.read_array_header_1_0, (2, 0): header.read_array_header_2_0}
        shape, by_columns, dtype = read[header.read_magic(file)](file)
    except Exception as error:  # numpy parses the header as Python's own literals, with errors of many types
        raise ValueError(f"saved numbers have no header that can be read ({type(error).__name__})") from None
    rest = data[file.tell() :]
    if shape != like.shape or dtype.kind not in NUMBERS or len(rest) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"saved numbers are {dtype} {shape}, not {like.dtype} {like.shape}")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if by_columns else "C").astype(like.dtype)


@dataclass(frozen=True)
class Step:
    """The result of one step of all N environments."""

    frames: Array  # [N, *observation], the observation to act on next
    rewards: Array  # float32 [N], raw
    dones: Array  # bool [N], this step ended an episode
    valid: Array  # bool [N], False where the action was ignored because the environment was resetting (a dead step)
    crosses: Array  # bool [N], `frames` is not the successor of the observation acted on
    levels: Array  # int64 [N], the level of `frames`
    truncated: Array  # bool [N], the episode was cut off rather than ended
    final_frames: Array | None  # [N, *observation], rows of truncated episodes hold their last observation


@dataclass(frozen=True)
class Spaces:
    """The observations and actions of an environment: all that an agent must know of it."""

    shape: tuple[int, ...]  # of one observation as the networks see it: [H, W, C], or flat; frames along the last axis
    dtype: np.dtype[Any]
    actions: int
    frame: tuple[int, ...] = ()  # of one frame as the environment returns it; empty: as the networks see it
    first_action: int = 0  # the environment's own number for action 0
    stack: int = 1  # frames that make one observation

    @classmethod
    def of(cls, env: VectorEnv) -> Spaces:
        return cls(env.shape, env.dtype, env.num_actions, env.raw_shape, env.first_action, env.stack)

    @property
    def single(self) -> tuple[int, ...]:
        """The shape of one frame as the networks see it."""
        return (*self.shape[:-1], self.shape[-1] // self.stack)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """The shape of one observation as the environment returns it: of several frames, oldest first, if stacked."""
        frame = self.frame or self.single
        return frame if self.stack == 1 else (self.stack, *frame)

    def arrange(self, observations: Array) -> Array:
        """A batch of raw observations as the networks see it."""
        frames = [observations] if self.stack == 1 else [observations[:, i] for i in range(self.stack)]
        if self.frame[:2] != self.single[:2] and self.frame[2:] == self.single[2:]:  # Procgen's, made smaller
            frames = [averaged(frame, self.frame[0] // self.single[0]) for frame in frames]
        return np.concatenate([arranged(frame, self.single) for frame in frames], axis=-1)

    def __str__(self) -> str:
        start = f" from {self.first_action}" if self.first_action else ""
        return f"observations {self.dtype} {self.raw_shape} and {self.actions} actions{start}"


def arranged(frames: Array, shape: tuple[int, ...]) -> Array:
    """A batch of frames as the networks see them: images as [N, H, W, C], others unchanged."""
    frames = np.asarray(frames)
    if frames.shape[1:] == shape:
        return frames
    if len(shape) == 3 and frames.shape[1:] == shape[:2]:
        return frames[..., None]
    if len(shape) == 3 and frames.shape[1:] == (shape[2], *shape[:2]):
        return np.ascontiguousarray(np.moveaxis(frames, 1, 3))
    raise BadInput(f"The environment gave observations of shape {frames.shape[1:]}; its space says {shape}.")


def averaged(frames: Array, factor: int) -> Array:
    """Frames [N, H, W, C] averaged over squares of `factor`, rounded, uint8."""
    area, (n, height, width, channels) = factor * factor, frames.shape
    total: Array = np.full((n, height // factor, width // factor, channels), area // 2, np.uint16)
    for i in range(factor):
        for j in range(factor):
            total += frames[:, i::factor, j::factor]
    return (total // area).astype(np.uint8)


class VectorEnv(Protocol):
    """N environments that step together: Procgen, any Gymnasium vector environment, or either with stacked frames."""

    num_envs: int
    num_actions: int
    first_action: int  # the environment's own number for action 0
    raw_shape: tuple[int, ...]  # of one frame as the environment returns it
    shape: tuple[int, ...]  # of one observation as the networks see it: [H, W, C], or flat
    stack: int  # frames that make one observation, along its last axis
    dtype: np.dtype[Any]
    has_levels: bool
    exact_state: bool  # state() and restore() repeat the future exactly

    def observe(self) -> tuple[Array, Array]:
        """The observations to act on now and their levels."""

    def step(self, actions: Array) -> Step: ...

    def state(self) -> list[bytes]:
        """Everything that determines the future, as a list of byte strings."""

    def restore(self, state: list[bytes]) -> None: ...

    def pictures(self) -> Array:
        """What a person would see of each environment, uint8 [N, height, width, 3]; BadInput if they draw nothing."""

    def close(self) -> None: ...

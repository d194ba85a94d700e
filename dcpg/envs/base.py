"""The interface of environments that the rest of the project uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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
    """The observations of an environment and its number of actions."""

    shape: tuple[int, ...]  # of one observation as the networks see it: [H, W, C], or flat
    dtype: np.dtype[Any]
    actions: int

    @classmethod
    def of(cls, env: VectorEnv) -> Spaces:
        return cls(env.shape, env.dtype, env.num_actions)


class VectorEnv(Protocol):
    """N environments that step together. Implementations: Procgen, and any Gymnasium vector environment."""

    num_envs: int
    num_actions: int
    first_action: int  # the environment's own number for action 0
    raw_shape: tuple[int, ...]  # of one observation as the environment returns it
    shape: tuple[int, ...]  # of one observation as the networks see it: [H, W, C], or flat
    dtype: np.dtype[Any]
    has_levels: bool
    exact_state: bool  # state() and restore() repeat the future exactly

    def arrange(self, observations: Array) -> Array:
        """A batch of raw observations as the networks see it."""

    def observe(self) -> tuple[Array, Array]:
        """The observations to act on now and their levels."""

    def step(self, actions: Array) -> Step: ...

    def state(self) -> list[bytes]:
        """Everything that determines the future, as a list of byte strings."""

    def restore(self, state: list[bytes]) -> None: ...

    def close(self) -> None: ...

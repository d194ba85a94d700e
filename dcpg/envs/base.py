"""What the rest of the project asks of environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Step:
    """What one step of all N environments gave."""

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
    """What an environment shows and how many actions it takes."""

    shape: tuple[int, ...]  # of one observation as the networks see it: [H, W, C], or flat
    dtype: np.dtype[Any]
    actions: int

    @classmethod
    def of(cls, env: VectorEnv) -> Spaces:
        """Those of an environment."""
        return cls(env.shape, env.dtype, env.num_actions)


class VectorEnv(Protocol):
    """N environments that step together. Implementations: Procgen, and any Gymnasium vector environment."""

    num_envs: int
    num_actions: int
    first_action: int  # the environment's own number of our action 0
    raw_shape: tuple[int, ...]  # of one observation as the environment gives it
    shape: tuple[int, ...]  # of one observation as the networks see it: [H, W, C], or flat
    dtype: np.dtype[Any]
    has_levels: bool
    exact_state: bool  # state() and restore() repeat the future exactly

    def arrange(self, observations: Array) -> Array:
        """A batch of raw observations as the networks see it."""

    def observe(self) -> tuple[Array, Array]:
        """The observations to act on now and their levels."""

    def step(self, actions: Array) -> Step:
        """One step of every environment."""

    def state(self) -> list[bytes]:
        """Everything that decides the future, as a list of byte strings."""

    def restore(self, state: list[bytes]) -> None:
        """Go back to a state."""

    def close(self) -> None:
        """Free what is held."""

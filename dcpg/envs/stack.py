"""Stacked frames: an observation is the last k frames of the episode, along the last axis, oldest first.

At the start of an episode, its first frame stands for those before it: no frame of the last episode is seen. Rollouts
keep each frame once and stack again when they are read (`dcpg/core/rollout.py`), with the same rule.
"""

from __future__ import annotations

import dataclasses
import io

import numpy as np

from dcpg.envs.base import Array, Step, VectorEnv, saved_array


class FrameStack:
    """An environment whose observations are its last `stack` frames."""

    def __init__(self, env: VectorEnv, stack: int) -> None:
        self.env, self.stack = env, stack
        self.num_envs, self.num_actions, self.first_action = env.num_envs, env.num_actions, env.first_action
        self.raw_shape, self.dtype = env.raw_shape, env.dtype
        self.shape: tuple[int, ...] = (*env.shape[:-1], env.shape[-1] * stack)
        self.has_levels, self.exact_state = env.has_levels, env.exact_state
        self._begin()

    def _begin(self) -> None:
        """Fill every stack with the current frame."""
        frames, _ = self.env.observe()
        self._now = self._repeated(frames)

    def _repeated(self, frames: Array) -> Array:
        return np.concatenate([frames] * self.stack, axis=-1)

    def _followed(self, frames: Array) -> Array:
        """The stacks with one frame more, and the oldest one less."""
        return np.concatenate([self._now[..., self.env.shape[-1] :], frames], axis=-1)

    def observe(self) -> tuple[Array, Array]:
        return self._now.copy(), self.env.observe()[1]

    def step(self, actions: Array) -> Step:
        step = self.env.step(actions)
        final = self._followed(step.final_frames) if step.final_frames is not None else None
        frames = self._followed(step.frames)
        frames[step.crosses] = self._repeated(step.frames[step.crosses])
        self._now = frames
        return dataclasses.replace(step, frames=frames.copy(), final_frames=final)

    def state(self) -> list[bytes]:
        """The stacks, and then the state of the environment."""
        stacks = io.BytesIO()
        np.save(stacks, self._now, allow_pickle=False)
        return [stacks.getvalue(), *self.env.state()]

    def restore(self, state: list[bytes]) -> None:
        now = saved_array(state[0], self._now)
        self.env.restore(state[1:])
        self._now = now
        if not self.exact_state:
            self._begin()

    def pictures(self) -> Array:
        return self.env.pictures()

    def close(self) -> None:
        self.env.close()

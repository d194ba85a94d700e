"""Adapts any Gymnasium vector environment with discrete actions and image or flat observations.

All three autoreset modes give the same `Step`:

- SAME_STEP: the observation returned with an episode's end is already the next episode's first one.
- DISABLED: the adapter resets ended environments at once; from then on the same as SAME_STEP.
- NEXT_STEP: the step after an end ignores its action and only resets. It is a dead step: `valid` is False.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from gzip import BadGzipFile
from multiprocessing import TimeoutError as ProcessTimeout
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from dcpg.envs.base import NUMBERS, Array, Step, arranged, saved_array
from dcpg.envs.outputs import Outputs, states
from dcpg.errors import BadInput, DcpgError, short
from dcpg.seeding import rand_seed
from dcpg.text import counted, printable


class GymnasiumEnv:
    """An adapted environment. One with `get_state() -> list[bytes]` and `set_state(list[bytes])` resumes exactly."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], seed: int) -> None:
        _check_spaces(env)
        self.env: Any = env
        self.seed, self.num_envs = seed, env.num_envs
        space, actions = env.single_observation_space, env.single_action_space
        assert isinstance(space, gymnasium.spaces.Box)
        assert isinstance(actions, gymnasium.spaces.Discrete)
        self.num_actions, self.first_action = int(actions.n), int(actions.start)
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.raw_shape: tuple[int, ...] = space.shape
        self.shape, self.stack = image_shape(space.shape), 1
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.mode = AutoresetMode(mode) if isinstance(mode, str) else mode
        if not isinstance(self.mode, AutoresetMode):
            raise BadInput(f"metadata['autoreset_mode'] must be one of Gymnasium's AutoresetMode; got {mode!r}.")
        self.exact_state = hasattr(env, "get_state") and hasattr(env, "set_state")
        self._outputs = Outputs(self.num_envs, self.raw_shape, self.dtype)
        self._steps = 0
        self._reset(seed)

    def _reset(self, seed: int) -> None:
        with _users_code("reset"):
            returned = self.env.reset(seed=seed)
        observations, info = self._outputs.of_reset(returned)
        self._now = arranged(observations, self.shape)
        self._levels = np.full(self.num_envs, -1, np.int64)
        self.has_levels = "level_seed" in info
        self._update_levels(info)
        self._resetting = np.zeros(self.num_envs, bool)  # NEXT_STEP: the next step only resets these

    def observe(self) -> tuple[Array, Array]:
        return self._now.copy(), self._levels.copy()

    def step(self, actions: Array) -> Step:
        self._steps += 1
        with _users_code("step"):
            returned = self.env.step(actions + self.first_action)
        observations, rewards, terminated, truncated, info = self._outputs.of_step(returned)
        dead = self._resetting
        dones = (terminated | truncated) & ~dead
        cut = truncated & ~terminated & ~dead
        arrived = arranged(observations, self.shape)
        final = arrived if cut.any() else None
        if self.mode is AutoresetMode.SAME_STEP and cut.any():
            final = arrived.copy()
            for n in np.flatnonzero(cut):
                final[n] = arranged(self._outputs.last_observation(info, int(n)), self.shape)[0]
        self._update_levels(info)
        if self.mode is AutoresetMode.DISABLED and dones.any():
            final = arrived.copy() if cut.any() else None
            with _users_code("reset"):
                returned = self.env.reset(options={"reset_mask": dones})
            observations, info = self._outputs.of_reset(returned)
            arrived = arranged(observations, self.shape)
            self._update_levels(info)
        next_step = self.mode is AutoresetMode.NEXT_STEP
        self._resetting = dones if next_step else np.zeros_like(dones)
        self._now = arrived
        return Step(
            frames=arrived.copy(),
            rewards=np.where(dead, 0.0, rewards).astype(np.float32),
            dones=dones,
            valid=~dead,
            crosses=dead if next_step else dones,  # in NEXT_STEP the episode's last observation is still returned
            levels=self._levels.copy(),
            truncated=cut,
            final_frames=final,
        )

    def _update_levels(self, info: Mapping[str, Any]) -> None:
        if "level_seed" in info:
            new, given = self._outputs.levels(info)
            self._levels[given] = new[given]

    def state(self) -> list[bytes]:
        """The adapter's own state, and that of the environments if they can save it."""
        own = {"steps": self._steps, "levels": self._levels.tolist(), "resetting": self._resetting.tolist()}
        observations = io.BytesIO()
        np.save(observations, self._now, allow_pickle=False)
        with _users_code("get_state"):
            inner = self.env.get_state() if self.exact_state else []
        return [json.dumps(own).encode(), observations.getvalue(), *states(inner)]

    def restore(self, state: list[bytes]) -> None:
        """Continue from `state()`: exactly if the environments can, otherwise with new episodes under a new seed."""
        own = json.loads(state[0])
        self._steps = int(own["steps"])
        if not self.exact_state:
            try:
                self._reset(rand_seed(self.seed, "resume", self._steps))
            except (MemoryError, DcpgError):
                raise
            except Exception as error:  # the user's code, which has seen nothing of the checkpoint
                raise self._not_now("reset", error) from error
            return
        now = saved_array(state[1], self._now)
        levels, resetting = np.array(own["levels"], np.int64), np.array(own["resetting"], bool)
        if not levels.shape == resetting.shape == (self.num_envs,):
            raise ValueError(f"the saved levels are not those of {counted(self.num_envs, 'environment')}")
        try:
            self.env.set_state(state[2:])
        except (MemoryError, DcpgError):
            raise
        except SystemExit as error:
            raise _asked_to_end("set_state", error) from error
        except (OSError, ImportError, ProcessTimeout) as error:  # what it needs is not there now
            alien = type(error) in (OSError, BadGzipFile) and isinstance(error, OSError) and error.errno is None
            if alien:  # as bz2 and gzip say that bytes are not theirs
                raise ValueError(f"the environment's set_state failed: {printable(error)}") from error
            raise self._not_now("set_state", error) from error
        except Exception as error:  # the user's code, which has met bytes that are not its own
            raise ValueError(f"the environment's set_state failed: {type(error).__name__}: {error}") from error
        self._now = now
        self._levels, self._resetting = levels, resetting

    def _not_now(self, what: str, error: Exception) -> BadInput:
        """The error for a failure that is none of the checkpoint's."""
        return BadInput(
            f"The environment's {what} failed ({type(error).__name__}: {printable(error)}); nothing was changed, so "
            "resume again when it works."
        )

    def pictures(self) -> Array:
        """What `render` returns in the mode rgb_array."""
        mode = getattr(self.env, "render_mode", None)
        if mode != "rgb_array":
            raise BadInput(
                f"This environment draws no pictures: its render_mode is {mode!r}. Make it with "
                "render_mode='rgb_array'; a function make(num_envs, seed, render_mode=None) is asked for it when a "
                "video is recorded."
            )
        try:
            with _users_code("render"):
                found = np.asarray(self.env.render())
        except DcpgError:
            raise
        except Exception as error:  # a package that is missing, or pictures of different sizes
            raise BadInput(f"This environment cannot be drawn: {type(error).__name__}: {error}") from error
        if found.dtype != np.uint8 or found.ndim != 4 or found.shape[0] != self.num_envs or found.shape[3] != 3:
            raise BadInput(
                f"render() must return one picture for each of the {self.num_envs} environments, uint8 [height, width, "
                f"3]; got {found.dtype} {found.shape}."
            )
        return found

    def close(self) -> None:
        """Close the environments; one that cannot be closed does not end a run."""
        close(self.env)


def close(env: Any) -> None:
    """Close an environment of the user's own: one that fails to close has still done its work."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


@contextlib.contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Around every call of the user's environment: what it raises must not seem to come from the program's own files.

    A SystemExit would end the program as if all were well, and an error of a connection would count as a reader of the
    output that is gone.
    """
    try:
        yield
    except SystemExit as error:
        raise _asked_to_end(what, error) from error
    except ConnectionError as error:
        raise DcpgError(
            f"The environment's {what} failed, since a process of it or a server is gone: {short(error)}."
        ) from error


def _asked_to_end(what: str, error: SystemExit) -> DcpgError:
    return DcpgError(f"The environment asked the program to end, in its {what}: {short(error)}.")


def _check_spaces(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise BadInput(f"env(num_envs, seed) must return a Gymnasium vector environment; got {type(env).__name__}.")
    if not isinstance(env.single_action_space, gymnasium.spaces.Discrete) or env.single_action_space.n < 2:
        raise BadInput(
            f"Actions must be Discrete, at least two; this environment has {env.single_action_space}. Continuous "
            "actions are out of reach here: discretise them with a wrapper."
        )
    if not isinstance(env.single_observation_space, gymnasium.spaces.Box):
        raise BadInput(
            f"Observations must be a Box (an image or numbers); this environment has {env.single_observation_space}. "
            "Give a function that makes it with a wrapper: docs/examples/minigrid_levels.py takes the image alone."
        )
    shape, dtype = env.single_observation_space.shape, np.dtype(env.single_observation_space.dtype)
    if not shape or 0 in shape or dtype.kind not in NUMBERS or dtype.itemsize > 8:
        raise BadInput(
            f"Observations must have at least one number, of at most 64 bits; this environment's have shape {shape} "
            f"and the type {dtype}."
        )


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Images as [H, W, C], others unchanged; channels are the smaller of the first and the last axis."""
    if len(shape) == 2 and min(shape) >= 16:
        return (*shape, 1)
    if len(shape) == 3 and not (min(shape[:2]) >= 16 and shape[2] <= shape[0]) and min(shape[1:]) >= 16:
        return (*shape[1:], shape[0])
    return shape

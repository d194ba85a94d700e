"""What an environment of the user's own returns, checked against its spaces and its number of environments.

An array of another shape would be broadcast, and one of another type saved in a form that cannot be read back, so all
of them are checked, at every reset and step. A wrong one is BadInput: before the first step nothing was started, later
the last checkpoint is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dcpg.envs.base import NUMBERS, Array, can_become
from dcpg.errors import BadInput, Notice
from dcpg.text import counted, printable


class Outputs:
    """Checks what N environments with observations of one shape and dtype return."""

    def __init__(self, num_envs: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.num_envs, self.shape, self.dtype = num_envs, (num_envs, *shape), dtype

    def of_reset(self, found: Any) -> tuple[Array, Mapping[str, Any]]:
        """(observations, info) of a reset."""
        observations, info = _parts(found, "reset", ("observations", "info"))
        return self.observations(observations), _mapping(info, "reset")

    def of_step(self, found: Any) -> tuple[Array, Array, Array, Array, Mapping[str, Any]]:
        """(observations, rewards, terminated, truncated, info) of a step."""
        names = ("observations", "rewards", "terminated", "truncated", "info")
        observations, rewards, terminated, truncated, info = _parts(found, "step", names)
        return (
            self.observations(observations),
            self._one_each("rewards", rewards, NUMBERS, "numbers"),
            self._one_each("terminated", terminated, "b", "bool"),
            self._one_each("truncated", truncated, "b", "bool"),
            _mapping(info, "step"),
        )

    def observations(self, found: Any) -> Array:
        """One observation of every environment, in the space's dtype."""
        return self._as_space_says(found, "observations", self.shape)

    def last_observation(self, info: Mapping[str, Any], env: int) -> Array:
        """The last observation of an episode that was truncated in SAME_STEP mode, as a batch of one."""
        try:
            found = info["final_obs"][env]
        except (KeyError, IndexError, TypeError):
            raise BadInput(
                "A truncated episode in SAME_STEP mode must come with its last observation, info['final_obs'][i] of "
                f"environment i; that of environment {env} is missing."
            ) from None
        return self._as_space_says(found, f"info['final_obs'][{env}]", self.shape[1:])[None]

    def levels(self, info: Mapping[str, Any]) -> tuple[Array, Array]:
        """The level seeds in an info, int64 [N], and for which environments they are given."""
        everyone = np.ones(self.num_envs, bool)
        given = self._one_each("info['_level_seed']", info.get("_level_seed", everyone), "b", "bool")
        seeds = self._one_each("info['level_seed']", info["level_seed"], "iuf", "whole numbers")
        if seeds.dtype.kind == "i":
            return seeds.astype(np.int64), given
        asked = np.where(given, seeds, 0)
        with np.errstate(invalid="ignore"):
            found = asked.astype(np.int64)
        wrong = np.flatnonzero((found != asked) | ((found < 0) & (asked > 0)))  # NaN, fractions, and what does not fit
        if len(wrong):
            raise BadInput(
                f"The environment gave {seeds[wrong[0]]} as info['level_seed'] of environment {wrong[0]}; give a whole "
                "number that fits into int64, or leave the key out of info."
            )
        return found, given

    def _as_space_says(self, found: Any, what: str, shape: tuple[int, ...]) -> Array:
        array = _array(found, what)
        if array.shape != shape:
            raise BadInput(
                f"The environment gave {what} of shape {array.shape} instead of {shape}, which is what its space and "
                f"its {counted(self.num_envs, 'environment')} say."
            )
        return array if array.dtype == self.dtype else self._converted(array, what)

    def _converted(self, array: Array, what: str) -> Array:
        """Numbers as the space's float, or as a type that holds them all; anything else is refused."""
        found, wanted = array.dtype, self.dtype
        if not can_become(found, wanted):
            raise BadInput(
                f"The environment gave {what} of type {found} where its space says {wanted}; return them as {wanted}, "
                "or name their type in the space."
            )
        warnings.warn(  # Python shows the same sentence once
            f"The environment gives {what} of type {found} where its space says {wanted}; they are converted.",
            Notice,
            stacklevel=2,
        )
        with np.errstate(over="ignore"):
            return array.astype(wanted)

    def _one_each(self, what: str, found: Any, kinds: str, name: str) -> Array:
        array = _array(found, what)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            raise BadInput(
                f"The environment gave {what} as {array.dtype} of shape {array.shape}; it must be {name} of shape "
                f"({self.num_envs},), one for each environment."
            )
        return array


def _parts(found: Any, call: str, names: Sequence[str]) -> Any:
    if not isinstance(found, tuple | list) or len(found) != len(names):
        what = f"{len(found)} values" if isinstance(found, tuple | list) else type(found).__name__
        raise BadInput(f"The environment's {call} must return ({', '.join(names)}); it returned {what}.")
    return found


def _mapping(info: Any, call: str) -> Mapping[str, Any]:
    if not isinstance(info, Mapping):
        raise BadInput(f"The environment's {call} must return a dict as info; it returned {type(info).__name__}.")
    return info


def _array(found: Any, what: str) -> Array:
    try:
        return np.asarray(found)
    except Exception as error:  # rows of different lengths, or a tensor on a GPU
        raise BadInput(
            f"The environment gave {what} that are no array: {type(error).__name__}: {printable(error)}"
        ) from error


def states(found: Any) -> list[bytes]:
    """What `get_state` returned: a list of byte strings."""
    kinds = [type(one).__name__ for one in found] if isinstance(found, list | tuple) else [type(found).__name__]
    if not isinstance(found, list | tuple) or set(kinds) - {"bytes", "bytearray", "memoryview"}:
        raise BadInput(
            f"The environment's get_state must return a list of bytes; it returned {type(found).__name__} with "
            f"{', '.join(sorted(set(kinds)))}."
        )
    return [bytes(one) for one in found]

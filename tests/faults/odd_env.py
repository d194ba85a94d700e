"""An environment whose outputs are what ODD in the process's environment says: one output, one way to be wrong."""

from __future__ import annotations

import json
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

SIZE, ACTIONS = 6, 3
NUMBERS = {"nan": np.nan, "inf": np.inf, "huge": 1e300, "negative": -1.0, "zero": 0.0}
OUTPUTS = ("reset", "observation", "reward", "terminated", "truncated", "level_seed", "info", "step", "close", "space")
WAYS = (
    "float64", "float16", "int64", "bool", "object", "complex128", "U8", "transposed", "row", "flat", "short", "long",
    "scalar", "empty", "none", "text", "list", "dict", "ragged", *NUMBERS,
)  # fmt: skip


def odd(value: Any, how: str) -> Any:
    """A value of another type, shape or kind."""
    if isinstance(value, dict) and how not in ("none", "text", "list", "dict", "scalar", "ragged"):
        return {name: odd(one, how) for name, one in value.items()}  # an info: what is in it
    array = np.asarray(value)
    if how == "ragged":
        return [[1.0], [1.0, 2.0]]
    if how in NUMBERS:
        return np.full_like(array, NUMBERS[how], dtype=np.float64).astype(array.dtype, copy=False)
    plain = {"none": None, "text": "observation", "dict": {"a": array}, "list": array.tolist(), "scalar": 1.0}
    if how in plain:
        return plain[how]
    shapes = {
        "transposed": array.T, "row": array[:1], "flat": array.reshape(-1), "short": array[:-1],
        "long": np.concatenate([array, array]), "empty": array[:0],
    }  # fmt: skip
    return shapes[how] if how in shapes else array.astype(how)


class Odd(gymnasium.vector.VectorEnv):
    """Episodes of seven steps on two levels; its state can be saved."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 -- as Gymnasium has it

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        what = json.loads(os.environ.get("ODD", "{}"))
        self.wrong: dict[str, str] = what.get("wrong", {})
        self.first = int(what.get("first", 0))  # the step from which it is wrong
        shape = () if self.wrong.get("space") == "empty" else (SIZE,)
        kind = np.float64 if self.wrong.get("space") == "float64" else np.float32
        self.single_observation_space = gymnasium.spaces.Box(-1, 1, shape, kind)
        self.single_action_space = gymnasium.spaces.Discrete(ACTIONS)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.kind, self.shape = kind, shape
        self.steps = 0

    def _out(self, name: str, value: Any) -> Any:
        late = name != "reset" and self.steps < self.first
        return odd(value, self.wrong[name]) if name in self.wrong and not late else value

    def _observations(self) -> Any:
        each = [np.full(self.shape, ((self.steps + i) % 7) / 7) for i in range(self.num_envs)]
        return np.array(each, self.kind)

    def _info(self) -> Any:
        return self._out("info", {"level_seed": self._out("level_seed", np.arange(self.num_envs) % 2)})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._out("reset", self._observations()), self._info()

    def step(self, actions: Any) -> Any:
        self.steps += 1
        ends = (self.steps + np.arange(self.num_envs)) % 7 == 0
        five = (
            self._out("observation", self._observations()),
            self._out("reward", (np.asarray(actions) == 1).astype(np.float64)),
            self._out("terminated", ends),
            self._out("truncated", np.zeros(self.num_envs, bool)),
            self._info(),
        )
        whole = {"none": None, "text": "done", "dict": {}, "short": five[:4], "long": (*five, 0)}
        return whole.get(self.wrong.get("step", ""), five)

    def get_state(self) -> list[bytes]:
        return [str(self.steps).encode()] * self.num_envs

    def set_state(self, states: list[bytes]) -> None:
        self.steps = int(states[0])

    def close(self, **_: Any) -> None:
        if "close" in self.wrong:
            raise RuntimeError("it cannot be closed")


def make(num_envs: int, seed: int) -> Odd:
    return Odd(num_envs)

"""What your own environment returns is checked at every reset and step, against its spaces."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import dcpg
from dcpg.config.environments import find
from dcpg.envs.adapter import GymnasiumEnv
from dcpg.errors import BadInput
from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory
from tests.training.test_resume import contents, stopping

N = 8
ALL = np.ones(N, bool)


class Walk(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Three numbers per environment; an episode has nine steps. `change` may alter what a reset or a step returns."""

    def __init__(self, num_envs: int = N, dtype: Any = np.float32, change: Callable[..., Any] | None = None) -> None:
        self.num_envs, self.change, self.given = num_envs, change or (lambda call, *returned: returned), dtype
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = gymnasium.spaces.Box(-100, 100, (3,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.t, self.x = np.zeros(num_envs, np.int64), np.zeros(num_envs)

    def _see(self) -> Any:
        return np.stack([self.x / 3, self.t / 9, np.sin(self.x)], 1).astype(self.given)  # in float64, not float32

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t[:], self.x[:] = np.arange(self.num_envs) % 9, np.arange(self.num_envs) / 7
        return self.change("reset", self._see(), {"level_seed": np.arange(self.num_envs)})

    def step(self, actions: Any) -> Any:
        self.t, self.x = self.t + 1, self.x + np.where(actions == 1, 0.3, -0.2)
        over = self.t == 9
        self.t[over], self.x[over] = 0, 0
        rewards, never, info = self.x.copy(), np.zeros(self.num_envs, bool), {"level_seed": np.arange(self.num_envs)}
        return self.change("step", self._see(), rewards, over, never, info)

    def get_state(self) -> list[bytes]:
        return [self.t.tobytes(), self.x.tobytes()]

    def set_state(self, state: list[bytes]) -> None:
        self.t, self.x = np.frombuffer(state[0], np.int64).copy(), np.frombuffer(state[1]).copy()

    def close(self, **kwargs: Any) -> None:
        raise RuntimeError("close() fails")


def altered(call: str, index: int, value: Any) -> Callable[..., Any]:
    """Replaces one of the values that a call returns; a function gets the right one."""

    def change(called: str, *returned: Any) -> Any:
        new = value(returned[index]) if callable(value) else value
        return (*returned[:index], new, *returned[index:][1:]) if called == call else returned

    return change


WRONG_OBSERVATIONS = {
    "broadcast": (lambda x: x[:1], r"observations of shape \(1, 3\) instead of \(8, 3\)"),
    "one too few": (lambda x: x[:-1], r"observations of shape \(7, 3\) instead of \(8, 3\)"),
    "other axes": (lambda x: x[..., None], r"observations of shape \(8, 3, 1\) instead of \(8, 3\)"),
    "one number": (lambda x: np.float32(1), r"observations of shape \(\) instead of \(8, 3\)"),
    "text": (lambda x: np.full((N, 3), "north"), r"observations of type <U5 where its space says float32; return"),
    "objects": (lambda x: x.astype(object), r"observations of type object where its space says float32; return"),
    "complex": (lambda x: x * 1j, r"observations of type complex64 where its space says float32; return"),
    "ragged": (lambda x: [[1.0], [1.0, 2.0]], r"observations that are no array: ValueError"),
    "none": (lambda x: None, r"observations of shape \(\) instead of \(8, 3\)"),
}
WRONG_LEVELS = {
    "nan": ({"level_seed": np.array([1.0] * 7 + [np.nan])}, r"gave nan as info\['level_seed'\] of environment 7"),
    "fraction": ({"level_seed": np.array([2.5] * N)}, r"gave 2\.5 as info\['level_seed'\] of environment 0"),
    "infinite": ({"level_seed": np.full(N, np.inf)}, r"gave inf as info\['level_seed'\]"),
    "too large": ({"level_seed": np.full(N, 2**63, np.uint64)}, r"gave 9223372036854775808 as info\['level_seed'\]"),
    "text": ({"level_seed": np.full(N, "7")}, r"info\['level_seed'\] as <U1 of shape \(8,\); it must be whole numbers"),
    "one for all": ({"level_seed": 7}, r"info\['level_seed'\] as int64 of shape \(\); it must be whole numbers"),
    "mask": ({"level_seed": np.arange(N), "_level_seed": ALL[:3]}, r"info\['_level_seed'\] as bool of shape \(3,\)"),
    "list": (["level_seed"], r"must return a dict as info; it returned list"),
}
CASES = [
    *((call, 0, change, told) for call in ("reset", "step") for change, told in WRONG_OBSERVATIONS.values()),
    *((call, -1, info, told) for call in ("reset", "step") for info, told in WRONG_LEVELS.values()),
    ("step", 1, lambda x: x[:1], r"rewards as float64 of shape \(1,\); it must be numbers of shape \(8,\)"),
    ("step", 1, lambda x: x[:, None], r"rewards as float64 of shape \(8, 1\)"),
    ("step", 1, lambda x: 1.0, r"rewards as float64 of shape \(\)"),
    ("step", 1, lambda x: x.astype(str), r"rewards as <U32 of shape \(8,\)"),
    ("step", 1, lambda x: x.astype(object), r"rewards as object of shape \(8,\)"),
    ("step", 2, lambda x: x[:1], r"terminated as bool of shape \(1,\); it must be bool of shape \(8,\)"),
    ("step", 2, lambda x: x.astype(int), r"terminated as int64 of shape \(8,\); it must be bool"),
    ("step", 3, False, r"truncated as bool of shape \(\); it must be bool"),
    ("step", 3, lambda x: x.astype(np.float32), r"truncated as float32 of shape \(8,\); it must be bool"),
]


@pytest.mark.parametrize(("call", "index", "value", "told"), CASES)
def test_what_does_not_fit_is_refused_in_one_sentence(call: str, index: int, value: Any, told: str) -> None:
    env = Walk()
    adapted = GymnasiumEnv(env, seed=0)
    index %= 2 if call == "reset" else 5
    env.change = altered(call, index, value)
    with pytest.raises(BadInput, match=told) as error:
        GymnasiumEnv(env, seed=0) if call == "reset" else adapted.step(np.zeros(N, np.int64))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("call", "names"), [("reset", "observations, info"), ("step", "observations, rewards, term")])
def test_a_call_that_returns_other_values(call: str, names: str) -> None:
    env = Walk()
    adapted = GymnasiumEnv(env, seed=0)
    for wrong, told in (((1, 2, 3), "3 values"), (None, "NoneType"), (np.zeros(3), "ndarray")):
        env.change = lambda called, *returned, wrong=wrong: wrong if called == call else returned
        with pytest.raises(BadInput, match=rf"{call} must return \({names}.* it returned {told}"):
            GymnasiumEnv(env, seed=0) if call == "reset" else adapted.step(np.zeros(N, np.int64))


def test_level_seeds_that_fit() -> None:
    env = Walk()
    adapted = GymnasiumEnv(env, seed=0)
    given = {"level_seed": np.array([3.0] * 7 + [np.nan]), "_level_seed": np.arange(N) < 7}  # the last one is not given
    env.change = altered("step", 4, given)
    assert adapted.step(np.zeros(N, np.int64)).levels.tolist() == [3] * 7 + [7]
    env.change = altered("step", 4, {"level_seed": np.full(N, 2**63 - 1, np.uint64)})
    assert adapted.step(np.zeros(N, np.int64)).levels.tolist() == [2**63 - 1] * N
    env.change = altered("step", 4, {"level_seed": [-5] * N})
    assert adapted.step(np.zeros(N, np.int64)).levels.tolist() == [-5] * N


def test_other_numbers_are_converted_with_a_warning() -> None:
    """Into a float always; into integers only if they hold every value."""
    for found in (np.float64, np.float16, np.int64, np.uint8, bool):
        with pytest.warns(
            UserWarning, match=f"type {np.dtype(found)} where its space says float32; they are converted"
        ):
            env = GymnasiumEnv(Walk(dtype=found), seed=0)
        assert env.observe()[0].dtype == np.float32
        with pytest.warns(UserWarning, match="converted"):
            step = env.step(np.zeros(N, np.int64))
        assert step.frames.dtype == np.float32
        assert step.rewards.dtype == np.float32
    for found, fits in ((np.uint8, True), (bool, True), (np.int64, False), (np.float32, False)):
        inner = Walk(dtype=found)
        inner.single_observation_space = gymnasium.spaces.Box(-100, 100, (3,), np.int16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            if fits:
                assert GymnasiumEnv(inner, seed=0).observe()[0].dtype == np.int16
                continue
            with pytest.raises(BadInput, match=f"of type {np.dtype(found)} where its space says int16; return them as"):
                GymnasiumEnv(inner, seed=0)


@pytest.mark.parametrize(
    ("final", "told"),
    [
        ({}, "info\\['final_obs'\\].*that of environment 0 is missing"),
        ({"final_obs": np.empty(0)}, "that of environment 0 is missing"),
        ({"final_obs": [None] * N}, r"info\['final_obs'\]\[0\] of shape \(\) instead of \(3,\)"),
        ({"final_obs": np.zeros((N, 2), np.float32)}, r"info\['final_obs'\]\[0\] of shape \(2,\) instead of \(3,\)"),
        ({"final_obs": np.full((N, 3), "x")}, r"info\['final_obs'\]\[0\] of type <U1"),
    ],
)
def test_the_last_observation_of_a_truncated_episode(final: dict[str, Any], told: str) -> None:
    adapted = GymnasiumEnv(Walk(change=lambda call, *r: r if call == "reset" else (*r[:3], ALL, final)), seed=0)
    with pytest.raises(BadInput, match=told):
        adapted.step(np.zeros(N, np.int64))


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (gymnasium.spaces.Box(0, 1, (), np.float32), r"at least one number.* shape \(\)"),
        (gymnasium.spaces.Box(0, 1, (0, 3), np.float32), r"at least one number.* shape \(0, 3\)"),
        (gymnasium.spaces.Box(0, 1, (3,), np.longdouble), "of at most 64 bits"),
        (gymnasium.spaces.Box(0, 1, (1,) * 9, np.float32), "may have 8 axes"),
        (gymnasium.spaces.Box(0, 1, (3001, 3500, 1), np.uint8), "10,000,000 numbers at most"),
    ],
)
def test_spaces_that_no_run_can_have(space: gymnasium.spaces.Box, told: str) -> None:
    """Refused in one sentence, although close() fails too."""

    def make(num_envs: int, seed: int) -> Walk:
        env = Walk(num_envs)
        env.single_observation_space = space
        env.change = lambda call, *returned: (np.zeros((num_envs, *space.shape), space.dtype), {})
        return env

    with pytest.raises(BadInput, match=told):
        find(make).make("train", 1, 0, 1)


def test_an_autoreset_mode_that_there_is_not() -> None:
    env = Walk()
    env.metadata = {"autoreset_mode": None}
    with pytest.raises(BadInput, match=r"AutoresetMode; got None"):
        GymnasiumEnv(env, seed=0)


def test_close_that_fails_hides_no_sentence() -> None:
    with pytest.raises(BadInput, match="returned 3 environments instead of 2"):
        find(lambda num_envs, seed: Walk(3)).make("train", 2, 0, 1)


@pytest.mark.parametrize("state", ["text", b"bytes", [3], ["a"], None])
def test_states_that_are_not_bytes(state: Any) -> None:
    """bytes(3) would be three zeros."""
    env = Walk()
    env.get_state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="get_state must return a list of bytes; it returned"):
        GymnasiumEnv(env, seed=0).state()


def test_set_state_that_fails_makes_a_checkpoint_damaged() -> None:
    adapted = GymnasiumEnv(Walk(), seed=0)
    state = adapted.state()
    with pytest.raises(ValueError, match="set_state failed: ValueError: buffer size"):
        adapted.restore([*state[:2], b"1", b"2"])
    with pytest.raises(ValueError, match="the saved levels are not those of 8 environments"):
        adapted.restore([state[0].replace(b'"levels": [0, ', b'"levels": ['), *state[1:]])
    adapted.restore(state)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ConnectionRefusedError(111, "no licence"), BadInput),
        (TimeoutError("timed out"), BadInput),
        (multiprocessing.TimeoutError(), BadInput),
        (URLError("no route"), BadInput),
        (MemoryError(), MemoryError),
        (OSError("Invalid data stream"), ValueError),
        (gzip.BadGzipFile("Not a gzipped file"), ValueError),
    ],
)
def test_set_state_that_cannot_work_now_says_nothing_about_the_checkpoint(
    raised: Exception, kind: type[Exception]
) -> None:
    env = Walk()

    def fails(state: list[bytes]) -> None:
        raise raised

    env.set_state = fails  # type: ignore[method-assign]
    adapted = GymnasiumEnv(env, seed=0)
    with pytest.raises(kind):
        adapted.restore(adapted.state())


# -- whole runs

SMALL = {"rollout_length": 16, "env.num_envs": N, "network.features": 8, "evaluation.episodes": 2,
         "evaluation.max_steps": 10, "algorithm.N_pi": 2, "algorithm.E_aux": 2, "algorithm.minibatches": 2}  # fmt: skip


def make_double(num_envs: int, seed: int) -> Walk:
    return Walk(num_envs, dtype=np.float64)


def make_single(num_envs: int, seed: int) -> Walk:
    return Walk(num_envs)


@pytest.mark.filterwarnings("default:.*they are converted")
def test_a_double_where_the_space_says_float_is_trained_on_saved_and_resumed(tmp_path: Path) -> None:
    """PPG keeps frames for its auxiliary phase: stopped anywhere, it ends as the run that was never stopped."""
    given = {"preset": "tiny", "steps": 512, "settings": SMALL}
    dcpg.train("ppg", env=make_double, name="walk", out=tmp_path / "whole", **given)
    dcpg.train("ppg", env=make_single, name="walk", out=tmp_path / "single", **given)
    dcpg.train("ppg", env=make_double, name="walk", out=tmp_path / "part", **given | {"steps": 128})
    directory = RunDirectory(tmp_path / "part")
    directory.write_json(directory.config, directory.read_config() | {"steps": 512})
    rng, maker = random.Random(3), find(make_double, name="walk")
    places = stopping(tmp_path / "part", lambda: rng.choice([17, 31]), maker=maker)
    assert {p.split()[0] for p in places} >= {"collect", "auxiliary"}
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    assert contents(tmp_path / "single") == contents(tmp_path / "whole")


def test_a_step_that_goes_wrong_later_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """The run ends with a sentence, exit code 2, and goes on once the environment is mended."""
    calls = iter(range(10**6))

    def failing(num_envs: int, seed: int) -> Walk:
        return Walk(num_envs, change=lambda call, *r: (r[0][:1], *r[1:]) if next(calls) == 55 else r)

    given = {"name": "walk", "preset": "tiny", "steps": 512, "settings": SMALL | {"checkpoints.minutes": 0.0001}}
    with pytest.raises(BadInput, match=r"observations of shape \(1, 3\) instead of \(8, 3\)"):
        dcpg.train("ppg", env=failing, out=tmp_path / "run", **given)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) >= 1
    dcpg.train("ppg", env=make_single, out=tmp_path / "whole", **given)
    dcpg.resume(tmp_path / "run", env=make_single)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_refused_before_the_first_step_nothing_is_left(tmp_path: Path) -> None:
    for call in ("reset", "step"):
        wrong = altered(call, 0, lambda x: x[:1])
        with pytest.raises(BadInput, match="instead of"):
            dcpg.train("ppo", env=lambda n, seed, wrong=wrong: Walk(n, change=wrong), name="w", preset="tiny",
                       steps=256, settings={"env.num_envs": N}, out=tmp_path / call)  # fmt: skip
        assert (tmp_path / call).exists() == (call == "step")  # its first checkpoint was there already

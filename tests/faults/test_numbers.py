"""Faults 16 to 19: numbers that are not finite, and environments that give nothing to learn from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from safetensors.torch import load, save

import dcpg
from dcpg.runs.run import RunFiles
from tests.faults.driver import METHODS, TERMS, Driver, copy, each, names, newest, record, rewrite

pytestmark = pytest.mark.faults


def all_finite(out: Path) -> bool:
    """Every number of every checkpoint."""
    found = names(out)
    assert found
    for name in found:
        for file in ("weights.safetensors", "adam.safetensors"):
            tensors = load((out / "checkpoints" / name / file).read_bytes())
            if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
                return False
        json.loads((out / "checkpoints" / name / "state.json").read_text(), parse_constant=pytest.fail)
    return True


@pytest.mark.parametrize("method", METHODS)
def test_a_term_is_not_finite(runs: Driver, reference: Callable[..., Path], tmp_path: Path, method: str) -> None:
    """Each term of each line: exit 3 before the step, the term is named, and the run can go on from where it was."""
    values = ["nan", "inf", "gradient"]
    jobs = [(line, term) for line, terms in TERMS[method].items() for term in terms]

    def work(job: tuple[int, tuple[str, str]]) -> None:
        number, (line, term) = job
        value = values[number % 3]
        out = tmp_path / f"{line}-{term}"
        call = "7" if line == "auxiliary" else "12"
        ended = runs.train(out, f"term {line} {term} {call} {value}", method=method, steps=256)
        assert ended.code == 3, str(ended)
        if value == "gradient":
            assert f"the gradient of the {line} line" in ended.err
            assert f"{term} of" not in ended.err
        else:
            assert f"{term} of the {line} line" in ended.err
            others = {other for other in TERMS[method][line] if other != term}
            assert not any(f"{other} of" in ended.err for other in others)
        assert all_finite(out)
        runs.recovers(out, reference(method, 256))

    each(list(enumerate(jobs)), work, f"16, 17 a term is not finite, {method}")


def test_a_reward_is_not_finite(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """In training and in evaluation: exit 3, and the message says that it was a reward."""
    jobs = [("env", 3, "nan"), ("env", 20, "inf"), ("env", 9, "-inf"), ("evaluate", 5, "nan"), ("evaluate", 30, "inf")]

    def work(job: tuple[str, int, str]) -> None:
        place, number, value = job
        out = tmp_path / f"{place}-{number}"
        ended = runs.train(out, f"reward {place} {number} {value}", steps=256)
        assert ended.code == 3, str(ended)
        assert "reward" in ended.err
        assert all_finite(out)
        runs.recovers(out, reference("ddcpg", 256))

    each(jobs, work, "16 a reward is not finite")


def test_stored_numbers_are_not_finite(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """Refused on load, with matching hashes too: the one before it is used, or the run stops with exit 4."""

    def spoil(checkpoint: Path, file: str, value: float) -> None:
        if file == "state.json":
            state = json.loads((checkpoint / file).read_bytes())
            state["parts"]["collector"]["normaliser"]["var"] = value
            data = json.dumps(state).encode()
        else:
            tensors = load((checkpoint / file).read_bytes())
            tensors[sorted(tensors)[0]].view(-1)[0] = value
            data = save(tensors)
        rewrite(checkpoint, file, data)

    def work(job: tuple[str, float]) -> None:
        file, value = job
        out = copy(stopped, tmp_path / f"newest-{file}-{value}")
        name = newest(out).name
        spoil(newest(out), file, value)
        ended = runs.recovers(out, reference())
        assert name in ended.out + ended.err
        everywhere = copy(stopped, tmp_path / f"all-{file}-{value}")
        for name in names(everywhere):
            if file != "adam.safetensors" or load((everywhere / "checkpoints" / name / file).read_bytes()):
                spoil(everywhere / "checkpoints" / name, file, value)
        assert runs.resume(everywhere).code == 4

    files = ("weights.safetensors", "adam.safetensors", "state.json")
    jobs = [(file, value) for file in files for value in (float("nan"), float("inf"))]
    each(jobs, work, "18 stored numbers are not finite", times=2)


class Dull(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Rewards, episode lengths and observations, numbers or images, as a test wants them; each episode is a level."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, reward: float, length: int, image: bool = False) -> None:
        self.num_envs, self.reward, self.length = num_envs, reward, length
        space = gymnasium.spaces.Box
        self.single_observation_space = space(0, 255, (16, 16, 3), np.uint8) if image else space(-1, 1, (3,))
        self.single_action_space = gymnasium.spaces.Discrete(4)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.ages, self.levels = np.zeros((2, num_envs), np.int64)

    def _observe(self) -> np.ndarray[Any, Any]:
        one = self.single_observation_space
        return np.array([np.full(one.shape, age % 2, one.dtype) for age in self.ages])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.ages[:] = 0
        return self._observe(), {"level_seed": self.levels.copy()}

    def step(self, actions: Any) -> Any:
        self.ages += 1
        ends = self.ages >= self.length
        self.ages[ends] = 0
        self.levels += ends
        info = {"level_seed": self.levels.copy()}
        return self._observe(), np.full(self.num_envs, self.reward), ends, np.zeros_like(ends), info


@pytest.mark.parametrize("method", [name for name in METHODS if name != "plr"])
@pytest.mark.parametrize(
    ("reward", "length"),
    [(0.0, 5), (1.0, 10**9), (0.0, 10**9), (1.0, 1), (0.0, 1), (1e30, 3), (-1e-30, 2)],
    ids=["zero", "no-end", "zero-and-no-end", "one-step", "zero-and-one-step", "huge", "tiny"],
)
def test_nothing_to_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, reward: float, length: int
) -> None:
    """Zero rewards, constant advantages, episodes of one step or without an end: finite, and it goes on."""
    monkeypatch.setattr(RunFiles, "curves", lambda run: None)  # half of the time

    def make(num_envs: int, seed: int) -> Dull:
        return Dull(num_envs, reward, length, image=method == "ucb-drac")

    settings = {"evaluation.max_steps": 20, "evaluation.episodes": 2, "machine.threads": 1}
    out = tmp_path / "run"
    run = dcpg.train(method, env=make, preset="tiny", steps=256, out=out, settings=settings, progress=False)
    assert run.summary["status"] == "finished"
    rows = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert np.isfinite(numbers).all()
    assert all_finite(tmp_path / "run")
    record(f"19 nothing to learn from, {method}", 1, 1)


@pytest.mark.parametrize(
    ("method", "told"),
    [("plr", "levels.sampler=prioritised sets levels"), ("ucb-drac", "needs square colour images")],
)
def test_what_an_environment_cannot_give(tmp_path: Path, method: str, told: str) -> None:
    """No levels to set, no images to change: refused in a sentence, before a run exists."""
    with pytest.raises(dcpg.errors.BadInput, match=told):
        dcpg.train(method, env=lambda n, seed: Dull(n, 0.0, 5), preset="tiny", steps=256, out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()
    record(f"19 an environment that {method} cannot use", 1, 1)


def test_levels_that_are_not_told(tmp_path: Path) -> None:
    """idaac compares states of one level: an environment that tells none is refused."""

    def make(num_envs: int, seed: int) -> Dull:
        env = Dull(num_envs, 0.0, 5)
        env.reset = lambda **_: (env._observe(), {})  # type: ignore[method-assign]
        return env

    with pytest.raises(dcpg.errors.BadInput, match="idaac must know the level of each state"):
        dcpg.train("idaac", env=make, preset="tiny", steps=256, out=tmp_path / "run")
    record("19 an environment without levels for idaac", 1, 1)


def test_constant_advantages(tmp_path: Path) -> None:
    """With gamma 0 and a constant reward all advantages are the same; normalising them must not divide by zero."""

    def make(num_envs: int, seed: int) -> Dull:
        env = Dull(num_envs, 1.0, 1)
        env._observe = lambda: np.zeros((num_envs, 3), np.float32)  # type: ignore[method-assign]
        return env

    settings = {"evaluation.max_steps": 20, "evaluation.episodes": 2, "algorithm.gamma": 0.0, "algorithm.lam": 0.0}
    run = dcpg.train("ddcpg", env=make, preset="tiny", steps=256, out=tmp_path / "run", settings=settings)
    assert run.summary["status"] == "finished"
    assert all_finite(tmp_path / "run")
    record("19 constant advantages", 1, 1)


def test_driver_finds_what_is_not_finite(stopped: Path, tmp_path: Path) -> None:
    """The check above is able to fail."""
    out = copy(stopped, tmp_path / "run")
    assert all_finite(out)
    tensors = load((newest(out) / "weights.safetensors").read_bytes())
    tensors[sorted(tensors)[0]].view(-1)[0] = float("nan")
    rewrite(newest(out), "weights.safetensors", save(tensors))
    assert not all_finite(out)

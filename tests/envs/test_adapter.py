"""Any Gymnasium vector environment, in all three autoreset modes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dcpg.core.actor import Actor
from dcpg.core.collector import collect, with_rewards
from dcpg.core.encoders import Net
from dcpg.core.networks import Network
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.targets import with_targets
from dcpg.envs.adapter import GymnasiumEnv, image_shape
from dcpg.errors import BadInput, DcpgError
from dcpg.methods import METHODS
from dcpg.seeding import generator


class Counter(gymnasium.Env[Any, Any]):
    """Counts its steps; ends after `length`, by truncation or termination. The observation is (episode, step)."""

    def __init__(self, length: int, truncate: bool) -> None:
        self.length, self.truncate, self.episode = length, truncate, -1
        self.observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._see(), {"level_seed": 100 + self.episode}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t == self.length
        info = {"level_seed": 100 + self.episode}
        return self._see(), float(self.t), over and not self.truncate, over and self.truncate, info

    def _see(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float64)


def make(mode: AutoresetMode, truncate: bool, lengths: tuple[int, ...] = (3, 4)) -> GymnasiumEnv:
    makers = [lambda n=n: Counter(n, truncate) for n in lengths]
    return GymnasiumEnv(SyncVectorEnv(makers, autoreset_mode=mode), seed=0)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_same_step_and_disabled_reset_at_once(mode: AutoresetMode, truncate: bool) -> None:
    env = make(mode, truncate)
    steps = [env.step(np.zeros(2, np.int64)) for _ in range(4)]
    assert [s.dones.tolist() for s in steps] == [[False, False], [False, False], [True, False], [False, True]]
    assert all(s.valid.all() for s in steps)
    assert steps[2].frames.tolist() == [[1, 0], [0, 3]]
    assert steps[2].rewards.tolist() == [3, 3]
    assert steps[2].levels.tolist() == [101, 100]
    assert steps[2].crosses.tolist() == [True, False]
    assert steps[2].truncated.tolist() == [truncate, False]
    if truncate:
        assert steps[2].final_frames is not None
        assert steps[2].final_frames[0].tolist() == [0, 3]
    else:
        assert steps[2].final_frames is None


@pytest.mark.parametrize("truncate", [False, True])
def test_next_step_has_a_dead_step(truncate: bool) -> None:
    env = make(AutoresetMode.NEXT_STEP, truncate)
    steps = [env.step(np.zeros(2, np.int64)) for _ in range(5)]
    assert [s.valid.tolist() for s in steps] == [[True, True]] * 3 + [[False, True], [True, False]]
    assert [s.dones.tolist() for s in steps] == [[False] * 2, [False] * 2, [True, False], [False, True], [False] * 2]
    assert steps[2].frames.tolist() == [[0, 3], [0, 3]]  # the last observation itself
    assert steps[2].crosses.tolist() == [False, False]
    assert steps[3].crosses.tolist() == [True, False]
    assert steps[3].frames[0].tolist() == [1, 0]
    assert steps[3].levels.tolist() == [101, 100]
    assert steps[3].rewards[0] == 0
    if truncate:
        assert steps[2].final_frames[0].tolist() == [0, 3]


def gathered(mode: AutoresetMode, truncate: bool, T: int) -> Any:
    spec = METHODS["dcpg"]
    method = spec.declare(spec.settings())
    env = make(mode, truncate, (3,))
    network = Network(method.networks, (2,), 3, Net(features=8)).initialise(generator(0, "gym"))
    actor = Actor(network, ("value",), 64, torch.device("cpu"))
    uniform = torch.full((T, 1), 0.5, dtype=torch.float64)
    tau = with_targets(with_rewards(collect(env, actor, uniform, lambda: None), RewardNormaliser.fresh(1)), method)
    return tau, actor


@pytest.mark.parametrize("truncate", [False, True])
def test_targets_do_not_depend_on_the_autoreset_mode(truncate: bool) -> None:
    """The same episodes give the same rewards, values and returns; NEXT_STEP only has dead steps between them."""
    same, _ = gathered(AutoresetMode.SAME_STEP, truncate, 6)
    other, _ = gathered(AutoresetMode.DISABLED, truncate, 6)
    dead, actor = gathered(AutoresetMode.NEXT_STEP, truncate, 8)
    live = dead.valid[:, 0]
    assert live.tolist() == [True, True, True, False, True, True, True, False]
    for name in ("rewards", "raw_rewards", "dones", "levels", "advantages_raw"):
        a, b, c = getattr(same, name)[:, 0], getattr(other, name)[:, 0], getattr(dead, name)[live, 0]
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c, msg=name)
    torch.testing.assert_close(same.returns["value"][:, 0], dead.returns["value"][live, 0])
    torch.testing.assert_close(same.advantages[:, 0], dead.advantages[live, 0])
    expected = actor.values(np.array([[0.0, 3.0]]))["value"] if truncate else torch.zeros(1)
    torch.testing.assert_close(same.final_values["value"][2], expected)
    # the last step's return is its reward, and gamma V(final) if it was cut off
    torch.testing.assert_close(same.returns["value"][2], same.rewards[2] + 0.999 * expected)


def test_layouts() -> None:
    assert image_shape((64, 64, 3)) == (64, 64, 3)
    assert image_shape((3, 64, 64)) == (64, 64, 3)
    assert image_shape((84, 84)) == (84, 84, 1)
    assert image_shape((4, 84, 84)) == (84, 84, 4)
    assert image_shape((10,)) == (10,)
    assert image_shape((8, 8, 3)) == (8, 8, 3)


class Picture(gymnasium.Env[Any, Any]):
    """Channels first, actions that begin at 1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, 20, 24), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.arange(3 * 20 * 24).astype(np.uint8).reshape(3, 20, 24), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action in (1, 2)
        return self.reset()[0], float(action), False, False, {}


def test_pictures_arrive_as_height_width_channels() -> None:
    env = GymnasiumEnv(SyncVectorEnv([Picture]), seed=0)
    assert env.shape == (20, 24, 3)
    assert env.has_levels is False
    frames, levels = env.observe()
    assert frames[0, 4, 5].tolist() == [(c * 480 + 4 * 24 + 5) % 256 for c in range(3)]
    assert levels.tolist() == [-1]
    assert env.step(np.array([1])).rewards.tolist() == [2.0]


def test_spaces_that_do_not_fit_are_refused_in_one_sentence() -> None:
    class Steering(Picture):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Box(-1, 1, (2,))

    class Words(Picture):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})

    with pytest.raises(BadInput, match="must be Discrete, at least two"):
        GymnasiumEnv(SyncVectorEnv([Steering]), seed=0)
    with pytest.raises(BadInput, match="must be a Box"):
        GymnasiumEnv(SyncVectorEnv([Words]), seed=0)
    with pytest.raises(BadInput, match="vector environment; got Counter"):
        GymnasiumEnv(Counter(3, False), seed=0)  # type: ignore[arg-type]


def test_a_loaded_agent_takes_the_environments_own_observations_and_gives_its_own_actions(tmp_path: Path) -> None:
    import dcpg

    def make_pictures(num_envs: int, seed: int) -> SyncVectorEnv:
        return SyncVectorEnv([Picture] * num_envs)

    settings = {"evaluation.episodes": 2, "evaluation.max_steps": 5}
    run = dcpg.train("ppo", env=make_pictures, preset="tiny", steps=128, out=tmp_path / "run", settings=settings)
    agent = dcpg.load(run, env=make_pictures)
    raw = Picture().reset()[0]
    actions = {int(agent.act(raw)) for _ in range(50)}
    assert actions == {1, 2}
    assert agent.act(np.stack([raw] * 3)).shape == (3,)


class Failing(SyncVectorEnv):
    """Raises `error` in the method that `fails` names."""

    fails, error = "", BaseException()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self.fail if name != "fails" and name == self.fails else found

    def fail(self, *given: Any, **more: Any) -> None:
        raise self.error

    def get_state(self) -> list[bytes]:
        return [b""] * self.num_envs

    def set_state(self, state: list[bytes]) -> None: ...


@pytest.mark.parametrize("error", [SystemExit(0), BrokenPipeError(errno.EPIPE, "Broken pipe")])
def test_what_an_environment_raises_is_its_own(error: BaseException) -> None:
    """Neither an end of the program as if all were well, nor a reader of the output that is gone."""
    made = Failing([lambda: Counter(3, False)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymnasiumEnv(made, 0)
    made.render_mode, made.error, state = "rgb_array", error, env.state()
    calls: dict[str, Callable[[], object]] = {
        "reset": lambda: env._reset(1),
        "step": lambda: env.step(np.zeros(2, np.int64)),
        "get_state": env.state,
        "set_state": lambda: env.restore(state),
        "render": env.pictures,
    }
    for name, call in calls.items():
        made.fails = name
        with pytest.raises(
            DcpgError,
            match=rf"(end, in its {name}|{name} failed, since .* gone|{name} failed \(?)(: )?{type(error).__name__}",
        ):
            call()
    made.fails = "close"
    env.close()
    made.fails = ""
    env.close()

"""Stacked frames: the environment, the rollout and B give the same observations, and none sees the last episode."""

from __future__ import annotations

import io
import math
from collections import deque

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from dcpg.config.build import make_levels, make_train
from dcpg.config.resolve import resolve
from dcpg.core.actor import Actor
from dcpg.core.buffer import Buffer
from dcpg.core.collector import collect
from dcpg.core.encoders import Net
from dcpg.core.networks import Network
from dcpg.core.rollout import FrameShape, Rollout
from dcpg.envs.base import Spaces, saved_array
from dcpg.envs.stack import FrameStack
from dcpg.methods import METHODS
from dcpg.seeding import generator
from tests.envs.test_adapter import make

STACK, T = 3, 11
MODES = list(AutoresetMode)


class Watched(Actor):
    """Keeps every batch of observations that it acts on."""

    def __init__(self, shape: tuple[int, ...], actions: int) -> None:
        net = Network(METHODS["ppo"].declare(METHODS["ppo"].settings()).networks, shape, actions, Net(features=8))
        super().__init__(net.initialise(generator(0, "stack")), ("value",), 64, torch.device("cpu"))
        self.seen: list[np.ndarray] = []

    def __call__(self, frames: np.ndarray) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        self.seen.append(frames.copy())
        return super().__call__(frames)


def stacked(history: deque[np.ndarray]) -> np.ndarray:
    frames = list(history)
    return np.concatenate([frames[0]] * (STACK - len(frames)) + frames, axis=-1)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_an_observation_is_the_episodes_own_last_frames(mode: AutoresetMode, truncate: bool) -> None:
    env, plain = FrameStack(make(mode, truncate), STACK), make(mode, truncate)
    assert (env.shape, env.raw_shape) == ((2 * STACK,), (2,))
    histories = [deque([frame], STACK) for frame in plain.observe()[0]]
    assert env.observe()[0].tolist() == [stacked(h).tolist() for h in histories]
    for _ in range(14):
        step, single = (one.step(np.zeros(2, np.int64)) for one in (env, plain))
        for n, history in enumerate(histories):
            if single.truncated[n]:
                assert step.final_frames is not None
                assert single.final_frames is not None
                ended = deque([*history, single.final_frames[n]], STACK)
                assert step.final_frames[n].tolist() == stacked(ended).tolist()
            if single.crosses[n]:
                history.clear()
            history.append(single.frames[n])
            assert step.frames[n].tolist() == stacked(history).tolist()
            episodes = step.frames[n][::2]  # of the Counter: (episode, step)
            assert len(set(episodes)) == 1, "a frame of the last episode is seen"


@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_keeps_each_frame_once_and_reads_what_the_agent_saw(mode: AutoresetMode) -> None:
    env = FrameStack(make(mode, True), STACK)
    actor = Watched(env.shape, 3)
    first, second = (collect(env, actor, torch.rand(T, 2, dtype=torch.float64), lambda: None) for _ in range(2))
    for number, tau in enumerate((first, second)):
        assert tuple(tau.frames.shape) == (STACK - 1 + T + 1, 2, 2)  # not 3 times as many
        states = tau.states(torch.arange(T * 2)).numpy().reshape(T, 2, -1)
        assert np.array_equal(states, np.stack(actor.seen[number * T : (number + 1) * T]))
    last = first.states(torch.arange(T * 2, T * 2 + 2)).numpy()
    assert np.array_equal(last, actor.seen[T])  # s' of the last step is the next rollout's first observation


def test_B_and_a_restored_rollout_stack_in_the_same_way() -> None:
    env = FrameStack(make(AutoresetMode.SAME_STEP, False), STACK)
    tau = collect(env, Watched(env.shape, 3), torch.rand(T, 2, dtype=torch.float64), lambda: None)
    blank = torch.zeros(T, 2)
    tau = Rollout(
        **{**vars(tau), "rewards": blank, "step_counts": blank.long(), "advantages_raw": blank, "advantages": blank,
           "returns": {"value": blank}}
    )  # fmt: skip
    shape = FrameShape(T, 2, (2,), np.dtype(np.float64), STACK)
    B = Buffer(("s", "a", "R"), ("value",), shape)
    B.add(0, tau)
    B.old_log_policy = torch.zeros(2, T, 3)
    states = tau.states(torch.arange((T + 1) * 2)).reshape(T + 1, 2, -1)
    assert np.array_equal(B.states(torch.tensor([0, 1])), states[:-1].numpy())
    batch = B.minibatch(torch.tensor([1, 0]))
    assert torch.equal(batch.frames[: len(batch)].view(T, 2, -1), states[:-1].flip(1))
    assert torch.equal(batch.frames[batch.next_rows].view(T, 2, -1), states[1:].flip(1))
    assert all(len(shape.open(segment)) == T + STACK for segment in B.rollouts[0].segments)
    again = Rollout.restored(tau.tensors(), tau.segments, shape, ["value"], 3)
    assert torch.equal(again.states(torch.arange((T + 1) * 2)), states.flatten(0, 1))


def test_procgen_stacks_and_goes_on_from_its_state() -> None:
    config = resolve("ppo", "coinrun", preset="tiny", settings={"env.frame_stack": 4})
    env = make_train(config, None, None)
    single = make_train(resolve("ppo", "coinrun", preset="tiny"), None, None)
    assert Spaces.of(env) == Spaces((32, 32, 12), np.dtype(np.uint8), 15, (64, 64, 3), stack=4)
    frames = [single.observe()[0]]
    assert np.array_equal(env.observe()[0], np.concatenate([frames[0]] * 4, axis=-1))
    for action in (1, 7, 7):
        acting = np.full(8, action)
        step = env.step(acting)
        frames.append(single.step(acting).frames)
    assert not step.crosses.any()
    assert np.array_equal(step.frames, np.concatenate(frames, axis=-1))
    saved = env.state()
    after = [env.step(np.full(8, 3)).frames for _ in range(5)]
    env.restore(saved)
    assert all(np.array_equal(env.step(np.full(8, 3)).frames, frame) for frame in after)
    with pytest.raises(ValueError, match="saved numbers"):
        env.restore([_array(np.zeros(3)), *saved[1:]])


def _array(array: np.ndarray) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_chosen_levels_and_raw_observations_are_stacked_too() -> None:
    config = resolve("ppo", "maze", preset="tiny", settings={"env.frame_stack": 2})
    env = make_levels(config, [3, 4])
    frames, levels = env.observe()
    assert levels.tolist() == [3, 4]
    spaces = Spaces.of(env)
    assert spaces.raw_shape == (2, 64, 64, 3)
    raw = np.random.default_rng(0).integers(0, 256, (5, 2, 64, 64, 3), np.uint8)
    seen = spaces.arrange(raw)
    assert seen.shape == (5, *frames.shape[1:])
    one = Spaces((32, 32, 3), np.dtype(np.uint8), 15, (64, 64, 3))
    assert np.array_equal(seen[..., 3:], one.arrange(raw[:, 1]))


def npy(dtype: str, shape: tuple[int, ...]) -> bytes:
    """A file of numpy's with zeros for a small shape, and no content for a large one."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = bytes(4 * math.prod(shape)) if math.prod(shape) < 100 else b""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00\x02\x00((",
        npy("<f4", (2**46,)),
        npy("<f4", (2, 3))[:-1],
        npy("|O", (2, 3)),
    ],
    ids=["nothing", "zip", "no header", "large", "short", "objects"],
)
def test_saved_numbers_that_do_not_fit_are_refused_before_memory_is_taken(data: bytes) -> None:
    with pytest.raises(ValueError, match="saved numbers"):
        saved_array(data, np.zeros((2, 3), np.float32))


def test_saved_numbers_come_back_in_the_type_of_today() -> None:
    for order in ("C", "F"):
        file, numbers = io.BytesIO(), np.asarray(np.arange(6.0).reshape(2, 3), order=order)
        np.save(file, numbers, allow_pickle=False)
        found = saved_array(file.getvalue(), np.zeros((2, 3), np.float32))
        assert found.dtype == np.float32
        assert np.array_equal(found, numbers)

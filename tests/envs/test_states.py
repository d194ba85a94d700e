"""States of Procgen are tried in a second process, which may die in place of the run."""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest

from dcpg.envs import states
from dcpg.envs.procgen import Procgen
from dcpg.envs.states import READY, try_states
from dcpg.envs.trial import Ended, second_process
from dcpg.errors import DcpgError


def with_number(state: bytes, place: int, value: int) -> bytes:
    """A state with another number at a place of what follows its last random generator: 0 is the width of the world."""
    at = [m.end() for m in re.finditer(rb"[0-9 ]{64,}", state)][-1] + 4 * place
    return state[:at] + struct.pack("<i", value) + state[at + 4 :]


def test_good_states_are_taken_and_play_on_exactly() -> None:
    env, other = Procgen(2, "starpilot", seed=1), Procgen(2, "starpilot", seed=9)
    for _ in range(20):
        env.step(np.array([7, 4]))
    other.restore(env.state())
    assert other.state() == env.state()
    for t in range(40):
        a, b = env.step(np.array([t % 15, 3])), other.step(np.array([t % 15, 3]))
        assert np.array_equal(a.frames, b.frames)
    assert other.state() == env.state()


@pytest.mark.faults
def test_states_that_the_library_fails_on_are_refused_and_the_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these ends or hangs the process that gives it to the library."""
    env = Procgen(2, "starpilot", seed=1)
    good, before = env.state(), env.observe()[0]
    monkeypatch.setattr(states, "SECONDS", 1.0)
    for place, told in ((9, "fails on the state of an environment: .*SIGSEGV"), (0, "hangs on the state")):
        with pytest.raises(ValueError, match=f"Procgen's library {told}"):
            env.restore([good[0], with_number(good[1], place, 2**31 - 1)])
    assert np.array_equal(env.observe()[0], before)
    assert env.state() == good


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (Ended(0, [READY], False), "it ended the process, code 0"),
        (Ended(1, [READY, "fassert failed 'x'"], False), "fassert failed 'x'"),
        (Ended(-signal.SIGABRT, [READY], False), "SIGABRT"),
        (Ended(-signal.SIGXCPU, [READY], False), "hangs"),
    ],
)
def test_a_trial_that_fails_is_damage(ended: Ended, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "second_process", lambda *_: ended)
    with pytest.raises(ValueError, match=told):
        try_states("starpilot", "easy", [b""])


@pytest.mark.parametrize(
    "ended",
    [
        Ended(1, ["ModuleNotFoundError: No module named 'numpy'"], False),
        Ended(None, [], False),
        Ended(None, [READY], False),  # a machine that gave it no time: a loop would have met the limit of computing
        Ended(-signal.SIGKILL, [READY], False),
        Ended(-signal.SIGTERM, [READY], False),
    ],
)
def test_a_trial_that_was_not_held_is_no_damage(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "second_process", lambda *_: ended)
    with pytest.raises(DcpgError, match=r"could not be tried in a second process .*nothing was changed"):
        try_states("starpilot", "easy", [b""])


@pytest.mark.parametrize("interpreter", ["/nowhere/python", None])
def test_no_second_process_is_no_damage(interpreter: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(DcpgError, match="could not be tried in a second process"):
        try_states("starpilot", "easy", [b""])


def test_how_a_second_process_ends() -> None:
    assert second_process("os", "getpid", [], 60).done
    assert second_process("sys", "exit", [], 60) == Ended(0, [], False)  # silently, as the library can
    assert second_process("sys", "exit", ["a reason"], 60).why == "a reason"
    assert second_process("faulthandler", "_sigsegv", [], 60).code == -signal.SIGSEGV
    assert second_process("signal", "pause", [], 0.2).code is None


def test_the_second_process_does_without_torch() -> None:
    code = "import sys, dcpg.envs.states; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

"""Environments with processes of their own: signals reach them too, and they may outlive the trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import dcpg
from dcpg.storage.lock import Lock
from dcpg.training.stop import NUMBERS

# what the file `armed` says happens once, in the process of an environment
ENVIRONMENT = """
import json, os, signal, time
from pathlib import Path
import gymnasium, numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

HERE = Path(__file__).parent

class Armed(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 3:
            go_off()
        return np.full(3, self.t / 5, np.float32), 1.0, self.t == 5, False, {}

def go_off():
    try:
        os.rename(HERE / "armed", HERE / "off")
    except FileNotFoundError:
        return
    what = (HERE / "off").read_text()
    if what == "hang":
        time.sleep(1000)
    elif what == "exit":
        raise SystemExit
    elif what == "gone":
        raise ConnectionResetError(104, "Connection reset by peer")
    elif what.startswith("fork"):
        if os.fork() == 0:
            if what == "fork and go on":
                return
            raise ValueError("in the child")
        os.wait()
        assert json.loads((HERE / "run" / "summary.json").read_bytes())["status"] == "running"
        assert (HERE / "run" / "lock").exists()
    else:
        os.killpg(0, int(what))
        time.sleep(1000)  # until the signal is there

def make(num_envs, seed):
    return AsyncVectorEnv([Armed] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

def make_here(num_envs, seed):
    return SyncVectorEnv([Armed] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(ENVIRONMENT)
    return tmp_path


def trained(place: Path, armed: str, make: str, *more: str) -> tuple[int, str]:
    """The exit code of a run of one rollout, and what it said."""
    (place / "armed").write_text(armed)
    settings = ("machine.threads=1", "env.num_envs=4", "evaluation.episodes=2", "evaluation.max_steps=8", *more)
    options = ["--preset", "tiny", "--steps", "128", *(word for one in settings for word in ("--set", one))]
    done = subprocess.run(
        [sys.executable, "-m", "dcpg", "train", "ppo", "--env", f"{place / 'own.py'}:{make}", "--out", "run", *options],
        cwd=place, capture_output=True, text=True, timeout=120, start_new_session=True, check=False,
        preexec_fn=_hear_interrupts,
    )  # fmt: skip
    return done.returncode, done.stderr


def _hear_interrupts() -> None:
    """A shell lets what it starts in the background ignore them, and so would the environments' processes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def status(place: Path) -> str:
    return str(json.loads((place / "run" / "summary.json").read_bytes())["status"])


def finishes(place: Path) -> bool:
    """Whether the run can be resumed, without workers: this process has threads, and should not fork."""
    found = dcpg.resume(place / "run", env=f"{place / 'own.py'}:make_here", progress=False)
    return found.summary["status"] == "finished"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.faults) for n in NUMBERS if n != signal.SIGINT)]
)
def test_a_signal_to_all_processes_of_a_run_saves_it(place: Path, number: signal.Signals) -> None:
    code, said = trained(place, str(int(number)), "make")
    assert (code, status(place)) == (75, "stopped"), said
    assert finishes(place)


def test_a_run_whose_environment_hangs_leaves_no_process_and_no_lock(place: Path) -> None:
    code, said = trained(place, "hang", "make", "env.timeout=2")
    assert (code, status(place)) == (5, "running"), said
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(place) in " ".join(p.info["cmdline"] or [])]
    assert finishes(place)


@pytest.mark.parametrize("what", ["fork", pytest.param("fork and go on", marks=pytest.mark.faults)])
def test_a_child_that_an_environment_forks_ends_without_a_word_in_the_runs_files(place: Path, what: str) -> None:
    code, said = trained(place, what, "make_here")
    assert ("ValueError: in the child" in said) == (what == "fork")
    assert (code, status(place)) == (0, "finished"), said
    assert len((place / "run" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("exit", "The environment asked the program to end, in its step: SystemExit"),
        pytest.param(
            "gone", "The environment's step failed, since a process of it or a server", marks=pytest.mark.faults
        ),
    ],
)
def test_an_environment_that_ends_the_program_or_loses_a_process_fails_the_run(
    place: Path, what: str, words: str
) -> None:
    code, said = trained(place, what, "make_here")
    assert (code, status(place)) == (1, "failed")
    assert words in said
    assert finishes(place)


FORKED = """
import os, sys
from pathlib import Path
from dcpg.storage.lock import Lock
lock = Lock(Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:
    lock.release()
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_forked_child_neither_releases_a_lock_nor_keeps_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    with subprocess.Popen(
        [sys.executable, "-c", FORKED, str(lock.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert json.loads(lock.path.read_bytes())["pid"] == process.pid
        process.kill()
        process.wait()
        lock.acquire()
        os.kill(child, 0)  # it is still there
        lock.release()

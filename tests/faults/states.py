"""Damages states of Procgen at many places and counts what ends or hangs the library, and what the trial finds of it.

    python -m tests.faults.states COUNT SEED

Prints one JSON object. Every case is played in two forked processes: one takes the states as a resume without a trial
would and plays on; the other runs the trial's own function.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from dcpg.envs import states
from dcpg.envs.library import library

GAMES = ("starpilot", "coinrun", "bossfight", "maze", "climber", "miner")
ENVS, PLAYED, SECONDS = 2, 1000, 5
SIZES = {"bit": 1, "byte": 1, "number": 4, "zeros": 16, "ones": 16, "noise": 64}


def text(state: bytes) -> list[tuple[int, int]]:
    """Where the numbers of the random generators stand: two thirds of a state."""
    return [m.span() for m in re.finditer(rb"[0-9 ]{64,}", state)]


def damaged(state: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The kind of damage, and the state with it, behind the name of the game and before the end marker."""
    kind = rng.choice(list(SIZES))
    head, size, spans = 8 + struct.unpack_from("<ii", state)[1], SIZES[kind], text(state)
    free = [p for p in range(head, len(state) - 4 - size) if not any(a <= p < z for a, z in spans)]
    at = rng.choice(free)
    new = {
        "bit": bytes([state[at] ^ 1 << rng.randrange(8)]),
        "byte": rng.randbytes(1),
        "number": struct.pack("<i", rng.choice([-1, 2**31 - 1, -(2**31), 10**6])),
        "zeros": bytes(16),
        "ones": b"\xff" * 16,
        "noise": rng.randbytes(64),
    }[kind]
    return kind, state[:at] + new + state[at + size :]


def forked(work: Callable[[], Any]) -> str:
    """How a forked process ended that does this: "" if well."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.stdout = io.StringIO()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
        os.write(write, b"done")
        os._exit(0)
    os.close(write)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = os.read(read, 10)
    os.close(read)
    return "" if said else signal.Signals(-code).name if code < 0 else f"exit {code}"


def untried(game: str, given: list[bytes]) -> None:
    """What a resume without a trial does."""
    used = library()
    env = used.make(ENVS, game, "easy", start=0, count=200, seed=5)
    env.observe()
    states._limit(SECONDS)
    for i, state in enumerate(given):
        env.set_state(i, state)
    env.observe()
    for row in np.random.default_rng(1).integers(0, 15, (PLAYED, ENVS)):
        env.actions["action"][:] = row
        env.act()
        env.observe()


def tried(game: str, given: list[bytes]) -> None:
    """What the second process does."""
    data = struct.pack(f"<{ENVS}q", *map(len, given)) + b"".join(given)
    sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    used = library()
    states._end_with_parent = lambda: None  # type: ignore[assignment]
    arguments = (str(used.file), str(used.assets), game, "easy", str(states.STEPS), str(SECONDS), str(ENVS))
    try:
        states.play_states(*arguments)
    except SystemExit:
        os._exit(1)


def main(count: int, seed: int) -> dict[str, Any]:
    """The counts: how cases end without a trial, and those that the trial finds."""
    rng, good, ends, found = random.Random(seed), dict[str, list[bytes]](), Counter[str](), Counter[str]()
    for game in GAMES:
        env = library().make(ENVS, game, "easy", start=0, count=200, seed=3)
        env.observe()
        for row in np.random.default_rng(9).integers(0, 15, (60, ENVS)):
            env.actions["action"][:] = row
            env.act()
            env.observe()
        good[game] = env.states()
        env.close()
        found["good states refused"] += bool(forked(lambda game=game: tried(game, good[game])))  # type: ignore[misc]
    for i in range(count):
        game = GAMES[i % len(GAMES)]
        _, bad = damaged(good[game][1], rng)
        given = [good[game][0], bad]
        before = forked(lambda game=game, given=given: untried(game, given))  # type: ignore[misc]
        now = forked(lambda game=game, given=given: tried(game, given))  # type: ignore[misc]
        ends[before or "plays on"] += 1
        found["ended or hung"] += bool(before)
        found["ended or hung, found by the trial"] += bool(before and now)
        found["played on, found by the trial"] += bool(now and not before)
    return {"cases": count, "without a trial": dict(ends), **found}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))

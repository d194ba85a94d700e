"""Tries the states of a checkpoint before a run takes them.

A state goes to Procgen's library as it is. A damaged one can end the process, with or without a message, or hang it, so
a second process plays with all of them first. It imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import resource
import signal
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dcpg.envs.libenv import Environments
from dcpg.envs.library import MODES, NUM_ACTIONS, Library, library
from dcpg.envs.trial import second_process
from dcpg.errors import DcpgError
from dcpg.text import printable, say

STEPS = 400
GROUP = 64  # environments, for which the next three are
SECONDS = 20.0  # of computing that the states may take; about one is needed, and a checkpoint refused wrongly is lost
PATIENCE = 600.0  # seconds for all of it, on a machine with other work
ONWARDS = (7, 8)  # to the right, and up with it: more of a level comes into view
RESET = -1  # begins a new level, as the end of an episode does
MEMORY = 2**30  # bytes that they may take
OPTIONS, CENTRED = struct.Struct("<9i"), 5  # of these, `center_agent` is the sixth
READY = "dcpg: ready"  # printed before the library gets the first state
# signals that come from outside: from a person, a scheduler or a system without memory
OUTSIDE = {-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}


def try_states(game: str, mode: str, states: list[bytes]) -> None:
    """Raise ValueError if Procgen's library ends, hangs or changes the states; the second process is the one to die."""
    used, groups = library(), math.ceil(len(states) / GROUP)
    data = b"".join([struct.pack(f"<{len(states)}q", *map(len, states)), *states])
    arguments = [str(used.file), str(used.assets), game, mode, str(STEPS), str(groups), str(len(states))]
    try:
        ended = second_process(__name__, "play_states", arguments, groups * PATIENCE, data)
    except (OSError, TypeError, ValueError) as error:  # the last two: an interpreter that does not know its own file
        raise _untried(str(error)) from None
    if ended.done:
        return
    begun, ended = READY in ended.lines, replace(ended, lines=[line for line in ended.lines if line != READY])
    if not begun or ended.code is None or ended.code in OUTSIDE:  # None: a machine that gave it no time
        raise _untried(ended.why)
    if ended.code == -signal.SIGXCPU:
        raise ValueError("Procgen's library hangs on the state of an environment")
    raise ValueError(f"Procgen's library fails on the state of an environment: {printable(ended.why)}")


def _untried(why: str) -> DcpgError:
    """The error if nothing can be said of the states: the checkpoint must not count as damaged."""
    return DcpgError(
        f"The environments' states could not be tried in a second process ({printable(why)}); nothing was changed, "
        "so resume again when the machine has memory and processes to spare."
    )


def play_states(file: str, assets: str, game: str, mode: str, steps: str, groups: str, count: str) -> None:
    """In the second process: restore states that come from the standard input, and play with them."""
    _end_with_parent()
    given, at = sys.stdin.buffer.read(), 8 * int(count)
    states = []
    for length in struct.unpack_from(f"<{count}q", given):
        states.append(given[at : at + length])
        at += length
    env = Library(Path(file), Path(assets), "").make(len(states), game, mode, start=0, count=1, seed=0)
    env.observe()
    rng, size = np.random.default_rng(0), (int(steps), len(states))
    actions = np.where(rng.random(size) < 0.7, rng.choice(ONWARDS, size), rng.integers(0, NUM_ACTIONS, size))
    actions[len(actions) // 2] = RESET
    say(READY, flush=True)
    _limit(int(groups))
    uncentred = _uncentred(states, env.states()[0], game, mode)
    _take(env, states)
    if env.states() != states:  # a state of the library's own comes back as it went in
        sys.exit("it is not a state that the library would give")
    _take(env, uncentred)
    _take(env, states)
    for row in actions:
        env.actions["action"][:] = row
        env.act()
        env.observe()
    env.close()


def _take(env: Environments, states: list[bytes]) -> None:
    for i, state in enumerate(states):
        env.set_state(i, state)
    env.observe()


def _uncentred(states: list[bytes], own: bytes, game: str, mode: str) -> list[bytes]:
    """The states with the whole world in view, so that all of it is drawn; none if the library writes them otherwise.

    The first options in a state follow the game's name, as `Library.make` gives them. Games that are not scrolled have
    the whole world in view already.
    """
    at = 8 + len(game)
    options = OPTIONS.unpack_from(own, at)
    if options != (0, 0, 0, 0, 1, options[CENTRED], 0, MODES[mode], 0):
        return []
    if any(OPTIONS.unpack_from(state, at) != options for state in states):
        sys.exit("it has other options than this run")
    at += 4 * CENTRED
    return [state[:at] + bytes(4) + state[at + 4 :] for state in states]


def _limit(groups: int) -> None:
    """No file of a crash, and bounds for what the states make the library do: signals end even its endless loops."""
    computing = math.ceil(time.process_time() + groups * SECONDS)
    bounds = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: computing}
    with contextlib.suppress(OSError), open("/proc/self/statm") as pages:
        bounds[resource.RLIMIT_AS] = int(pages.read().split()[0]) * resource.getpagesize() + groups * MEMORY
    for kind, bound in bounds.items():
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))


def _end_with_parent() -> None:
    """Where the system can do that, do not outlive the run that was stopped during the trial."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

"""Plays every game in both modes and prints what came of it, to compare two libraries of Procgen.

python -m tests.envs.played
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

from dcpg.envs.library import MODES
from dcpg.envs.procgen import GAMES, Procgen, pictures

STEPS, ENVS = 60, 8


def played() -> dict[str, dict[str, str]]:
    """'game mode' -> the fingerprint of its pictures, and a hash of rewards, ends, levels and states."""
    return {
        f"{game} {mode}": {"pictures": pictures(game, mode), "course": course(game, mode)}
        for mode in MODES
        for game in GAMES
    }


def course(game: str, mode: str) -> str:
    env, index, digest = Procgen(ENVS, game, seed=3, mode=mode), np.arange(ENVS), hashlib.sha256()
    for t in range(STEPS):
        step = env.step((t * (t + 5) + index * (t * t + 11)) % 15)
        for array in (step.rewards, step.dones, step.levels):
            digest.update(array.tobytes())
    for state in env.state():
        digest.update(state)
    env.close()
    return digest.hexdigest()


if __name__ == "__main__":
    print(json.dumps(played()))

"""Procgen, driven through the C interface of its library.

Every environment is seeded; the whole state can be saved and restored; and a level can be set on any environment by
restoring a saved start of it, with the unmodified library.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
from typing import Any

import numpy as np

from dcpg.envs.base import Array, Step, averaged
from dcpg.envs.levels import LevelChooser
from dcpg.envs.library import NUM_ACTIONS, library
from dcpg.envs.states import try_states
from dcpg.errors import BadInput, unknown
from dcpg.seeding import rand_seed
from dcpg.text import counted, for_audience

GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip


ALL_LEVELS = 2**31 - 1


STATE_END = bytes.fromhex("fecafeca")  # the end marker of a state, the library's 0xCAFECAFE


MAX_STARTS = 4096  # cached level starts, about 20 to 40 kB each


# Level starts are made with this seed, so that they are the same in every run.
START_SEED = 0


def check_game(game: str) -> str:
    """Return the name of a known game; refuse another one and suggest the closest, or the option for other games."""
    if game not in GAMES:
        if ":" in game or re.search(r"-v[0-9]+$", game):
            how = for_audience(f"--env {game}", f'env="{game}"')
            raise BadInput(f"{game} is none of Procgen's games; for an environment of your own or of Gymnasium: {how}")
        raise unknown("game", game, GAMES)
    return game


def state_game(state: bytes) -> str:
    """The game of a state. The library ends the process on a foreign or truncated state, so this is checked first."""
    # a state begins with two integers (format, length of the name) and the game's name
    if len(state) < 8:
        raise ValueError("a Procgen state is cut short")
    _, length = struct.unpack_from("<ii", state)
    if not 0 < length < 64:
        raise ValueError("this is not a Procgen state")
    if not state.endswith(STATE_END):
        raise ValueError("a Procgen state is cut short")
    return state[8 : 8 + length].decode("ascii", "replace")


class Procgen:
    """N environments of one game.

    Levels come from a range (`count` 0: all levels) from which Procgen itself draws, or from the chooser `levels`. It
    is called at every episode's end, and its choice is set by restoring a saved start of that level.
    """

    num_actions = NUM_ACTIONS
    first_action = 0
    stack = 1
    raw_shape: tuple[int, ...] = (64, 64, 3)
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    has_levels = True
    exact_state = True

    def __init__(
        self,
        num_envs: int,
        game: str,
        *,
        seed: int,
        mode: str = "easy",
        start: int = 0,
        count: int = 200,
        levels: LevelChooser | None = None,
        frame_size: int = 64,
        threads: int = 0,
        render: bool = False,
    ) -> None:
        self.num_envs, self.game, self.mode, self.levels, self.render = num_envs, game, mode, levels, render
        self.frame_size = frame_size
        self.shape: tuple[int, ...] = (frame_size, frame_size, 3)
        if levels is not None:
            start, count = 0, 1
        self._env = library().make(
            num_envs,
            check_game(game),
            mode,
            start=start,
            count=count,
            seed=seed,
            threads=threads if threads > 1 else 0,
            render=render,
        )
        if levels is not None:
            for i in range(num_envs):
                self._set_level(i, levels.choose(i))
        self._env.observe()

    def observe(self) -> tuple[Array, Array]:
        """Copies of the frames and the level seeds."""
        self._env.observe()
        return self._frames(), self._levels()

    def step(self, actions: Array) -> Step:
        """Step all environments. Procgen never truncates, and has already reset where an episode ended."""
        env = self._env
        env.actions["action"][:] = actions
        env.act()
        env.observe()
        rewards, dones = env.rewards.copy(), env.first.copy()
        if self.levels is not None and dones.any():  # after the copies: set_state overwrites rewards and dones
            for i in np.flatnonzero(dones):
                self._set_level(int(i), self.levels.choose(int(i)))
            env.observe()
        return Step(
            frames=self._frames(),
            rewards=rewards,
            dones=dones,
            valid=np.ones(self.num_envs, bool),
            crosses=dones,
            levels=self._levels(),
            truncated=np.zeros(self.num_envs, bool),
            final_frames=None,
        )

    def pictures(self) -> Array:
        """The frames at Procgen's display resolution, uint8 [N, 512, 512, 3]; only with `render`."""
        return self._env.info["rgb"].copy()

    def state(self) -> list[bytes]:
        """One blob per environment, without the state of a level chooser."""
        return self._env.states()

    def restore(self, state: list[bytes]) -> None:
        """Continue exactly from `state()`; states that the library cannot take are refused before it sees them here."""
        if len(state) != self.num_envs:
            raise ValueError(f"{counted(len(state), 'state')} for {counted(self.num_envs, 'environment')}")
        for blob in state:
            if state_game(blob) != self.game:
                raise ValueError(f"an environment state belongs to {state_game(blob)!r}, not to {self.game!r}")
        try_states(self.game, self.mode, state)
        self.take(state)
        if self.levels is not None:
            strange = set(self._levels().tolist()) - set(self.levels.levels)
            if strange:
                raise ValueError(f"the environments play levels that are not this run's: {sorted(strange)[:3]}")

    def take(self, state: list[bytes]) -> None:
        """Continue from states that this process itself has made."""
        for i, blob in enumerate(state):
            self._env.set_state(i, blob)
        self._env.observe()

    def close(self) -> None:
        """Free the library's environments."""
        self._env.close()

    def _set_level(self, index: int, level: int) -> None:
        self._env.set_state(index, level_start(self.game, self.mode, level))

    def _frames(self) -> Array:
        frames = self._env.observations["rgb"]
        return frames.copy() if self.frame_size == 64 else averaged(frames, 64 // self.frame_size)

    def _levels(self) -> Array:
        return self._env.info["level_seed"].astype(np.int64)


@functools.lru_cache(maxsize=MAX_STARTS)
def level_start(game: str, mode: str, level: int) -> bytes:
    """The state of an environment at the start of a level."""
    env = library().make(1, check_game(game), mode, start=level, count=1, seed=START_SEED)
    env.observe()
    (state,) = env.states()
    env.close()
    return state


def train_seed(seed: int) -> int:
    """The seed of a run's training environments."""
    return rand_seed(seed, "train-levels")


@functools.cache
def pictures(game: str, mode: str) -> str:
    """A fingerprint of how the library draws a game: a hash of 800 frames of the levels 0 to 199.

    Builds of Procgen that draw a game differently do so in few frames; here they are 8 or more of the 800.
    """
    env, index = library().make(32, check_game(game), mode, start=0, count=200, seed=START_SEED), np.arange(32)
    digest = hashlib.sha256()
    for t in range(25):
        env.observe()
        digest.update(env.observations["rgb"].tobytes())
        env.actions["action"][:] = (t * (t + 5) + index * (t * t + 11)) % NUM_ACTIONS
        env.act()
    env.close()
    return digest.hexdigest()[:16]


def library_of(game: str, mode: str) -> dict[str, Any]:
    """The library that this process plays a game with, as config.json keeps it."""
    used = library()
    return {"library": used.name, "interface": used.loaded.interface, "pictures": pictures(game, mode)}

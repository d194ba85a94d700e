"""The real Procgen: seeding, levels, state."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dcpg.envs.base import averaged
from dcpg.envs.levels import EachOnce, ListedLevels
from dcpg.envs.procgen import GAMES, Procgen, level_start, state_game
from dcpg.errors import BadInput


def actions(t: int, n: int) -> np.ndarray:
    return np.random.default_rng(t).integers(0, 15, n)


def played(env: Procgen, steps: int, start: int = 0) -> list[tuple[np.ndarray, ...]]:
    out = []
    for t in range(start, start + steps):
        s = env.step(actions(t, env.num_envs))
        out.append((s.frames, s.rewards, s.dones, s.levels))
    return out


def same(a: list[tuple[np.ndarray, ...]], b: list[tuple[np.ndarray, ...]]) -> bool:
    return all(np.array_equal(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("mode", ["easy", "hard"])
def test_all_sixteen_games_in_both_modes(mode: str) -> None:
    assert len(GAMES) == 16
    for game in GAMES:
        env = Procgen(2, game, seed=5, mode=mode)
        frames, levels = env.observe()
        assert frames.shape == (2, 64, 64, 3)
        assert frames.dtype == np.uint8
        assert frames.std() > 1
        assert ((levels >= 0) & (levels < 200)).all()
        step = env.step(np.array([7, 4]))
        assert step.rewards.dtype == np.float32
        assert not step.truncated.any()
        env.close()


def test_modes_are_different_games() -> None:
    frames = [Procgen(1, "coinrun", seed=1, mode=mode, start=3, count=1).observe()[0] for mode in ("easy", "hard")]
    assert not np.array_equal(*frames)


def test_one_seed_one_future() -> None:
    a, b, c = (Procgen(4, "starpilot", seed=s) for s in (1, 1, 2))
    x, y, z = played(a, 150), played(b, 150), played(c, 150)
    assert same(x, y)
    assert not same(x, z)


def test_threads_change_nothing() -> None:
    assert same(played(Procgen(4, "bigfish", seed=1), 60), played(Procgen(4, "bigfish", seed=1, threads=2), 60))


def test_training_levels_are_the_range_and_test_levels_are_not() -> None:
    env = Procgen(64, "leaper", seed=3, start=10, count=7)
    seen = {int(x) for _, _, _, levels in played(env, 300) for x in levels}
    assert seen == set(range(10, 17))
    _, unseen = Procgen(64, "leaper", seed=3, count=0).observe()
    assert (unseen > 200).mean() > 0.95


def test_state_is_saved_and_restored_in_another_process_of_events() -> None:
    a = Procgen(4, "starpilot", seed=1)
    played(a, 40)
    state = a.state()
    b = Procgen(4, "starpilot", seed=99)
    b.restore(state)
    assert np.array_equal(a.observe()[0], b.observe()[0])
    assert same(played(a, 300, 40), played(b, 300, 40))


def test_a_foreign_or_cut_state_is_refused_and_the_process_lives() -> None:
    env, other = Procgen(1, "starpilot", seed=1), Procgen(1, "coinrun", seed=1)
    before = env.observe()[0]
    with pytest.raises(ValueError, match="coinrun"):
        env.restore(other.state())
    with pytest.raises(ValueError, match="cut short"):
        env.restore([b"\0\0\0"])
    with pytest.raises(ValueError, match="2 states for 1 environment"):
        env.restore(env.state()[:1] * 2)
    assert np.array_equal(env.observe()[0], before)
    assert state_game(env.state()[0]) == "starpilot"


def test_a_level_can_be_set_on_the_stock_library() -> None:
    env = Procgen(4, "coinrun", seed=3, levels=EachOnce([5, 6, 150, 5]))
    firsts, levels = env.observe()
    assert levels.tolist() == [5, 6, 150, 5]
    for i, level in enumerate([5, 6, 150]):
        alone = Procgen(1, "coinrun", seed=77, start=level, count=1)
        assert np.array_equal(alone.observe()[0][0], firsts[i])
    ends = 0
    for t in range(1200):
        s = env.step(np.full(4, 8 if t % 3 else 7))
        for i in np.flatnonzero(s.dones):
            ends += 1
            assert s.levels[i] == [5, 6, 150, 5][i]
            assert np.array_equal(s.frames[i], firsts[i])
    assert ends >= 4


def test_setting_levels_loses_no_reward_and_no_end() -> None:
    free = Procgen(3, "starpilot", seed=1, start=9, count=1)
    held = Procgen(3, "starpilot", seed=1, levels=EachOnce([9, 9, 9]))
    # one level, one future: both pools play the same episodes
    x, y = played(free, 400), played(held, 400)
    assert same(x, y)
    assert sum(d.sum() for _, _, d, _ in x) >= 3
    assert sum(float(np.abs(r).sum()) for _, r, _, _ in x) > 0


def test_listed_levels_are_uniform_and_keyed_and_restore_beside_the_environments() -> None:
    levels = [3, 1000, 77777]
    listed, again = (ListedLevels(levels, 8, 5, "x") for _ in range(2))
    env = Procgen(8, "leaper", seed=1, levels=listed)
    played(env, 250)
    state, chosen = env.state(), listed.state()
    other = Procgen(8, "leaper", seed=2, levels=again)
    again.restore(chosen)
    other.restore(state)
    assert same(played(env, 250, 250), played(other, 250, 250))
    chooser = ListedLevels(levels, 1, 5, "x")
    drawn = [chooser.choose(0) for _ in range(900)]
    assert {level: drawn.count(level) for level in levels}.keys() == set(drawn)
    assert all(240 < drawn.count(level) < 360 for level in levels)


def test_level_starts_are_a_function_of_the_level_alone() -> None:
    assert level_start("maze", "easy", 12) == level_start("maze", "easy", 12)
    assert level_start("maze", "easy", 12) != level_start("maze", "easy", 13)


def test_high_resolution_frames() -> None:
    env = Procgen(2, "bigfish", seed=1, render=True)
    shown = env.pictures()
    assert shown.shape == (2, 512, 512, 3)
    small, _ = env.observe()
    # the same picture: averaged down it is close to what the agent sees
    down = shown.reshape(2, 64, 8, 64, 8, 3).mean((2, 4))
    assert np.abs(down - small).mean() < 12


def test_frames_are_averaged_and_rounded() -> None:
    frames = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1).repeat(3, 3)
    out = averaged(frames, 2)
    # (0 + 1 + 4 + 5) / 4 = 2.5 -> 3
    assert out[0, :, :, 0].tolist() == [[3, 5], [11, 13]]
    assert Procgen(1, "bigfish", seed=1, frame_size=32).observe()[0].shape == (1, 32, 32, 3)


def test_unknown_game_gets_the_nearest_name() -> None:
    with pytest.raises(BadInput, match="did you mean 'bigfish'"):
        Procgen(1, "bigfis", seed=0)


def test_no_noise_on_the_terminal() -> None:
    code = "from dcpg.envs.procgen import Procgen; Procgen(2, 'coinrun', seed=0).observe()"
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert (done.stdout, done.stderr) == ("", "")

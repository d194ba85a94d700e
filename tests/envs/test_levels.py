"""Prioritised level replay: scores, ranks, staleness and their mixture by hand; the chosen level is the one played."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpg
from dcpg.config.build import make_train, train_levels
from dcpg.config.resolve import resolve
from dcpg.envs.levels import PrioritisedLevels, level_scores, rank_prioritised
from dcpg.envs.procgen import Procgen
from dcpg.errors import BadInput
from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.training.trainer import Trainer


def rollout(advantages: Any, dones: Any, levels: Any) -> Any:
    return SimpleNamespace(
        advantages_raw=torch.tensor(advantages),
        dones=torch.tensor(dones, dtype=torch.bool),
        levels=torch.tensor(levels),
    )


def test_scores_by_hand() -> None:
    """Mean |A| of every part: environment by environment, the ended ones before those that go on."""
    tau = rollout(
        #  environment 0 plays 7 (two steps), then 8 (two, goes on); environment 1 plays 8 to the end, then 9, then 7
        [[1.0, 10.0], [-3.0, -20.0], [5.0, 0.5], [7.0, -4.0]],
        [[0, 0], [1, 1], [0, 1], [0, 0]],
        [[7, 8], [7, 8], [8, 9], [8, 7]],
    )
    assert level_scores(tau) == [(7, 2.0), (8, 15.0), (9, 0.5), (8, 6.0), (7, 4.0)]
    sampler = PrioritisedLevels([7, 8, 9, 10], 2, 0, 0.1, 0.1)
    sampler.observe(tau)
    # the last part of a level counts: 8 has ended with 15, but goes on elsewhere with 6
    assert sampler.scores[:3].tolist() == [4.0, 6.0, 0.5]
    assert np.isnan(sampler.scores[3])


def test_a_whole_rollout_without_an_end_is_one_part_and_an_end_in_the_last_step_leaves_none() -> None:
    assert level_scores(rollout([[1.0], [-2.0]], [[0], [0]], [[5], [5]])) == [(5, 1.5)]
    assert level_scores(rollout([[1.0], [-2.0]], [[0], [1]], [[5], [5]])) == [(5, 1.5)]


def test_the_score_is_the_l1_value_loss(tmp_path: Path) -> None:
    """|R - V| of the head that gives the advantages: what a real rollout's targets and recorded values say."""
    config = resolve("plr", "starpilot", preset="tiny", steps=128, settings={"levels.count": 8})
    trainer = Trainer(config, RunDirectory(tmp_path / "run"))
    tau = trainer.collector.sample(0)
    error = (tau.returns["value"] - tau.values["value"][:-1]).abs()
    whole = [n for n in range(8) if not tau.dones[:, n].any()]
    sampler = trainer.collector.choosers["levels"]
    assert isinstance(sampler, PrioritisedLevels)
    scores = dict(zip(sampler.levels, sampler.scores, strict=True))
    assert whole
    for n in whole:  # no level is played twice in the first rollout's first episodes
        assert scores[int(tau.levels[0, n])] == pytest.approx(float(error[:, n].mean()), rel=1e-5)


def test_rank_prioritisation_by_hand() -> None:
    # ranks 3, 1, 2; beta 0.5 gives rank^-2: 1/9, 1, 1/4
    np.testing.assert_allclose(rank_prioritised(np.array([0.1, 5.0, 2.0]), 0.5), np.array([4, 36, 9]) / 49)
    paper = rank_prioritised(np.arange(200.0), 0.1)
    assert paper[199] == pytest.approx(0.999, abs=2e-4)  # one level has nearly all
    np.testing.assert_allclose(paper[199] / paper[198], 2.0**10)
    np.testing.assert_allclose(rank_prioritised(np.array([1.0, 1.0]), 1.0), [2 / 3, 1 / 3])  # ties: the first is higher


def test_the_mixture_by_hand() -> None:
    sampler = PrioritisedLevels([3, 4, 5], 1, 0, 1.0, 0.25)
    sampler.scores[:] = [1.0, 3.0, 2.0]
    sampler.staleness[:] = [6, 0, 2]
    # P_S: 1/rank over 11/6 = 2/11, 6/11, 3/11; P_C: 3/4, 0, 1/4
    expected = 0.75 * np.array([2, 6, 3]) / 11 + 0.25 * np.array([0.75, 0, 0.25])
    np.testing.assert_allclose(sampler.distribution(), expected)


def test_the_order_of_choices() -> None:
    """The start is sequential, then come levels without a score, then replay."""
    sampler = PrioritisedLevels(range(10, 16), 4, 0, 0.1, 0.1)
    assert [sampler.choose(n) for n in range(4)] == [10, 11, 12, 13]
    sampler.observe(rollout([[1.0, 1.0, 1.0, 1.0]], [[0] * 4], [[10, 11, 12, 13]]))
    assert {sampler.choose(0) for _ in range(40)} == {14, 15}
    assert sampler.staleness[0] == 43  # choices since level 10 was the first
    sampler.observe(rollout([[2.0, 9.0]], [[0, 0]], [[14, 15]]))
    drawn = [sampler.choose(0) for _ in range(400)]
    assert 0.8 < drawn.count(15) / 400 < 0.98  # 0.9 of the scores, and its part of staleness
    assert set(drawn) == set(range(10, 16))  # staleness brings every level back
    wrapped = PrioritisedLevels([1, 2], 3, 0, 0.1, 0.1)
    assert [wrapped.choose(n) for n in range(3)] == [1, 2, 1]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=30),
    st.floats(0.05, 10),
    st.floats(0, 1),
    st.integers(0, 40),
    st.integers(0, 1000),
)
def test_properties_of_the_distribution(scores: list[float], beta: float, rho: float, choices: int, seed: int) -> None:
    sampler = PrioritisedLevels(range(len(scores)), 0, seed, beta, rho)
    sampler.scores[:] = scores
    for _ in range(choices):
        before = sampler.staleness.copy()
        p = sampler.distribution()
        assert p.sum() == pytest.approx(1)
        assert (p >= 0).all()
        chosen = sampler.choose(0)
        assert p[chosen] > 0
        others = np.arange(len(scores)) != chosen
        assert (sampler.staleness[others] == before[others] + 1).all()  # staleness grows
        assert sampler.staleness[chosen] == 0
    ordered = rank_prioritised(sampler.scores, beta)[np.argsort(-sampler.scores, kind="stable")]
    assert (np.diff(ordered) <= 1e-15).all()  # a higher score is never less likely
    other = PrioritisedLevels(range(len(scores)), 0, seed, beta, rho)
    other.restore(json.loads(json.dumps(sampler.state())))
    assert [sampler.choose(0) for _ in range(5)] == [other.choose(0) for _ in range(5)]


def test_frequencies_follow_the_distribution() -> None:
    sampler = PrioritisedLevels(range(5), 0, 3, 1.0, 0.3)
    sampler.scores[:] = [5.0, 1.0, 4.0, 2.0, 3.0]
    expected, counts, n = np.zeros(5), np.zeros(5), 6000
    for _ in range(n):
        expected += sampler.distribution()
        counts[sampler.choose(0)] += 1
    assert np.abs(counts - expected).max() < 4 * np.sqrt(n) / 2


@pytest.mark.parametrize("game", ["starpilot", "bigfish", "leaper"])
def test_the_level_played_is_the_level_chosen(game: str) -> None:
    """At every end: Procgen's own level seed, and the frame that a fresh environment of that level begins with."""
    sampler = PrioritisedLevels(range(20, 32), 6, 1, 0.5, 0.3)
    chosen: list[tuple[int, int]] = []
    original = sampler.choose
    sampler.choose = lambda env: chosen.append((env, original(env))) or chosen[-1][1]  # type: ignore[method-assign]
    env = Procgen(6, game, seed=2, levels=sampler)
    firsts = {level: Procgen(1, game, seed=99, start=level, count=1).observe()[0][0] for level in sampler.levels}
    _, levels = env.observe()
    assert list(enumerate(levels)) == chosen
    playing = dict(chosen)
    rng, ends, replayed = np.random.default_rng(0), 0, 0
    for _ in range(700):
        chosen.clear()
        step = env.step(rng.integers(0, 15, 6))
        assert [n for n, _ in chosen] == np.flatnonzero(step.dones).tolist()
        for n, level in chosen:
            ends += 1
            replayed += not np.isnan(sampler.scores).any()
            # what ends here scores the level that was played; nothing of it was lost with the new level
            sampler.scores[sampler.index[playing[n]]] = abs(float(step.rewards[n])) + rng.random()
            assert step.levels[n] == level
            assert np.array_equal(step.frames[n], firsts[level])
            playing[n] = level
        assert [playing[n] for n in range(6)] == step.levels.tolist()
    assert ends > 20
    assert replayed > 5
    assert len({first.tobytes() for first in firsts.values()}) == 12


def test_rewards_and_ends_are_those_of_the_levels_played_freely() -> None:
    """Every episode under the sampler equals the same level with the same actions in an untouched environment."""
    sampler = PrioritisedLevels(range(8), 3, 5, 0.5, 0.5)
    sampler.scores[:] = np.arange(8)
    env = Procgen(3, "starpilot", seed=1, levels=sampler)
    episodes: list[tuple[int, list[int], list[float]]] = []
    open_: list[tuple[int, list[int], list[float]]] = [(int(level), [], []) for level in env.observe()[1]]
    rng = np.random.default_rng(4)
    for _ in range(500):
        actions = rng.integers(0, 15, 3)
        step = env.step(actions)
        for n in range(3):
            open_[n][1].append(int(actions[n]))
            open_[n][2].append(float(step.rewards[n]))
            if step.dones[n]:
                episodes.append(open_[n])
                open_[n] = (int(step.levels[n]), [], [])
    assert len(episodes) > 8
    assert sum(sum(rewards) for _, _, rewards in episodes) > 0
    for level, actions, rewards in episodes:
        free = Procgen(1, "starpilot", seed=8, start=level, count=1)
        steps = [free.step(np.array([a])) for a in actions]
        assert [float(s.rewards[0]) for s in steps] == rewards
        assert [bool(s.dones[0]) for s in steps] == [False] * (len(steps) - 1) + [True]


@pytest.mark.faults
def test_a_run_scores_all_levels_and_then_replays(tmp_path: Path) -> None:
    quick = {"levels.seeds": "3,5,8,13", "evaluation.every": 1000, "evaluation.episodes": 1, "evaluation.max_steps": 5}
    run = dcpg.train("plr", game="leaper", preset="tiny", steps=128 * 24, out=tmp_path / "run", settings=quick)
    rows = read_rows(run.directory / "metrics.jsonl")
    assert rows[0]["levels_scored"] == 4  # eight environments begin on four levels, twice
    assert all(row["levels_top_probability"] > 0.85 for row in rows)
    assert {level for row in rows for level in row["episode_levels"]} <= {3, 5, 8, 13}
    assert sum(len(row["episode_levels"]) for row in rows) > 20


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"levels.count": 0}, "needs a finite set of levels"),
        ({"levels.count": 5000}, "at most 4096 levels; got 5000"),
        ({"levels.seeds": "4,5,4"}, "names one twice"),
        ({"levels.beta": 0}, "levels.beta must be above 0"),
        ({"levels.rho": 1.5}, "levels.rho must be at most 1"),
        ({"levels.sampler": "uniform"}, "plr is defined by levels.sampler=prioritised"),
        ({"levels.sampler": "prioritized"}, "must be one of uniform, prioritised"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        resolve("plr", "maze", settings=changes)


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [1.0]}, {"scores": [-1.0, None]}, {"scores": [float("inf"), 1.0]}, {"scores": [float("nan"), 1.0]},
        {"scores": ["0.5", 1.0]}, {"scores": {"0": 1.0, "1": 2.0}}, {"staleness": [0, -1]}, {"staleness": [0]},
        {"staleness": [0, 1.5]}, {"staleness": [0, 10**30]}, {"staleness": [0, 4]}, {"staleness": [1, 2]},
        {"choices": -1}, {"choices": 0}, {"choices": float("inf")},
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    sampler = PrioritisedLevels([1, 2], 1, 0, 0.1, 0.1)
    for _ in range(3):
        sampler.choose(0)
    sampler.restore(sampler.state())
    with pytest.raises(ValueError, match="the level sampler"):
        sampler.restore(sampler.state() | change)


def test_environments_on_other_levels_are_refused() -> None:
    config, other = (resolve("plr", "starpilot", preset="tiny", settings={"levels.start": n}) for n in (0, 500))
    states = [make_train(c, None, train_levels(c)).state() for c in (config, other)]
    env = make_train(config, None, train_levels(config))
    with pytest.raises(ValueError, match="levels that are not this run's"):
        env.restore(states[1])


def test_the_sampler_is_the_configurations() -> None:
    given = {"levels.start": 50, "levels.count": 7, "levels.beta": 0.3, "levels.rho": 0.2}
    sampler = train_levels(resolve("plr", "maze", settings=given, seed=3))
    assert isinstance(sampler, PrioritisedLevels)
    assert (sampler.levels, sampler.beta, sampler.rho) == (list(range(50, 57)), 0.3, 0.2)
    assert (sampler.num_envs, sampler.seed) == (64, 3)
    drawn = []
    for seed in (3, 4):
        other = PrioritisedLevels(range(50), 0, seed, 1.0, 0.5)
        other.scores[:] = np.arange(50.0)
        drawn.append([other.choose(0) for _ in range(20)])
    assert drawn[0] != drawn[1]


def test_the_sampler_and_the_environments_go_on_together() -> None:
    config = resolve("plr", "starpilot", preset="tiny", settings={"levels.count": 9})
    sampler = train_levels(config)
    assert isinstance(sampler, PrioritisedLevels)
    env = make_train(config, None, sampler)
    sampler.scores[:] = np.arange(9)
    rng = np.random.default_rng(0)
    for _ in range(150):
        env.step(rng.integers(0, 15, 8))
    state, sampled = env.state(), json.loads(json.dumps(sampler.state()))
    again = train_levels(config)
    assert again is not None
    other = make_train(config, None, again)
    again.restore(sampled)
    other.restore(state)
    assert again.state() == sampler.state()
    assert sampler.choices > 8
    for _ in range(150):
        actions = rng.integers(0, 15, 8)
        a, b = env.step(actions), other.step(actions)
        assert np.array_equal(a.levels, b.levels)
        assert np.array_equal(a.frames, b.frames)

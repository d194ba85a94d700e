"""Estimates of how long a run and an evaluation take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcpg.config.build import build_network
from dcpg.config.resolve import resolve
from dcpg.core.actor import Actor
from dcpg.envs.base import Spaces
from dcpg.machine import estimate
from dcpg.methods import METHODS

SPACES = Spaces((32, 32, 3), np.dtype(np.uint8), 15)


@pytest.mark.parametrize("name", METHODS)
def test_estimates_grow_with_the_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of work is done once, and said to take a hundredth of a second."""
    done = []
    monkeypatch.setattr(estimate, "_typical", lambda work: done.append(work()) or 0.01)
    config = resolve(name, "maze", preset="tiny")
    short, long = (estimate.training(config, SPACES, rollouts) for rollouts in (100, 10_000))
    method = config.declared()
    assert len(done) == 2 * (2 + len(method.lines) + bool(method.auxiliary_phase))
    assert 0 < 20 * short < long


def test_negatives_from_all_of_B_are_timed_and_their_segments_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 x 2 segments of 16 steps, 64 samples a minibatch: 16 (1 - (15/16)^64) segments are opened each time."""
    monkeypatch.setattr(estimate, "_typical", lambda work: (work(), 0.01)[1])
    few, all_of_B = (
        resolve("ddcpg", "maze", preset="tiny", settings={"algorithm.negatives": negatives})
        for negatives in ("minibatch", "B")
    )
    assert (few.env.num_envs, few.algorithm.N_pi, few.rollout_length, few.algorithm.segments) == (8, 2, 16, 4)
    opened = 16 * (1 - (15 / 16) ** 64) * 16 * 32 * 32 * 3 * estimate.OPEN_SECONDS
    more = estimate.costs(all_of_B, SPACES).remembered - estimate.costs(few, SPACES).remembered
    assert more == pytest.approx(few.algorithm.E_aux * 2 * opened)  # a rollout of 128 steps is two minibatches


def test_the_work_of_a_run() -> None:
    """Evaluations come after rollout 1, 17, 33, ... and after the last; auxiliary phases after every second rollout."""
    config = resolve("dcpg", "maze", preset="tiny")
    assert (config.evaluation.every, config.declared().N_pi) == (16, 2)
    assert estimate.work_of(config, 16) == estimate.Work(16, 16, 2)
    assert estimate.work_of(config, 17) == estimate.Work(17, 16, 2)
    assert estimate.work_of(config, 33, 16) == estimate.Work(17, 16, 2)
    assert estimate.work_of(config, 33, 17) == estimate.Work(16, 16, 1)
    assert estimate.work_of(config, 16, 16) == estimate.Work(0, 0, 0)
    assert estimate.work_of(resolve("ppo", "maze", preset="tiny"), 16) == estimate.Work(16, 0, 2)
    longer = resolve("ppo", "maze", preset="tiny", settings={"evaluation.last_episodes": 20})  # the others have 8
    assert [estimate.work_of(longer, n).evaluations for n in (15, 16)] == [2, 1 + 20 / 8]
    growing = resolve("dcpg", "maze", preset="tiny", settings={"algorithm.N_pi_first": "3,4"})  # then 2
    assert [estimate.work_of(growing, n).remembered for n in (0, 2, 3, 6, 7, 8, 9)] == [0, 0, 3, 3, 7, 7, 9]
    assert estimate.Costs(1.0, 10.0, 100.0).of(estimate.Work(16, 14, 2)) == 356.0


def test_costs_are_the_sums_of_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundredth of a second for each piece of work: a pass of the actor, of a chunk, and a step of an Adam."""
    monkeypatch.setattr(estimate, "_typical", lambda work: 0.01)
    config = resolve("dcpg", "maze", preset="tiny", settings={"machine.chunk": 32, "evaluation.max_steps": 50})
    h = config.algorithm
    size, acting = 8 * 16, 0.01 / 8
    found = estimate.costs(config, SPACES)
    minibatch = size // h.minibatches  # smaller than a chunk
    policy = size * (0.01 / minibatch + 0.01 / minibatch)
    assert found.rollouts == pytest.approx(size * (acting + estimate.ENV_SECONDS) + h.E_pi * policy)
    minibatch = h.segments * 16
    auxiliary = size * (0.01 / min(minibatch, 32) + 0.01 / minibatch)
    segments = estimate.SEGMENT_SECONDS * 32 * 32 * 3
    assert found.remembered == pytest.approx(size * (0.01 / 16 + segments) + h.E_aux * auxiliary)
    assert found.evaluations == pytest.approx(2 * 8 * 50 * (acting + estimate.ENV_SECONDS))


def test_an_evaluation_takes_at_least_the_time_of_its_environments() -> None:
    config = resolve("dcpg", "maze", preset="tiny")
    actor = Actor(build_network(config, SPACES.shape, SPACES.actions), ("value",), 32, torch.device("cpu"))
    assert estimate.playing(actor, SPACES.shape, 20) > 20 * estimate.EPISODE * estimate.ENV_SECONDS

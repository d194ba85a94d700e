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
    monkeypatch.setattr(estimate, "_best", lambda work: done.append(work()) or 0.01)
    config = resolve(name, "maze", preset="tiny")
    short, long = (estimate.training(config, SPACES, rollouts) for rollouts in (100, 10_000))
    assert len(done) == 2 * (1 + len(config.declared().lines))
    assert 0 < 20 * short < long


def test_an_evaluation_takes_at_least_the_time_of_its_environments() -> None:
    config = resolve("dcpg", "maze", preset="tiny")
    actor = Actor(build_network(config, SPACES.shape, SPACES.actions), ("value",), 32, torch.device("cpu"))
    assert estimate.playing(actor, SPACES.shape, 20) > 20 * estimate.EPISODE * estimate.ENV_SECONDS

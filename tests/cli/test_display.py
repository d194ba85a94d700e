"""What people see: estimates, the live display and plain lines."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dcpg.cli.display import LiveDisplay, PlainDisplay
from dcpg.config.resolve import resolve
from dcpg.envs.base import Spaces
from dcpg.machine.estimate import training
from dcpg.methods import METHODS
from dcpg.seeding import generator, key, rand_seed
from dcpg.text import duration

ROW = {"steps": 256, "episode_returns": [1.0, 3.0]}
EVALUATION = {"train_return": 4.25, "test_return": 3.5, "train_predicted_value": 1.0, "train_true_value": 2.25}


@pytest.mark.parametrize("kind", [LiveDisplay, PlainDisplay])
def test_displays_show_the_figures(kind: type[LiveDisplay] | type[PlainDisplay]) -> None:
    text = io.StringIO()
    live = kind is LiveDisplay
    show = kind(Console(file=text, force_terminal=live, width=140))
    show.start(resolve("dcpg", "maze", preset="tiny"), Path("runs/x"), 0)
    show.progress("collect", "")
    show.row(ROW, 100.0)
    show.evaluation(EVALUATION)
    show.progress("auxiliary", "epoch 2, minibatch 7")
    show.warn("something")
    show.close()
    seen = text.getvalue()
    assert ("\x1b" in seen) == live
    for figure in ("2.00", "4.25", "3.50", "-1.25", "steps/s", "something", "maze"):
        assert figure in seen, figure


def test_durations_as_people_say_them() -> None:
    assert [duration(s) for s in (5, 300, 7200, 10 * 86400)] == ["5 s", "5 min", "2.0 h", "10.0 days"]


@pytest.mark.parametrize("name", METHODS)
def test_estimates_grow_with_the_run(name: str) -> None:
    c = resolve(name, "maze", preset="tiny")
    spaces = Spaces((32, 32, 3), np.dtype(np.uint8), 15)
    short, long = (training(c, spaces, rollouts) for rollouts in (100, 10_000))
    assert 0 < 20 * short < long


def test_keys_are_different_and_stay_the_same() -> None:
    keys = {key(s, n, p) for s in range(10) for n in ("a", "b") for p in range(10)}
    assert len(keys) == 200
    # part of the run's contract: changing this changes every run
    assert key(0, "init") == 6767970929478544064
    assert key(1, "a", 23) != key(1, "a", 2, 3)
    assert 0 <= rand_seed(3, "x") < 2**31 - 1
    assert generator(0, "x").initial_seed() == key(0, "x")

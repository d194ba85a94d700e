"""Runs that several tests compare with or start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import driver
from tests.faults.driver import Driver, Machine, train_arguments


@pytest.fixture(scope="session")
def runs() -> Iterator[Driver]:
    """Real runs in processes of their own."""
    machine = Machine()
    yield Driver(machine)
    machine.close()


@pytest.fixture(scope="session")
def reference(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run that was never disturbed, of a method, a number of steps and settings."""
    made: dict[Any, Path] = {}

    def make(method: str = "ddcpg", steps: int = 512, more: tuple[str, ...] = ()) -> Path:
        key = (method, steps, more)
        if key not in made:
            out = tmp_path_factory.mktemp("reference") / f"{method}-{steps}"
            ended = runs.run(train_arguments(out, method, steps, more))
            assert ended.code == 0, str(ended)
            made[key] = out
        return made[key]

    return make


def stop_twice(runs: Driver, out: Path, more: tuple[str, ...] = ()) -> Path:
    """A ddcpg run in its second auxiliary phase: two checkpoints inside it and one at the phase's start."""
    assert runs.train(out, "at auxiliary 10 SIGTERM", more=more).code == 75
    ended = runs.resume(out, "at auxiliary 2 SIGTERM")
    assert ended.code == 75, str(ended)
    found = driver.names(out)
    assert [driver.inside_second_line(name) for name in found] == [False, True, True]
    return out


@pytest.fixture(scope="session")
def stopped(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to damage."""
    return stop_twice(runs, tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture(scope="session")
def remembering(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, with a bandit that has changed its arm and a level sampler that replays."""
    return stop_twice(runs, tmp_path_factory.mktemp("remembering") / "run", driver.BOTH)

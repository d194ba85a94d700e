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
    """The run that was never disturbed, of a method and a number of steps."""
    made: dict[Any, Path] = {}

    def make(method: str = "ddcpg", steps: int = 512) -> Path:
        if (method, steps) not in made:
            out = tmp_path_factory.mktemp("reference") / f"{method}-{steps}"
            ended = runs.run(train_arguments(out, method, steps))
            assert ended.code == 0, str(ended)
            made[method, steps] = out
        return made[method, steps]

    return make


@pytest.fixture(scope="session")
def stopped(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ddcpg run in its second auxiliary phase: two checkpoints inside it and one at the phase's start."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert runs.train(out, "at auxiliary 10 SIGTERM").code == 75
    ended = runs.resume(out, "at auxiliary 2 SIGTERM")
    assert ended.code == 75, str(ended)
    found = driver.names(out)
    assert [driver.inside_auxiliary(name) for name in found] == [False, True, True]
    return out


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The figures, by the driver and never by hand."""
    if driver.FIGURES:
        terminalreporter.section("faults: injections and recoveries")
        for fault, injections, recoveries in driver.FIGURES:
            terminalreporter.line(f"{fault:70s} {injections:4d} injections {recoveries:4d} recoveries")
        failed = len(terminalreporter.stats.get("failed", []))
        if failed:
            terminalreporter.line(
                f"{failed} tests failed: a fault that was injected alone and not recovered is not above"
            )
        total = [sum(column) for column in zip(*((i, r) for _, i, r in driver.FIGURES), strict=True)]
        terminalreporter.line(f"{'total':70s} {total[0]:4d} injections {total[1]:4d} recoveries")

"""Faults 13 to 15: signals in every part of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import driver
from tests.faults.driver import METHODS, TERMS, Driver, each, record

pytestmark = pytest.mark.faults

PLACES = (
    "collect 1", "collect 7", "collect 25", "env 30", "policy 1", "policy 8", "policy 12", "remember 1",
    "auxiliary 1", "auxiliary 4", "auxiliary 8", "evaluate 1", "evaluate 9", "save 1", "save 2", "written 9",
)  # fmt: skip


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_signal_in_every_part(runs: Driver, reference: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """Exit 75 with the way to go on; a resume ends as if the run had never been stopped."""
    places = PLACES if name == "SIGTERM" else PLACES[2::3]

    def work(place: str) -> None:
        out = tmp_path / place.replace(" ", "-")
        ended = runs.train(out, f"at {place} {name}", steps=256)
        assert ended.code == 75, str(ended)
        assert f"dcpg resume {out}" in ended.err
        assert name in ended.err
        runs.recovers(out, reference("ddcpg", 256))

    each(places, work, f"13-15 {name}")


def test_signal_in_the_last_save(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """The run is finished or says that it is not."""
    out = tmp_path / "run"
    ended = runs.train(out, "at save 3 SIGTERM", steps=256)
    assert ended.code in (0, 75), str(ended)
    runs.recovers(out, reference("ddcpg", 256))
    record("13 SIGTERM in the last save", 1, 1)


def test_other_methods_stop_and_go_on(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    jobs = [(name, f"{list(TERMS[name])[-1]} 11") for name in METHODS if name != "ddcpg"]

    def work(job: tuple[str, str]) -> None:
        method, place = job
        out = tmp_path / method
        assert runs.train(out, f"at {place} SIGTERM", method=method).code == 75
        runs.recovers(out, reference(method))

    each(jobs, work, "13 SIGTERM, other methods")


def test_stopped_again_and_again(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """A stop every few steps, as a scheduler that lends a machine for moments would."""
    out, stops = tmp_path / "run", 0
    ended = runs.train(out, "at auxiliary 3 SIGTERM", steps=256)
    while ended.code == 75:
        stops += 1
        assert stops < 10
        ended = runs.resume(out, "at auxiliary 3 SIGUSR1")
    assert ended.code == 0, str(ended)
    assert stops >= 2
    assert driver.differences(out, reference("ddcpg", 256)) == []
    record("13 stopped again and again", stops, stops)


def test_second_interrupt_exits_at_once(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    def work(place: str) -> None:
        out = tmp_path / place.replace(" ", "-")
        ended = runs.train(out, f"at {place} SIGINT,SIGINT", steps=256)
        assert ended.code == 130, str(ended)
        runs.recovers(out, reference("ddcpg", 256))

    each(["collect 20", "policy 3", "auxiliary 5", "evaluate 4", "save 2"], work, "15 SIGINT twice")


def test_interrupt_then_save_then_interrupt(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """The second one comes while the first one's save is being written."""
    out = tmp_path / "run"
    ended = runs.train(out, "at auxiliary 3 SIGINT", "at written 8 SIGINT", steps=256)
    assert ended.code == 130, str(ended)
    runs.recovers(out, reference("ddcpg", 256))
    record("15 second SIGINT during the save", 1, 1)

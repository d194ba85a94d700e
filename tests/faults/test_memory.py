"""Fault 22: no memory. A run says before it starts what it needs; one that is refused memory later loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.driver import Driver, each, record, train_arguments

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["rollout_length=1000000"], "B alone"),  # B of terabytes
        (["algorithm.N_pi=1000000"], "B alone"),
        (["network.channels=20000,20000"], "of memory and"),  # weights of gigabytes
    ],
)
def test_a_run_without_room_is_refused(runs: Driver, tmp_path: Path, more: list[str], said: str) -> None:
    out = tmp_path / "run"
    ended = runs.run(train_arguments(out, "ddcpg", 2**40, more), full=True)
    assert ended.code == 2, str(ended)
    for words in ("no room", said, "GB are free", "lower env.num_envs", "check_room=false"):
        assert words in ended.err, words
    assert "Traceback" not in ended.err
    assert not out.exists()
    record("22 a run without room is refused", 1, 1)


def test_memory_is_refused_to_a_run(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """The process has really no memory left: one sentence, exit 7, and a resume gives what would have come."""
    places = ["collect 9", "policy 3", "remember 1", "auxiliary 2", "auxiliary 4", "evaluate 3", "save 2"]

    def work(place: str) -> None:
        out = tmp_path / place.replace(" ", "-")
        ended = runs.train(out, f"at {place} exhaust", steps=256)
        crashed = ended.code < 0 and place.startswith(("collect", "evaluate"))  # Procgen's library takes no refusal
        assert ended.code == 7 or crashed, str(ended)
        assert crashed or "no memory left" in ended.err
        assert "Traceback" not in ended.err
        runs.recovers(out, reference("ddcpg", 256))

    each(places, work, "22 memory is refused to a run")

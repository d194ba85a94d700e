"""Fault 22: no memory. A run says before it starts what it needs; one that is refused memory later loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.driver import Driver, copy, each, record, train_arguments
from tests.machine.test_memory import under_limit

pytestmark = pytest.mark.faults


ROOM = ("no room", "B alone", "GB are free", "lower env.num_envs", "check_room=false")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["rollout_length=1000000"], ROOM),  # B of terabytes
        (["algorithm.N_pi=1000000"], ROOM),
        (["network.channels=4096,4096"], ("parameters, more than 500,000,000; lower network.channels",)),
    ],
)
def test_a_run_without_room_is_refused(runs: Driver, tmp_path: Path, more: list[str], said: tuple[str, ...]) -> None:
    out = tmp_path / "run"
    ended = runs.run(train_arguments(out, "ddcpg", 10**12, more), full=True)
    assert ended.code == 2, str(ended)
    for words in said:
        assert words in ended.err, words
    assert "Traceback" not in ended.err
    assert not out.exists()
    record("22 a run without room is refused", 1, 1)


def test_a_limit_of_the_address_space(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    """`ulimit -v` from next to nothing up to where a run fits: one sentence and a code that says why, or success."""
    train = ["train", "ppo", "--game", "maze", "--preset", "tiny", "--steps", "128", "--set", "evaluation.max_steps=12"]
    jobs = [(size, [*train, "--out", "OUT"]) for size in (100, 500, 690, 710, 800, 1100, 1400, 2000)]
    jobs += [(size, [*train, "--set", "check_room=false", "--out", "OUT"]) for size in (750, 1000)]
    jobs += [(size, [name, "OUT"]) for name in ("resume", "eval") for size in (750, 1100)]

    def work(job: tuple[int, list[str]]) -> None:
        size, arguments = job
        out = tmp_path / f"{'-'.join(arguments).replace('/', '')}-{size}"
        if arguments[0] != "train":
            copy(stopped, out)
        ended = under_limit(size, *(str(out) if word == "OUT" else word for word in arguments))
        assert ended.returncode in ((0,) if size == 2000 else (2, 7)), f"{ended.returncode} {ended.stderr}"
        assert ended.stderr.count("\n") == (0 if size == 2000 else 1), ended.stderr
        assert out.exists() == (size == 2000 or arguments[0] != "train")

    each(jobs, work, "22 a limit of the address space")


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

"""One run on two processes: when one dies, is told to stop or has no disk, the other does the right thing too."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.envs.test_states import with_number
from tests.faults.driver import (
    Driver,
    Ended,
    copy,
    differences,
    flip,
    joined,
    line,
    names,
    newest,
    record,
    rewrite,
    split,
    temporary,
    train_arguments,
)  # fmt: skip

pytestmark = pytest.mark.faults
STEPS = 512


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def both(
    runs: Driver, arguments: Sequence[str], faults: tuple[Sequence[str], Sequence[str]] = ((), ()), **how: Any
) -> list[Ended]:
    """Two ranks as torchrun would start them, without its own reaction to the death of one."""
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        runs.start(arguments, *faults[rank], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **how)
        for rank in (0, 1)
    ]
    return [process.wait() for process in processes]


def train(runs: Driver, out: Path, *faults: Sequence[str]) -> list[Ended]:
    """A run on two ranks, each with its own faults."""
    first, second = faults or ((), ())
    return both(runs, train_arguments(out, "ddcpg", STEPS), (first, second))


def recovers(runs: Driver, out: Path, undisturbed: Path) -> list[Ended]:
    """Resume on two ranks must end well, with the bytes of the run that was never disturbed."""
    ended = both(runs, ["resume", str(out)])
    assert [e.code for e in ended] == [0, 0], "\n".join(map(str, ended))
    assert differences(out, undisturbed) == []
    assert temporary(out) == []
    return ended


@pytest.fixture(scope="module")
def undisturbed(runs: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on two ranks that nothing happened to."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    ended = train(runs, out)
    assert [e.code for e in ended] == [0, 0], "\n".join(map(str, ended))
    assert ended[1].out == ended[1].err == ""  # the first speaks for both
    return out


@pytest.mark.parametrize(
    ("rank", "place"),
    [(0, "auxiliary 5"), (0, "written 8"), (1, "collect 20"), (1, "policy 20"), (1, "remember 2"), (1, "written 3")],
)
def test_when_a_rank_dies_the_others_end_without_saving(
    runs: Driver, undisturbed: Path, tmp_path: Path, rank: int, place: str
) -> None:
    faults: list[Sequence[str]] = [(), ()]
    faults[rank] = (f"at {place} kill",)
    ended = train(runs, tmp_path / "run", *faults)
    dead, other = ended[rank], ended[1 - rank]
    assert dead.code == -9, str(dead)
    assert other.code == 8, str(other)
    assert ("Another process of this run is gone" in other.err) == (rank == 1)
    # only phase ends are saved in so short a run: nothing was saved in the place where the other one ended
    assert {line(name) for name in names(tmp_path / "run")} == {0}
    recovers(runs, tmp_path / "run", undisturbed)
    record("a rank dies (2 processes)", 1, 1)


@pytest.mark.parametrize(("rank", "place"), [(1, "collect 20"), (1, "auxiliary 5"), (0, "evaluate 15")])
def test_a_signal_to_one_rank_stops_and_saves_both(
    runs: Driver, undisturbed: Path, tmp_path: Path, rank: int, place: str
) -> None:
    faults: list[Sequence[str]] = [(), ()]
    faults[rank] = (f"at {place} SIGUSR1",)
    ended = train(runs, tmp_path / "run", *faults)
    assert [e.code for e in ended] == [75, 75], "\n".join(map(str, ended))
    assert f"torchrun --nproc-per-node 2 -m dcpg resume {tmp_path / 'run'}" in ended[0].err
    if place == "auxiliary 5":  # it stands in the middle of the phase
        assert line(newest(tmp_path / "run").name) > 1
    recovers(runs, tmp_path / "run", undisturbed)
    record("a signal to one rank (2 processes)", 1, 1)


def test_damage_to_one_ranks_file_is_found_by_it_and_all_fall_back(
    runs: Driver, undisturbed: Path, tmp_path: Path
) -> None:
    train(runs, tmp_path / "run", (), ("at auxiliary 5 SIGTERM",))
    other = copy(tmp_path / "run", tmp_path / "other")
    damaged = newest(tmp_path / "run")
    flip(damaged / "collector.rank1.zst")
    ended = recovers(runs, tmp_path / "run", undisturbed)
    assert f"Damaged checkpoint set aside, {damaged.name}: collector.rank1.zst" in ended[0].out + ended[0].err
    # a state that ends Procgen's library, in a file with the right hash: the rank whose state it is tries it
    packed = (newest(other) / "collector.rank1.zst").read_bytes()
    memory, state, *rest = split(zstandard.ZstdDecompressor().decompress(packed))
    packed = zstandard.ZstdCompressor().compress(joined([memory, with_number(state, 9, 2**31 - 1), *rest]))
    rewrite(newest(other), "collector.rank1.zst", packed)
    ended = both(runs, ["resume", str(other)], tried=True)
    assert [e.code for e in ended] == [0, 0], "\n".join(map(str, ended))
    assert "SIGSEGV" in ended[0].out + ended[0].err
    assert differences(other, undisturbed) == []
    record("damage to one rank's file (2 processes)", 2, 2)


@pytest.mark.parametrize(
    ("rank", "refusal"),
    [(1, "disk-error ENOSPC 3 2 write,fsync checkpoints"), (0, "disk-error ENOSPC 3 1 fsync metrics.jsonl")],
)
def test_a_disk_that_refuses_one_rank_is_a_warning_to_all(
    runs: Driver, undisturbed: Path, tmp_path: Path, rank: int, refusal: str
) -> None:
    faults: list[Sequence[str]] = [(), ()]
    faults[rank] = (refusal,)
    ended = train(runs, tmp_path / "run", *faults)
    assert [e.code for e in ended] == [0, 0], "\n".join(map(str, ended))
    assert "could not be written" in ended[0].out
    assert differences(tmp_path / "run", undisturbed) == []
    record("a disk that refuses one rank (2 processes)", 1, 1)


def test_ranks_with_different_commands_are_refused(runs: Driver, tmp_path: Path) -> None:
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        runs.start(
            train_arguments(tmp_path / "run", "ppo", STEPS, more), env={**common, "RANK": rank, "LOCAL_RANK": rank}
        )
        for rank, more in (("0", ()), ("1", ("algorithm.clip=0.1",)))
    ]
    ended = [process.wait() for process in ranks]
    assert [e.code for e in ended] == [2, 2], "\n".join(map(str, ended))
    assert "different configurations or weights" in ended[0].err
    assert not (tmp_path / "run").exists()

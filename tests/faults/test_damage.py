"""Faults 4 to 8: checkpoints and rows that are damaged on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import driver
from tests.faults.driver import COMPARED, Driver, copy, each, listing, newest, record

pytestmark = pytest.mark.faults

OWN = (*COMPARED, "manifest.json")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


DAMAGES = {"truncated": truncate, "emptied": empty, "flipped": driver.flip, "missing": Path.unlink}


def test_damage_to_the_newest_checkpoint(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """Each of its files, truncated, emptied, flipped or missing: it is named and the one before it used."""
    jobs = [(d, f) for f in OWN for d in ("truncated", "flipped")] + [("emptied", OWN[1]), ("missing", OWN[-1])]

    def work(job: tuple[str, str]) -> None:
        damage, file = job
        out = copy(stopped, tmp_path / f"{damage}-{file}")
        name = newest(out).name
        DAMAGES[damage](newest(out) / file)
        ended = runs.recovers(out, reference())
        assert name in ended.out + ended.err
        if file != "manifest.json":
            assert file in ended.out + ended.err

    each(jobs, work, "4, 5 newest checkpoint truncated or one bit flipped")


def test_every_bit_position_kind_of_a_manifest(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """A flip anywhere in a manifest: its checkpoint is named and the one before it used."""

    def work(place: float) -> None:
        out = copy(stopped, tmp_path / str(place))
        name = newest(out).name
        driver.flip(newest(out) / "manifest.json", place)
        ended = runs.recovers(out, reference())
        assert name in ended.out + ended.err

    places = [0.01, 0.1, 0.3, 0.8, 0.99]
    each(places, work, "5 one bit flipped in a manifest")


def test_damage_to_a_shared_file(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """Both newest checkpoints name it, so the run goes back to the phase's start."""
    shared = sorted(p.name for p in (stopped / "checkpoints" / "shared").iterdir())
    assert len(shared) == 5
    jobs = [("flipped", name) for name in shared] + [("truncated", shared[1]), ("missing", shared[-1])]

    def work(job: tuple[str, str]) -> None:
        damage, file = job
        out = copy(stopped, tmp_path / f"{damage}-{file}")
        start, *inside = driver.names(out)
        DAMAGES[damage](out / "checkpoints" / "shared" / file)
        ended = runs.resume(out, "at policy 1 kill")  # as soon as it trains: it has chosen its checkpoint
        assert ended.code == -9, str(ended)
        told = ended.out + ended.err
        assert all(name in told for name in inside), told
        assert file in told
        assert driver.names(out) == [start]
        runs.recovers(out, reference())

    each(jobs, work, "5 one bit flipped in a shared file")


def test_leftovers_are_ignored_and_cleaned(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    out = copy(stopped, tmp_path / "run")
    root = out / "checkpoints"
    later = root / ".tmp-000000009999-00.000.000000-00000"
    copy(newest(out), later)
    (root / "shared" / ".tmp-rollout-00000009.frames").write_bytes(b"half")
    (out / ".tmp-metrics.jsonl").write_bytes(b"half")
    (root / "notes.txt").write_text("a person's")
    (root / "old copy").mkdir()
    (root / "999999999999-file").write_text("not a folder")
    runs.recovers(out, reference())
    assert (root / "notes.txt").read_text() == "a person's"
    record("6 leftover temporary and stray files", 6, 6)


@pytest.mark.parametrize("file", [*OWN, "shared"])
def test_every_checkpoint_damaged(runs: Driver, stopped: Path, tmp_path: Path, file: str) -> None:
    """Exit 4 with advice, and not a byte is changed."""
    out = copy(stopped, tmp_path / "run")
    if file == "shared":
        driver.flip(out / "checkpoints" / driver.names(out)[0] / "weights.safetensors")
        driver.flip(next(iter((out / "checkpoints" / "shared").iterdir())))
    else:
        for name in driver.names(out):
            driver.flip(out / "checkpoints" / name / file, 0.2)
    before = listing(out)
    ended = runs.resume(out)
    assert ended.code == 4, str(ended)
    assert "--out" in ended.err
    assert all(name in ended.err for name in driver.names(out))
    assert listing(out) == before
    record(f"7 every checkpoint damaged ({file})", 1, 1)


def test_rows_that_should_not_be_there(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """A torn last line, rows past the checkpoint, and what a power cut leaves: dropped, none doubled."""
    row = (stopped / "metrics.jsonl").read_bytes().splitlines(keepends=True)[-1]
    tails = {
        "torn": ("metrics.jsonl", row[: len(row) // 2]),
        "one-more": ("metrics.jsonl", row),
        "more-and-torn": ("metrics.jsonl", row * 3 + b'{"rollout": 9'),
        "zeros": ("metrics.jsonl", bytes(512)),
        "garbage-line": ("metrics.jsonl", bytes(64) + b"\n"),
        "eval-torn": ("eval.jsonl", b'{"k": 1'),
        "eval-more": ("eval.jsonl", (stopped / "eval.jsonl").read_bytes()),
        "timing-torn": ("timing.jsonl", b'{"steps": 5'),
        "timing-garbage-line": ("timing.jsonl", bytes(64) + b"\n"),
    }

    def work(name: str) -> None:
        file, tail = tails[name]
        out = copy(stopped, tmp_path / name)
        with open(out / file, "ab") as rows:
            rows.write(tail)
        runs.recovers(out, reference())

    each(tails, work, "8 torn rows and rows past the checkpoint")


def test_rows_that_are_missing(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    """Checkpoints that follow rows which are gone cannot give the same result, so they are refused."""
    out = copy(stopped, tmp_path / "run")
    os.truncate(out / "metrics.jsonl", 0)
    before = listing(out)
    ended = runs.resume(out)
    assert ended.code == 4, str(ended)
    assert "metrics.jsonl" in ended.err
    assert listing(out) == before
    record("8 rows before the checkpoint are gone", 1, 1)

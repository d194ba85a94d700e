"""Faults 9 to 12: a disk that is full, fails for a moment, lies, or is not there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import driver
from tests.faults.driver import Driver, differences, each, record, temporary, train_arguments

pytestmark = pytest.mark.faults

QUICK = "set dcpg.training.saving.RETRY_SECONDS 0.05"
ONCE = {
    "full at the first save": "disk-error ENOSPC 1 1 write /checkpoints/",
    "full at a later save": "disk-error ENOSPC 8 1 write /checkpoints/",
    "full for a while": "disk-error ENOSPC 8 3 write /checkpoints/",
    "I/O error of a sync": "disk-error EIO 9 1 fsync /checkpoints/",
    "I/O error of a rename": "disk-error EIO 2 1 replace /checkpoints/",
    "no new folder": "disk-error ENOSPC 4 1 mkdir",
    "metrics refused once": "disk-error ENOSPC 1 1 write metrics.jsonl",
    "metrics refused in the middle": "disk-error EIO 2 2 write metrics.jsonl",
    "evaluations refused once": "disk-error ENOSPC 1 1 write eval.jsonl",
    "rows cannot be synced": "disk-error EIO 1 2 fsync metrics.jsonl",
    "timing refused": "disk-error ENOSPC 1 2 write timing.jsonl",
    "summary refused": "disk-error ENOSPC 1 1 write summary.json",
}


def test_disk_fails_for_a_moment(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """Training goes on, ends as if nothing had been, and leaves nothing half-written."""

    def work(name: str) -> None:
        out = tmp_path / name.replace(" ", "-").replace("/", "")
        ended = runs.train(out, ONCE[name], QUICK, steps=256)
        assert ended.code == 0, str(ended)
        assert differences(out, reference("ddcpg", 256)) == []
        assert temporary(out) == []
        if "save" in name:
            assert "could not be written" in ended.out + ended.err

    each(ONCE, work, "9, 11 disk full or failing for a moment")


def test_disk_writes_something_else(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """A checkpoint that reads back wrong is a failed save: told, and the run goes on."""
    jobs = [(1, "weights"), (2, "weights"), (2, "adam"), (3, "state")]

    def work(job: tuple[int, str]) -> None:
        out = tmp_path / f"{job[0]}-{job[1]}"
        ended = runs.train(out, f"flip-written {job[0]} {job[1]}", QUICK, steps=256)
        assert ended.code == 0, str(ended)
        assert differences(out, reference("ddcpg", 256)) == []
        assert temporary(out) == []

    each(jobs, work, "11 a file reads back with a wrong bit")


def test_disk_full_for_ever(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """Exit 6 after some tries; with room again the run goes on from the checkpoint before."""
    jobs = [33, 45]

    def work(first: int) -> None:
        out = tmp_path / str(first)
        every = ["checkpoints.minutes=0.002"]
        ended = runs.train(out, f"disk-error ENOSPC {first} -1 write,fsync,mkdir", QUICK, steps=256, more=every)
        assert ended.code == 6, str(ended)
        assert "resume" in ended.err
        assert "Traceback" not in ended.err
        runs.recovers(out, reference("ddcpg", 256))

    each(jobs, work, "10 disk full for ever")


def test_disk_full_before_the_run_exists(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """Exit 6 with what is true: there is nothing to resume. Nothing is left, and the same command starts the run."""
    jobs = ["write", "replace /checkpoints/", "mkdir /checkpoints/", "write config.json"]

    def work(calls: str) -> None:
        out = tmp_path / calls.replace(" ", "-").replace("/", "")
        ended = runs.train(out, f"disk-error ENOSPC 1 -1 {calls}", steps=256)
        assert ended.code == 6, str(ended)
        assert "Traceback" not in ended.err
        assert "dcpg resume" not in ended.out + ended.err
        assert "before it is kept" not in ended.out + ended.err
        assert "config.json" in calls or "give the same `dcpg train` command again" in ended.err
        assert not out.exists()
        again = runs.train(out, steps=256)
        assert again.code == 0, str(again)
        assert differences(out, reference("ddcpg", 256)) == []

    each(jobs, work, "10 disk full before the run exists")


def test_resume_on_a_full_disk(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    out = driver.copy(stopped, tmp_path / "run")
    ended = runs.resume(out, "disk-error ENOSPC 1 -1 write,fsync,mkdir")
    assert ended.code == 6, str(ended)
    assert "Traceback" not in ended.err
    runs.recovers(out, reference())
    record("10 resume on a full disk", 1, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of little size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_full_disk(runs: Driver, reference: Callable[..., Path], small_disk: Path) -> None:
    """Filled from outside while the run goes on, then freed; TensorBoard and all else write to it too."""
    out, ballast, gate = small_disk / "run", small_disk / "ballast", small_disk.parent / "gate"
    faults = [QUICK, f"at policy 3 wait:{gate}"]
    process = runs.start(train_arguments(out, steps=256, more=["checkpoints.minutes=0.002"]), *faults, full=True)
    driver.until(Path(f"{gate}.reached").exists)
    with open(ballast, "wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    gate.touch()
    ended = process.wait()
    assert ended.code == 6, str(ended)
    assert "Traceback" not in ended.err
    ballast.unlink()
    again = runs.run(["resume", str(out)], full=True)
    assert again.code == 0, str(again)
    assert differences(out, reference("ddcpg", 256)) == []
    assert temporary(out) == []
    record("9, 10 a real full disk", 1, 1)


def test_resume_on_a_read_only_disk(runs: Driver, stopped: Path, small_disk: Path) -> None:
    out = driver.copy(stopped, small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = runs.resume(out)
    assert ended.code in (2, 6), str(ended)
    assert "Traceback" not in ended.err
    record("12 resume on a read-only disk", 1, 1)


def test_places_that_cannot_be_written(runs: Driver, small_disk: Path, tmp_path: Path) -> None:
    """Refused before the first step, in one sentence, and nothing is left behind."""
    file = tmp_path / "file"
    file.write_text("a person's")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    places = [file, file / "below", Path("/proc/dcpg-run"), Path("/dev/null"), small_disk / "run", Path("x" * 300)]

    def work(out: Path) -> None:
        ended = runs.train(out, "at collect 1 kill")
        assert ended.code == 2, str(ended)
        assert ended.err.startswith("dcpg: ")
        assert "Traceback" not in ended.err

    each(places, work)
    assert file.read_text() == "a person's"
    record("12 read-only or impossible places", len(places), len(places))


@pytest.mark.parametrize("why", [["--init", "/nowhere"], ["--set", "machine.device=cuda:9"]])
def test_a_refusal_leaves_other_files_alone(runs: Driver, tmp_path: Path, why: list[str]) -> None:
    """--out may name a folder that holds a person's files."""
    out = tmp_path / "home"
    (out / "thesis").mkdir(parents=True)
    (out / "thesis" / "chapter1.txt").write_text("years of work")
    before = driver.listing(out)
    ended = runs.run([*train_arguments(out), *why])
    assert ended.code == 2, str(ended)
    after = driver.listing(out)
    assert {name: after.get(name) for name in before} == before
    assert not (out / "config.json").exists()
    record("12 a refusal leaves other files alone", 1, 1)


def test_an_existing_run_is_not_overwritten(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    out = driver.copy(stopped, tmp_path / "run")
    before = driver.listing(out)
    ended = runs.train(out)
    assert ended.code == 2, str(ended)
    assert "resume" in ended.err
    assert driver.listing(out) == before
    assert os.path.isdir(out)
    record("12 a run stands there already", 1, 1)

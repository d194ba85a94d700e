"""Faults 12 and 37: a disk that becomes read-only in the middle of a run, and a user who may not do everything."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import driver
from tests.faults.driver import Driver, copy, differences, each, newest, record, temporary, train_arguments
from tests.faults.inject import NOBODY
from tests.faults.test_storage import QUICK

pytestmark = pytest.mark.faults

OFTEN = ["checkpoints.minutes=0.002"]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user or mount")


# -- read-only


def test_disk_becomes_read_only(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """Exit 6 with the command that goes on; when it can be written again, the result is the same."""
    jobs = [33, 40, 45, 60]

    def work(first: int) -> None:
        out = tmp_path / str(first)
        fault = f"disk-error EROFS {first} -1 write,fsync,mkdir,replace,unlink,rmdir"
        ended = runs.train(out, fault, QUICK, steps=256, more=OFTEN)
        assert ended.code == 6, str(ended)
        assert "Traceback" not in ended.err
        assert "resume" in ended.err
        runs.recovers(out, reference("ddcpg", 256))

    each(jobs, work, "12 disk read-only from the middle of a run")


class Disk:
    """A real ext4 file system in a file, which can be made to fail as a broken disk does."""

    def __init__(self, folder: Path) -> None:
        self.image, self.place = folder / "image", folder / "disk"
        self.place.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(2**26)

    def mount(self) -> bool:
        words = ["mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.place)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.place)], check=True)

    def fail(self) -> None:
        """Let the kernel find an error in it; it becomes read-only under the files that are open."""
        listed = Path("/proc/mounts").read_text().splitlines()
        (device,) = [line.split()[0] for line in listed if line.split()[1] == str(self.place)]
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    def mend(self) -> None:
        self.unmount()
        subprocess.run(["e2fsck", "-fy", str(self.image)], capture_output=True, check=False)
        assert self.mount()


@pytest.fixture
def broken_disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    if shutil.which("mkfs.ext4") is None or os.geteuid() != 0:
        pytest.skip("file systems cannot be made here")
    subprocess.run(["mkfs.ext4", "-q", str(disk.image)], check=True)
    if not disk.mount():
        pytest.skip("there are no loop devices here")
    yield disk
    disk.unmount()


def test_a_real_disk_becomes_read_only(
    runs: Driver, reference: Callable[..., Path], broken_disk: Disk, tmp_path: Path
) -> None:
    """Under a run that trains, with TensorBoard and everything else that writes."""
    out, gate = broken_disk.place / "run", tmp_path / "gate"
    arguments = train_arguments(out, steps=256, more=OFTEN)
    process = runs.start(arguments, QUICK, f"at policy 3 wait:{gate}", full=True)
    driver.until(Path(f"{gate}.reached").exists)
    broken_disk.fail()
    with pytest.raises(OSError, match="Read-only"):
        (out / "mine").touch()
    gate.touch()
    ended = process.wait()
    assert ended.code == 6, str(ended)
    assert "Traceback" not in ended.err
    for words in (["resume", str(out)], ["eval", str(out)]):
        ended = runs.run(words)
        assert ended.code == (0 if words[0] == "eval" else 2), str(ended)
        assert "Traceback" not in ended.err
    broken_disk.mend()
    ended = runs.resume(out)
    assert ended.code == 0, str(ended)
    assert differences(out, reference("ddcpg", 256)) == []
    assert temporary(out) == []
    record("12 a real disk becomes read-only", 3, 3)


# -- a user who may not do everything


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp(prefix="dcpg-unprivileged-"))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


# what is closed in a run of somebody else -> commands and what they may end with
CLOSED: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "": [("eval RUN", (0,)), ("report RUN --out OWN", (0,)), ("resume RUN", (2, 6)), ("analyse values RUN", (2, 6)),
         ("record RUN --levels 0", (2, 6)), ("record RUN --levels 0 --out OWN/x.mp4", (0,)), ("export RUN", (2, 6)),
         ("report RUN --out RUN/report", (2, 6))],
    ".": [("eval RUN", (2,)), ("resume RUN", (2,)), ("report RUN --out OWN", (2,)), ("record RUN", (2,))],
    "config.json": [("eval RUN", (2,)), ("resume RUN", (2,)), ("report RUN --out OWN", (2,))],
    "checkpoints": [("eval RUN", (2, 4)), ("resume RUN", (2, 4)), ("export RUN --out OWN", (2, 4))],
    "checkpoints/NEWEST/weights.safetensors": [("eval RUN", (6,)), ("resume RUN", (2, 4))],
    "checkpoints/NEWEST/manifest.json": [("eval RUN", (6,)), ("resume RUN", (2, 4))],
    "checkpoints/NEWEST": [("eval RUN", (6,))],
    "metrics.jsonl": [("report RUN --out OWN", (0, 2)), ("resume RUN", (2, 6))],
    "eval.jsonl": [("report RUN --out OWN", (0, 2)), ("analyse values RUN", (2, 6)),
                   ("export RUN --out OWN", (0, 2, 6))],
    "summary.json": [("report RUN --out OWN", (0, 2))],
    "lock": [("resume RUN", (2,)), ("report RUN --out OWN", (0, 2))],
}  # fmt: skip


def explained(text: str) -> bool:
    """Whether it ends with a sentence of dcpg, or of the command line about an argument."""
    return "Traceback" not in text and (text.splitlines()[-1].startswith("dcpg: ") or text.startswith("Usage: "))


@root_only
def test_an_unprivileged_user_and_runs_of_others(runs: Driver, stopped: Path, open_folder: Path) -> None:
    """What can be read works; what cannot be read or written is refused in a sentence, and nothing is changed."""
    jobs = [(where, words, codes) for where, commands in CLOSED.items() for words, codes in commands]

    def work(job: tuple[str, str, tuple[int, ...]]) -> None:
        where, words, codes = job
        place = open_folder / str(jobs.index(job))
        place.mkdir()
        out, own = copy(stopped, place / "run"), place / "own"
        own.mkdir()
        os.chown(own, NOBODY, NOBODY)
        (out / "lock").touch()
        if where:
            (out / where.replace("NEWEST", newest(out).name)).chmod(0)
        before = driver.listing(out)
        filled = [word.replace("RUN", str(out)).replace("OWN", str(own)) for word in words.split()]
        ended = runs.run(filled, "unprivileged", "bounded", cwd=own, env={"HOME": "/nonexistent"})
        assert ended.code in codes, f"{where} {words}: {ended}"
        assert "Traceback" not in ended.err, str(ended)
        assert ended.code == 0 or explained(ended.err), str(ended)
        assert driver.listing(out) == before

    each(jobs, work, "37 an unprivileged user and the runs of others")


@root_only
def test_an_unprivileged_user_trains(runs: Driver, reference: Callable[..., Path], open_folder: Path) -> None:
    """In a directory of their own; in others' it is refused; a directory closed in the middle is a failed disk."""
    own, others = open_folder / "own", open_folder / "others"
    for folder in (own, others):
        folder.mkdir()
    os.chown(own, NOBODY, NOBODY)
    me: dict = {"cwd": own, "env": {"HOME": "/nonexistent"}}
    for out in (others / "run", others, Path("/root/run"), Path("/proc/run")):
        ended = runs.run(train_arguments(out, steps=256), "unprivileged", **me)
        assert ended.code == 2, str(ended)
        assert explained(ended.err), str(ended)
    out, gate = own / "run", own / "gate"
    faults = ("unprivileged", QUICK, f"at policy 3 wait:{gate}")
    process = runs.start(train_arguments(out, steps=256, more=OFTEN), *faults, **me)
    driver.until(Path(f"{gate}.reached").exists)
    for folder in (out, out / "checkpoints", out / "checkpoints" / "shared"):
        if folder.is_dir():
            os.chown(folder, 0, 0)
    gate.touch()
    ended = process.wait()
    assert ended.code == 6, str(ended)
    assert "Traceback" not in ended.err
    for folder in (out, out / "checkpoints", out / "checkpoints" / "shared"):
        if folder.is_dir():
            os.chown(folder, NOBODY, NOBODY)
    ended = runs.run(["resume", str(out)], "unprivileged", **me)
    assert ended.code == 0, str(ended)
    assert differences(out, reference("ddcpg", 256)) == []
    assert temporary(out) == []
    record("37 an unprivileged user trains", 5, 5)

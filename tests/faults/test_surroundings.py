"""Faults 20, 21, 25, 26, 34 and 35: environments that hang or abort, other trainers, clocks, names and secrets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import driver
from tests.faults.driver import Driver, copy, differences, each, listing, names, real, record, train_arguments

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("place", ["env 5", "env 25", "evaluate 2"])
def test_an_environment_hangs(runs: Driver, reference: Callable[..., Path], tmp_path: Path, place: str) -> None:
    """Exit 5 with the stacks of all threads; a resume gives what an environment that answers would have given."""
    out = tmp_path / "run"
    ended = runs.train(out, f"at {place} hang", more=["env.timeout=4"], steps=256)
    assert ended.code == 5, str(ended)
    assert "env.timeout" in ended.err
    assert "hang" in ended.err  # where it stood
    assert "most recent call first" in ended.err
    runs.recovers(out, reference("ddcpg", 256))
    record(f"20 environment hangs at {place}", 1, 1)


def test_long_computing_is_not_a_hang(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """Only environments are watched: optimiser steps longer than env.timeout are no reason to stop."""
    out = tmp_path / "run"
    ended = runs.train(out, "at auxiliary 2 sleep:4", more=["env.timeout=3"], steps=256)
    assert ended.code == 0, str(ended)
    assert differences(out, reference("ddcpg", 256)) == []
    record("20 long computing is not a hang", 1, 1)


def test_an_environment_aborts_the_process(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    jobs = ["env 5", "env 20", "evaluate 2", "evaluate 30"]

    def work(place: str) -> None:
        out = tmp_path / place.replace(" ", "-")
        assert runs.train(out, f"at {place} abort", steps=256).code == -signal.SIGABRT
        runs.recovers(out, reference("ddcpg", 256))

    each(jobs, work, "21 environment aborts the process")


# -- two trainers


def test_two_trainers(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    """The second is refused with the first's process and host; the first is not harmed."""
    out, gate = tmp_path / "run", tmp_path / "gate"
    first = runs.start(train_arguments(out, steps=256), f"at policy 2 wait:{gate}")
    driver.until(Path(f"{gate}.reached").exists)
    before = names(out)
    for arguments in (["resume", str(out)], ["resume", str(out), "--steps", "1024"], train_arguments(out, steps=256)):
        second = runs.run(arguments)
        assert second.code == 2, str(second)
        if arguments[0] == "resume":
            assert str(first.pid) in second.err
            assert socket.gethostname() in second.err
    assert names(out) == before
    gate.touch()
    ended = first.wait()
    assert ended.code == 0, str(ended)
    assert differences(out, reference("ddcpg", 256)) == []
    record("25 a second trainer", 3, 3)


def lock(host: str, beat: int, pid: int = 4242) -> str:
    return json.dumps({"host": host, "pid": pid, "started": "2026-01-01T00:00:00Z", "beat": beat}) + "\n"


def test_locks_that_are_taken_over(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """A dead process's at once, damaged ones at once, another host's when its counter stands still."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    texts = {
        "dead": lock(socket.gethostname(), 7, int(dead.stdout)),
        "alive but no trainer": lock(socket.gethostname(), 7, os.getpid()),
        "torn": lock(socket.gethostname(), 7)[:20],
        "garbage": "\0\0\0",
        "list": "[1, 2]",
        "another host": lock("another-host", 7),
    }

    def work(name: str) -> None:
        out = copy(stopped, tmp_path / name)
        (out / "lock").write_text(texts[name])
        ended = runs.resume(out, "set dcpg.storage.lock.FOREIGN_PATIENCE 1.5")
        assert ended.code == 0, str(ended)
        assert differences(out, reference()) == []

    each(texts, work, "25 locks that are taken over")


def test_a_lock_of_a_living_other_host(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    out = copy(stopped, tmp_path / "run")
    before = {name: value for name, value in listing(out).items() if name != "lock"}
    path, ended = out / "lock", threading.Event()
    path.write_text(lock("another-host", 1))

    def beat() -> None:
        number = 1
        while not ended.wait(0.2):
            number += 1
            path.write_text(lock("another-host", number))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        refused = runs.resume(out, "set dcpg.storage.lock.FOREIGN_PATIENCE 30")
    finally:
        ended.set()
        thread.join()
    assert refused.code == 2, str(refused)
    assert "4242" in refused.err
    assert "another-host" in refused.err
    assert {name: value for name, value in listing(out).items() if name != "lock"} == before
    record("25 a lock of a living other host", 1, 1)


def test_a_heartbeat_that_is_being_written(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    """A holder empties its lock for a moment at every beat; that is no sign that it is gone."""
    out = copy(stopped, tmp_path / "run")
    path, ended = out / "lock", threading.Event()
    path.write_text(lock("another-host", 1))

    def beat() -> None:
        number = 1
        while not ended.wait(0.75):
            number += 1
            path.write_text("")
            if not ended.wait(0.75):
                path.write_text(lock("another-host", number))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        refused = runs.resume(out, "set dcpg.storage.lock.FOREIGN_PATIENCE 30")
    finally:
        ended.set()
        thread.join()
    assert refused.code == 2, str(refused)
    record("25 a heartbeat that is being written", 1, 1)


# -- clocks, locales, names, secrets


def test_clock_jumps(runs: Driver, reference: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = runs.train(out, "clock", "at auxiliary 10 SIGTERM", more=["checkpoints.minutes=0.002"])
    assert ended.code == 75, str(ended)
    ended = runs.resume(out, "clock")
    assert ended.code == 0, str(ended)
    assert differences(out, reference()) == []
    record("26 clock jumps", 2, 2)


@pytest.mark.parametrize("where", [("Pacific/Kiritimati", "tr_TR.UTF-8"), ("America/St_Johns", "C")])
def test_a_real_process_elsewhere(reference: Callable[..., Path], tmp_path: Path, where: tuple[str, str]) -> None:
    """`python -m dcpg` in another time zone and locale, with secrets around it and an awkward place to write to."""
    secrets = {"WANDB_API_KEY": "wandb-0123456789abcdef", "AWS_SECRET_ACCESS_KEY": "aws/SeCrEt+fedcba9876543210"}
    zone, locale = where
    folder = tmp_path / "a"
    folder.mkdir()
    out = folder / "$(touch pwned); `touch pwned` && rm -rf * 'quoted\" \n-ü"
    env = {"TZ": zone, "LC_ALL": locale, "LANG": locale, **secrets}
    ended = real("dcpg", *train_arguments(out), env=env)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert differences(out, reference()) == []
    assert [p.name for p in folder.iterdir()] == [out.name]
    assert not (driver.ROOT / "pwned").exists()
    for path in out.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret.encode() in data for secret in secrets.values()), path
    assert not any(secret in ended.stdout for secret in secrets.values())
    record(f"26, 34, 35 {zone}, {locale}, shell metacharacters, secrets", 4, 4)


@pytest.mark.parametrize("name", ["--help", "-rf", "~", "a*b?", "$HOME", "run;id", "..run", "  "])
def test_strange_names(runs: Driver, tmp_path: Path, name: str) -> None:
    """A name is only a name: the run is written there and nowhere else, or refused."""
    (tmp_path / "bystander").write_text("untouched")
    before = set(os.listdir(Path.home())) | set(os.listdir(driver.ROOT))
    arguments = train_arguments(Path("replaced"), steps=128)
    arguments[arguments.index("replaced")] = f"{tmp_path}/{name}"
    ended = runs.run(arguments)
    assert ended.code == 0, str(ended)
    assert sorted(os.listdir(tmp_path)) == sorted(["bystander", name])
    assert (tmp_path / name / "summary.json").exists()
    assert set(os.listdir(Path.home())) | set(os.listdir(driver.ROOT)) == before
    record(f"34 a run named {name!r}", 1, 1)


def test_names_that_climb_are_not_followed(runs: Driver, tmp_path: Path) -> None:
    """A game or method is looked up in a table and never becomes a path unchecked."""
    before = listing(tmp_path)
    for words in (["../../etc", "--game", "starpilot"], ["ppo", "--game", "../../../tmp/x"], ["ppo", "--game", "a;b"]):
        ended = runs.run(["train", *words, "--preset", "tiny"], cwd=tmp_path)
        assert ended.code == 2, str(ended)
    assert listing(tmp_path) == before
    record("33 names that climb", 3, 3)

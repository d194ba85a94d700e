"""Fault 30: states of Procgen that end or hang its library, in a checkpoint whose hashes are right."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import dcpg
from tests.envs.test_states import with_number
from tests.faults import driver
from tests.faults.driver import Driver, copy, each, envs, listing, names, newest, real, record, until

pytestmark = pytest.mark.faults

MOST = 2**31 - 1
# what they do to the library: the number's place behind the last random generator, and its value
DAMAGES = {"segmentation fault": (9, MOST), "abort": (11, -1), "exit": (12, MOST), "endless": (0, MOST)}
QUICK = "set dcpg.envs.states.SECONDS 2"


def damage(out: Path, what: str, checkpoint: Path | None = None) -> None:
    """Damage the second state of a checkpoint, by default the newest one, and make its manifest say so."""
    checkpoint = checkpoint or newest(out)
    first, second, *rest = envs(checkpoint)
    driver.set_envs(checkpoint, [first, with_number(second, *DAMAGES[what]), *rest])


def test_the_checkpoint_before_a_state_that_ends_the_library_is_used(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    """Without the trial the run dies or hangs; with it, the checkpoint is set aside and the result is the right one."""

    def work(what: str) -> None:
        out = copy(stopped, tmp_path / what.replace(" ", "-"))
        damage(out, what)
        name, before = newest(out).name, copy(out, out.with_suffix(".before"))
        process = runs.start(["resume", str(before)])
        ended = process.killed_after(4) if what == "endless" else process.wait()
        assert ended.code != 0, str(ended)
        assert newest(before).name == name
        ended = runs.run(["resume", str(out)], QUICK, tried=True)
        assert ended.code == 0, str(ended)
        assert f"Damaged checkpoint set aside, {name}" in " ".join((ended.out + ended.err).split())
        assert driver.differences(out, reference()) == []
        assert driver.temporary(out) == []

    each(DAMAGES, work, "30 environment states that end or hang the library")


def test_good_states_are_tried_and_change_nothing(
    runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path
) -> None:
    out = copy(stopped, tmp_path / "run")
    ended = runs.run(["resume", str(out)], tried=True)
    assert ended.code == 0, str(ended)
    assert "set aside" not in ended.out + ended.err
    assert driver.differences(out, reference()) == []


def test_a_signal_during_the_trial(runs: Driver, reference: Callable[..., Path], stopped: Path, tmp_path: Path) -> None:
    """It stops the run at once, the second process with it, and nothing is changed."""
    out = copy(stopped, tmp_path / "run")
    damage(out, "endless")
    before = listing(out / "checkpoints")
    process = runs.start(["resume", str(out)], tried=True)
    running = psutil.Process(process.pid)
    until(lambda: any("play_states" in " ".join(child.cmdline()) for child in running.children()))
    (trial,) = running.children()
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait().code == -signal.SIGTERM
    until(lambda: not trial.is_running() or trial.status() == psutil.STATUS_ZOMBIE)
    assert listing(out / "checkpoints") == before
    assert runs.run(["resume", str(out)], QUICK, tried=True).code == 0
    assert driver.differences(out, reference()) == []
    record("13 SIGTERM while states are tried", 1, 1)


def test_only_resume_gives_states_to_the_library(runs: Driver, stopped: Path, tmp_path: Path) -> None:
    """Every state of the run would end the process; eval, record, load and report play or show it all the same."""
    out = copy(stopped, tmp_path / "sweep" / "run")
    for name in names(out):
        damage(out, "segmentation fault", out / "checkpoints" / name)
    before = listing(out / "checkpoints")
    ended = runs.run(["resume", str(out)], tried=True)
    assert ended.code == 4, str(ended)
    assert "SIGSEGV" in ended.err
    assert listing(out / "checkpoints") == before
    for command in (
        ["eval", str(out), "--episodes", "2"],
        ["record", str(out), "--out", str(tmp_path / "video.mp4")],
        ["report", str(out.parent), "--out", str(tmp_path / "report")],
    ):
        ended = runs.run(command)
        assert ended.code == 0, str(ended)
    assert dcpg.load(out).act(np.zeros((64, 64, 3), np.uint8)).shape == ()
    record("30 eval, record, load and report beside states that end the library", 4, 4)


def test_damage_at_many_places() -> None:
    """Of what ends or hangs the library within 1000 steps, the trial finds nearly all; good states all pass."""
    done = real("tests.faults.states", "60", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["good states refused"] == 0
    ended, caught = found["ended or hung"], found["ended or hung, found by the trial"]
    assert ended >= 10
    assert caught >= 0.9 * ended
    record("30 damage at many places of a state that ends or hangs the library", ended, caught)

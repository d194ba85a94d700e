"""What is displayed: estimates, the progress of runs and sweeps on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from rich.console import Console

from dcpg.cli.sweep_display import ProbeDisplay, SweepDisplay, picture
from dcpg.cli.train import conclude
from dcpg.config.resolve import resolve
from dcpg.envs.base import Spaces
from dcpg.machine import estimate
from dcpg.machine.automatic import settled
from dcpg.machine.estimate import Costs
from dcpg.machine.guard import guarded
from dcpg.machine.needs import Needs
from dcpg.seeding import generator, key, rand_seed
from dcpg.storage.rows import Evaluation, Metrics
from dcpg.sweep.view import view_directory
from dcpg.text import counted, duration
from dcpg.training import display
from dcpg.training.display import RunDisplay, Screen
from tests.sweep.fakes import drive_once, planned, split

SPACES = Spaces((64, 64, 3), np.dtype(np.uint8), 15)
ROW = Metrics(
    rollout=2, steps=256, episode_returns=[1.0, 3.0], episode_lengths=[5, 6], episode_levels=[0, 1],
    reward_variance=1.0, more={},
)  # fmt: skip
EVALUATION = Evaluation(k=1, rollout=2, steps=256, splits={"train": split(4.25), "test": split(3.5)})
CONFIG = settled(resolve("dcpg", "maze", preset="tiny"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that displays see, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def shown(on_terminal: bool, width: int = 140) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=on_terminal, width=width), text


@pytest.mark.parametrize("on_terminal", [True, False])
def test_displays_show_the_figures(on_terminal: bool) -> None:
    console, text = shown(on_terminal)
    show = RunDisplay(console)
    show.start(CONFIG, Path("runs/x"), 0)
    show.progress("collect", "")
    show.row(ROW, 100.0)
    show.evaluation(EVALUATION)
    show.progress("auxiliary", "epoch 2, minibatch 7")
    show.warn("something")
    show.close()
    seen = text.getvalue()
    assert ("\x1b" in seen) == on_terminal
    for figure in ("2.00", "4.25", "3.50", "-1.25", "steps/s", "something", "maze"):
        assert figure in seen, figure
    assert ("warning: something" in seen) == (not on_terminal)


def test_a_terminal_is_redrawn_four_times_a_second_at_most(clock: list[float]) -> None:
    console, text = shown(on_terminal=True)
    show = RunDisplay(console)
    show.start(CONFIG, Path("runs/x"), 0)
    drawn = []
    for place in ("minibatch 1", "minibatch 2", "minibatch 3", "minibatch 4"):
        clock[0] += 0.2
        show.progress("policy", place)
        drawn.append(place in text.getvalue())
    assert drawn == [False, True, False, True]
    show.progress("policy", "minibatch 5")
    assert "minibatch 5" not in text.getvalue()
    show.close()  # the last picture remains
    assert "minibatch 5" in text.getvalue()


def test_elsewhere_there_is_a_line_every_half_minute_and_one_per_evaluation(clock: list[float]) -> None:
    console, text = shown(on_terminal=False)
    show = RunDisplay(console)
    show.start(CONFIG, Path("runs/x"), 0)
    counts = []
    for seconds in (10.0, 21.0, 29.0, 2.0):
        clock[0] += seconds
        show.progress("policy", "epoch 1")
        counts.append(len(text.getvalue().splitlines()))
    assert counts == [1, 2, 2, 3]
    show.row(ROW, 100.0)
    show.evaluation(EVALUATION)
    show.close()
    lines = text.getvalue().splitlines()
    assert lines[0] == "dcpg on maze, seed 0, 2,048 steps, on cpu in fp32, in runs/x"
    assert lines[1].startswith("         0 / 2,048 steps       0 steps/s         - left  policy phase epoch 1 training")
    assert lines[3] == (
        "       256 / 2,048 steps       4 steps/s     7 min left  evaluated        training return 2.00  "
        "train levels 4.25  unseen levels 3.50  value bias -1.25"
    )
    assert len(lines) == 4


def test_the_time_left_follows_the_pace_of_each_kind_of_work(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 rollouts with an auxiliary phase after every second one, and evaluations after the first and the last."""
    monkeypatch.setattr(estimate, "costs", lambda config, spaces: Costs(1.0, 2.0, 10.0))
    config = settled(resolve("dcpg", "maze", preset="tiny"))
    show = RunDisplay(shown(on_terminal=False)[0])
    show.announce(config, SPACES, Needs(memory=2e9, buffer=0.0, device=0.0, disk=1e9), 16)
    show.start(config, Path("runs/x"), 0)
    assert show.pace.left() == 16 * 1 + 16 * 2 + 2 * 10

    def work(phase: str, seconds: float) -> None:
        clock[0] += seconds
        show.progress(phase, "")

    def finish(rollout: int) -> None:
        show.row(msgspec.structs.replace(ROW, rollout=rollout, steps=128 * rollout), 100.0)

    work("collect", 1.0)
    assert show.pace.left() == 67
    work("policy", 2.0)
    finish(1)
    # a rollout took 3 seconds instead of 1, so the rest is expected to take three times as long as estimated
    assert show.pace.left() == pytest.approx(15 * 3 + 16 * 6 + 2 * 30)
    work("evaluate", 20.0)
    show.evaluation(EVALUATION)
    assert show.pace.left() == pytest.approx(15 * 3 + 16 * 6 + 20)
    work("collect", 3.0)
    work("auxiliary", 4.0)
    assert show.pace.left() == pytest.approx(14 * 3 + 16 * 6 - 4 + 20)  # long phases count down
    work("auxiliary", 4.0)
    finish(2)
    assert show.pace.left() == pytest.approx(14 * 3 + 14 * 4 + 20)
    for rollout in range(3, 17):
        work("policy", 3.0)
        if rollout % 2 == 0:
            work("auxiliary", 8.0)
        finish(rollout)
    assert show.pace.left() == pytest.approx(20)
    work("evaluate", 5.0)
    assert show.pace.left() == pytest.approx(15)
    show.evaluation(EVALUATION)
    assert show.pace.left() == pytest.approx(0)


def test_what_a_run_will_take_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "costs", lambda config, spaces: Costs(10_000.0, 5e9, 0.0))  # ppo has no B
    config = resolve("ppo", "maze")
    console, text = shown(on_terminal=False)
    RunDisplay(console).announce(config, SPACES, Needs(memory=2e9, buffer=0.0, device=0.0, disk=1e9), 100)
    assert text.getvalue().splitlines() == [
        "This run needs at most 2.0 GB of memory and 1.0 GB of disk.",
        "1,638,400 steps (100 rollouts of 16384) on this machine: about 11.6 days.",
        'For a result in minutes: preset="laptop". This run can be stopped and resumed at any time.',
    ]
    console, text = shown(on_terminal=False)
    RunDisplay(console).announce(config, SPACES, Needs(memory=2e9, buffer=0.0, device=0.0, disk=1e9), 0)
    assert text.getvalue() == ""


def test_tables_of_a_sweep(tmp_path: Path) -> None:
    plan = planned()
    drive_once(tmp_path, plan=plan)
    _, now = view_directory(tmp_path)
    terminal = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    table = SweepDisplay(terminal)
    table.start(plan, "a machine")
    table.update(now)
    table.message("something [happened]")
    table.close()
    terminal.print(picture(now))
    text = terminal.export_text()
    assert "small: 4 runs on a machine" in text
    assert "something [happened]" in text
    assert "4 done  0 running  0 waiting  0 failed" in text
    assert "starpilot  ppo 2.50 (2)  dcpg 2.50 (2)" in text
    assert max(map(len, text.splitlines())) <= 80
    plain = Console(width=80, record=True, file=io.StringIO())
    lines = SweepDisplay(plain)
    lines.update(now)
    lines.close()
    assert plain.export_text().startswith("4 done  0 running  0 waiting  0 failed   100.0% of 2,048 steps")


def test_lines_of_a_sweep(clock: list[float], tmp_path: Path) -> None:
    plan = planned()
    drive_once(tmp_path, plan=plan)
    _, now = view_directory(tmp_path)
    console, text = shown(on_terminal=False, width=40)
    show = SweepDisplay(console)
    show.start(plan, "a machine")
    for seconds in (29.0, 2.0, 29.0):
        clock[0] += seconds
        show.update(now)
    show.message("something [happened]")
    show.close()
    line = "4 done  0 running  0 waiting  0 failed   100.0% of 2,048 steps  0 steps/s  0 s left"
    assert text.getvalue().splitlines() == [
        "small: 4 runs on a machine", line, "something [happened]", line,
    ]  # fmt: skip


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_dry_run_says_what_it_measures(on_terminal: bool) -> None:
    console, text = shown(on_terminal)
    with ProbeDisplay(console) as probes:
        for number, method in ((1, "ppo"), (2, "dcpg")):
            probes.next(number, 2, method)
    assert ("\x1b" in text.getvalue()) == on_terminal
    if on_terminal:
        assert text.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # nothing is left of it
    else:
        assert text.getvalue() == "Measuring speed 1 of 2: ppo\nMeasuring speed 2 of 2: dcpg\n"


def test_durations_as_people_say_them() -> None:
    assert [duration(s) for s in (5, 300, 7200, 10 * 86400)] == ["5 s", "5 min", "2.0 h", "10.0 days"]


def test_counts_as_people_say_them() -> None:
    said = [counted(n, "run") for n in (0, 1, 2, 12_000)]
    assert said == ["0 runs", "1 run", "2 runs", "12,000 runs"]
    assert [counted(n, noun) for n, noun in ((1, "process"), (2, "process"), (1, "minibatch"), (8, "minibatch"))] == [
        "1 process", "2 processes", "1 minibatch", "8 minibatches",
    ]  # fmt: skip


def test_keys_are_different_and_stay_the_same() -> None:
    keys = {key(s, n, p) for s in range(10) for n in ("a", "b") for p in range(10)}
    assert len(keys) == 200
    # part of the run's contract: changing this changes every run
    assert key(0, "init") == 6767970929478544064
    assert key(1, "a", 23) != key(1, "a", 2, 3)
    assert 0 <= rand_seed(3, "x") < 2**31 - 1
    assert generator(0, "x").initial_seed() == key(0, "x")


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_reader_that_goes_away_ends_no_run(on_terminal: bool) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    file = os.fdopen(theirs, "w")
    run = RunDisplay(Screen(file=file, force_terminal=on_terminal, width=80))
    run.start(CONFIG, Path("runs/a"), 0)
    run.evaluation(EVALUATION)
    run.warn("The checkpoint could not be written.")
    run.close()
    assert run.console.quiet
    with contextlib.suppress(BrokenPipeError):
        file.close()


def test_a_run_that_is_done_has_not_failed_because_nobody_reads_that(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = {"steps": 256, "steps_asked": 256, "train_return": 1.0, "test_return": 2.0}
    run = SimpleNamespace(directory=Path("runs/a"), summary=summary, no_curves="", env=None, test_env=None)

    class Full(io.StringIO):
        tried = 0

        def write(self, text: str) -> int:
            self.tried += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full, ended = Full(), []
    with monkeypatch.context() as changed:
        for output in (full, None):
            changed.setattr(sys, "stdout", output)
            guarded(lambda: ended.append(conclude(run, None)))  # type: ignore[arg-type,func-returns-value]
    assert len(ended) == 2
    assert full.tried

"""Signals that ask a run to stop, and what a closed terminal does."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcpg.training.stop import NUMBERS, StopSignals
from tests.cli.test_cli import TINY


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts the handlers of signals back."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_noted_and_its_handler_put_back(number: signal.Signals) -> None:
    before, signals = signal.getsignal(number), StopSignals()
    with signals:
        os.kill(os.getpid(), number)
        assert signals.asked == number.name
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("handlers")
def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals = StopSignals()
    with signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.asked is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.asked == "SIGTERM"
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_run_whose_terminal_is_closed_is_saved(tmp_path: Path) -> None:
    """Nothing can be printed any more: neither what is displayed nor how to go on."""
    ours, theirs = pty.openpty()
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from dcpg.cli.app import main; main()"
    options = ["train", "dcpg", "--game", "maze", "--steps", "1280000", "--out", str(tmp_path / "run"), *TINY]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *options], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    while b"auxiliary phase" not in seen:  # long after the run was created
        seen += os.read(ours, 4096)
    os.close(ours)
    assert process.wait() == 75
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    newest = max(path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name[0].isdigit())
    assert int(newest.split("-")[0]) >= 128
    assert not (tmp_path / "run" / "lock").exists()


FULL = """
import sys
from dcpg.training.observer import SilentObserver
from dcpg.training.stop import _end
SilentObserver().warn("The checkpoint could not be written.")
sys.stderr = open("/dev/full", "w", buffering=1)
SilentObserver().warn("The checkpoint could not be written.")
print("goes on", flush=True)
_end("It hangs.", 5)
"""


def test_a_log_that_cannot_be_written_to_ends_no_run_and_saves_none_from_its_watchdog() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (5, "goes on\n")

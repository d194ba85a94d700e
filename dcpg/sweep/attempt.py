"""One attempt at a run, in a process of its own. All engines use it, so that results do not depend on the engine.

The process is told its configuration on its standard input, which then stays open: when the process at the other end
dies, for whatever reason, this one ends too, and the run's last checkpoint remains.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcpg.errors import DcpgError, InUse, OutOfMemory, Stopped
from dcpg.machine import cgroup
from dcpg.storage.files import open_appending, open_regular, own_folder, storage_behind
from dcpg.storage.rundir import RunDirectory
from dcpg.sweep.child import STORAGE_AWAY
from dcpg.sweep.directory import SweepDirectory

POLL_SECONDS = 0.2  # between two looks at the process
LAST_LINES = 30
LAST_BYTES = 6_000


@dataclass(frozen=True)
class Attempt:
    """What a worker must know to start or resume a run; plain data, so that any engine can send it."""

    root: str  # the sweep's directory, absolute
    name: str  # of the run
    config: dict[str, Any]  # Config.to_json()
    plugins: list[dict[str, str]] = field(default_factory=list)  # as `dcpg.methods.plugins.load_sent` takes them
    env: dict[str, str | None] | None = None  # the user's own environment, as the child takes it
    analyses: list[str] = field(default_factory=list)  # when the run is trained
    train: bool = True  # False: it is trained, and only analyses are missing


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    name: str
    code: int | None  # the exit code of the process, negative for a signal; None: the worker or its node was lost
    node: str
    last_lines: str = ""


def not_started(attempt: Attempt) -> Outcome:
    """The outcome of an attempt that had not started when the sweep was stopped."""
    return Outcome(attempt.name, Stopped.exit_code, socket.gethostname(), "It was asked to stop before it began.")


def could_not_run(attempt: Attempt, error: Exception) -> Outcome:
    """The outcome of an attempt whose process could not be started, or whose files could not be written."""
    code = error.exit_code if isinstance(error, DcpgError) else 1
    return Outcome(attempt.name, code, socket.gethostname(), f"{type(error).__name__}: {error}")


def storage_away(attempt: Attempt, error: OSError | str) -> Outcome:
    """The outcome of an attempt that could not see the sweep's directory for a while, by no fault of the run."""
    return Outcome(attempt.name, None, socket.gethostname(), f"The sweep's directory is away: {error}")


def run_attempt(
    attempt: Attempt, should_stop: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Outcome:
    """Start or resume a run and wait for its end. When `should_stop` says so, the run saves first (exit code 75).

    `environment` holds further variables for the process, such as the GPU that it may see.
    """
    directory = SweepDirectory(Path(attempt.root))
    run = RunDirectory(directory.run(attempt.name))
    try:
        if not directory.runs.is_dir():  # the driver has made it: whoever makes it again loses sight of the runs
            return storage_away(attempt, f"{directory.runs} is not there")
        directory.check_own(run.path)
        run.prepare()
        if not _wait_for_lock(run, should_stop):
            return not_started(attempt)
        child, start = _started(directory, attempt.name, environment or {})
    except (OSError, DcpgError) as error:
        away = storage_behind(error)
        if away is None:
            raise
        return storage_away(attempt, away)
    assert child.stdin is not None
    order = {name: getattr(attempt, name) for name in ("config", "plugins", "env", "analyses", "train")}
    order["directory"] = str(run.path)
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and its exit code says why
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.flush()
    code, lines = _exit_code(child, should_stop), last_lines(directory.log(attempt.name), start)
    return Outcome(attempt.name, None if code == STORAGE_AWAY else code, socket.gethostname(), lines)


def _started(
    directory: SweepDirectory, name: str, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """The process of an attempt, which waits to be told what to do, and where its lines in the log begin."""
    log = directory.log(name)
    own_folder(log.parent)
    with open_appending(log) as output:
        start = os.fstat(output.fileno()).st_size
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dcpg.sweep.child"],  # -P: no file of the current folder hides a library
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_own_environment(), **environment},
            start_new_session=True,  # the driver handles Ctrl-C
        )
    return child, start


def _exit_code(child: subprocess.Popen[bytes], should_stop: Callable[[], bool]) -> int:
    """Wait for the process; a kill for lack of memory and a stop before it listened have exit codes of their own."""
    stopped, killed = False, cgroup.kills()
    try:
        while child.poll() is None:
            if not stopped and should_stop():
                child.send_signal(signal.SIGTERM)
                stopped = True
            killed = (
                cgroup.kills()
            )  # neighbours are counted too: only a kill together with this process's end is its own
            time.sleep(POLL_SECONDS)
    except BaseException:
        child.kill()
        raise
    finally:
        child.wait()
        with contextlib.suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
    if child.returncode == -signal.SIGKILL and cgroup.kills() > killed:
        return OutOfMemory.exit_code
    if stopped and child.returncode == -signal.SIGTERM:  # it had no handler for the signal yet
        return Stopped.exit_code
    return child.returncode


def _own_environment() -> dict[str, str]:
    """The environment of this process, without what torchrun tells the processes of one run."""
    torchrun = ("WORLD_SIZE", "RANK", "GROUP_", "LOCAL_", "ROLE_", "MASTER_", "TORCHELASTIC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(torchrun)}


def _wait_for_lock(run: RunDirectory, should_stop: Callable[[], bool]) -> bool:
    """Wait until nobody trains in the directory: a worker that was given up for lost may still be about to end."""
    while True:
        try:
            run.lock.acquire()
        except InUse:
            if should_stop():
                return False
            time.sleep(1.0)
            continue
        run.lock.release()
        return True


def last_lines(log: Path, start: int = 0) -> str:
    """The last lines of a log, without its first `start` bytes, which are of earlier attempts."""
    try:
        with open_regular(log) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LAST_BYTES, start))
            text = file.read(LAST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])

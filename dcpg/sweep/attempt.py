"""One attempt at a run, in a process of its own: the same for every engine, so that results do not depend on it.

The process is told its configuration through its standard input, which then stays open as a leash: when whoever
holds the other end dies, however it dies, the process ends too, and the run's last checkpoint stands.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput, DcpgError, InUse, OutOfMemory, Stopped
from dcpg.machine import cgroup
from dcpg.storage.rundir import RunDirectory
from dcpg.sweep.directory import Layout

POLL = 0.2  # seconds between two looks at the process


LAST_LINES = 30


LAST_BYTES = 6_000


@dataclass(frozen=True)
class Order:
    """What a worker must know to go on with a run; plain data, so that any engine can carry it."""

    root: str  # the sweep's directory, absolute
    name: str  # the run's
    config: dict[str, Any]  # Config.to_json()


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    name: str
    code: int | None  # the process's exit code, negative for a signal; None: its worker or node was lost
    node: str
    last_lines: str = ""


def never_begun(order: Order) -> Outcome:
    """The outcome of an order that was given back because of a stop."""
    return Outcome(order.name, Stopped.exit_code, socket.gethostname(), "It was asked to stop before it began.")


def not_possible(order: Order, error: Exception) -> Outcome:
    """The outcome of an attempt whose process could not be started, or whose files could not be written."""
    code = error.exit_code if isinstance(error, DcpgError) else 1
    return Outcome(order.name, code, socket.gethostname(), f"{type(error).__name__}: {error}")


def attempt(order: Order, should_stop: Callable[[], bool], environment: Mapping[str, str] | None = None) -> Outcome:
    """Begin a run or go on with it, until it ends or until it is asked to stop: then it saves first (exit 75).

    `environment` has variables for the process besides this one's own, such as the GPU that it may see.
    """
    layout = Layout(Path(order.root))
    run = RunDirectory(layout.run(order.name))
    if run.path.is_symlink():
        raise BadInput(f"{run.path} is a link; a sweep's runs must be in its own directory.")
    run.prepare()
    if not _free(run, should_stop):
        return never_begun(order)
    log = layout.log(order.name)
    log.parent.mkdir(exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with open(fd, "ab") as output:
        start = os.fstat(fd).st_size
        child = subprocess.Popen(
            [sys.executable, "-m", "dcpg.sweep.child"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**_own_environment(), **(environment or {})},
            start_new_session=True,  # Ctrl-C is the driver's to handle
        )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and its code says why
        child.stdin.write(json.dumps({"directory": str(run.path), "config": order.config}).encode() + b"\n")
        child.stdin.flush()
    asked, killed = False, cgroup.kills()
    try:
        while child.poll() is None:
            if not asked and should_stop():
                child.send_signal(signal.SIGTERM)
                asked = True
            killed = cgroup.kills()  # of neighbours too: only what happens with this process's end counts
            time.sleep(POLL)
    except BaseException:
        child.kill()
        raise
    finally:
        child.wait()
        with contextlib.suppress(OSError):
            child.stdin.close()
    code = child.returncode
    if code == -signal.SIGKILL and cgroup.kills() > killed:
        code = OutOfMemory.exit_code
    elif asked and code == -signal.SIGTERM:  # it had not even begun to listen
        code = Stopped.exit_code
    return Outcome(order.name, code, socket.gethostname(), last_lines(log, start))


def _own_environment() -> dict[str, str]:
    """This process's, without what torchrun would tell the processes of one run."""
    strange = ("WORLD_SIZE", "RANK", "GROUP_", "LOCAL_", "ROLE_", "MASTER_", "TORCHELASTIC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(strange)}


def _free(run: RunDirectory, should_stop: Callable[[], bool]) -> bool:
    """Wait until nobody trains in the directory: a worker that was given up may still be on its way out."""
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
    """What a run said last, after the first `start` bytes of its log, which are of attempts before."""
    try:
        with open(log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LAST_BYTES, start))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])

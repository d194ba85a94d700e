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

from dcpg.errors import InUse, OutOfMemory, Stopped
from dcpg.room import CGROUP, MEMBERSHIP
from dcpg.rundir import RunDirectory
from dcpg.sweep.layout import Layout

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


def attempt(order: Order, should_stop: Callable[[], bool], environment: Mapping[str, str] | None = None) -> Outcome:
    """Begin a run or go on with it, until it ends or until it is asked to stop: then it saves first (exit 75).

    `environment` has variables for the process besides this one's own, such as the GPU that it may see.
    """
    layout = Layout(Path(order.root))
    run = RunDirectory(layout.run(order.name))
    run.prepare()
    node = socket.gethostname()
    if not _free(run, should_stop):
        return Outcome(order.name, Stopped.exit_code, node, "It was asked to stop before it began.")
    log = layout.log(order.name)
    log.parent.mkdir(exist_ok=True)
    killed_before = memory_kills()
    with open(log, "ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "dcpg.sweep.child"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C is the driver's to handle
        )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and its code says why
        child.stdin.write(json.dumps({"directory": str(run.path), "config": order.config}).encode() + b"\n")
        child.stdin.flush()
    asked = False
    try:
        while child.poll() is None:
            if not asked and should_stop():
                child.send_signal(signal.SIGTERM)
                asked = True
            time.sleep(POLL)
    except BaseException:
        child.kill()
        raise
    finally:
        child.wait()
        with contextlib.suppress(OSError):
            child.stdin.close()
    code = child.returncode
    if code == -signal.SIGKILL and memory_kills() > killed_before:
        code = OutOfMemory.exit_code
    elif asked and code == -signal.SIGTERM:  # it had not even begun to listen
        code = Stopped.exit_code
    return Outcome(order.name, code, node, last_lines(log))


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


def memory_kills() -> int:
    """Processes of this one's control group (version 2) that the system has killed for want of memory; else 0."""
    try:
        own = next(line[3:] for line in MEMBERSHIP.read_text().splitlines() if line.startswith("0::"))
        events = (CGROUP / own.lstrip("/") / "memory.events").read_text().splitlines()
        return int(next(line.split()[1] for line in events if line.startswith("oom_kill ")))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0


def last_lines(log: Path) -> str:
    """What a run said last."""
    try:
        with open(log, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LAST_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])

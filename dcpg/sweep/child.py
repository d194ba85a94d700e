"""The process of one attempt: `python -m dcpg.sweep.child`, told what to do on standard input (see attempt.py)."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType

LEASH_BROKEN = 70


STOPPED = 75  # dcpg.errors.Stopped, which is not imported yet when it is needed


def _leash() -> None:
    """Whoever started this process holds the other end of standard input; with its end this process ends."""
    os.read(0, 1)
    os._exit(LEASH_BROKEN)


def _line() -> bytes:
    """What to do; nothing follows it but, one day, the end."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65_536)
        if not more:
            os._exit(LEASH_BROKEN)
        line += more
    return line


def _stop_early(number: int, frame: FrameType | None) -> None:
    """Asked to stop before the trainer listens: there is nothing to save yet that is not saved."""
    os._exit(STOPPED)


def work() -> None:
    """Begin the run, or go on with it."""
    order = json.loads(_line())
    threading.Thread(target=_leash, daemon=True).start()
    from dcpg.config.written import from_json
    from dcpg.training.start import resume, start

    directory = Path(order["directory"])
    if (directory / "config.json").exists():
        resume(directory)
    else:
        start(from_json(order["config"]), directory)


def main() -> None:
    """As the command line does: a failure that has an explanation is one sentence and an exit code."""
    signal.signal(signal.SIGTERM, _stop_early)
    faulthandler.enable(all_threads=False)  # a library that ends the process leaves a stack in the log
    from dcpg.machine.guard import guarded

    guarded(work)


if __name__ == "__main__":
    main()

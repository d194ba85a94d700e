"""The process of one attempt: `python -m dcpg.sweep.child`, told what to do on standard input (see attempt.py)."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcpg.config.environments import EnvMaker
    from dcpg.config.schema import Config

PARENT_DIED = 70
STORAGE_AWAY = 69  # the run's files could not be reached: that is no failure of the run
STOPPED = 75  # the exit code of dcpg.errors.Stopped, which is not imported yet when it is needed


def _end_with_parent() -> None:
    """Wait for the end of standard input, whose other end is held by the process that started this one."""
    os.read(0, 1)
    os._exit(PARENT_DIED)


def _read_line() -> bytes:
    """What to do; nothing but the end of the input follows it."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65_536)
        if not more:
            os._exit(PARENT_DIED)
        line += more
    return line


def _stop_early(number: int, frame: FrameType | None) -> None:
    """End at once when asked to stop before the trainer listens: nothing has been computed yet."""
    os._exit(STOPPED)


def work(order: dict[str, Any]) -> None:
    """Start the run, or resume it; when it is trained, analyse it."""
    from dcpg.config.environments import find
    from dcpg.config.written import from_json, read_written
    from dcpg.methods.plugins import load_sent
    from dcpg.storage.rundir import RunDirectory

    load_sent(order["plugins"])
    maker, own = None, order["env"]
    if own is not None:
        sys.path.append(own["folder"])
        maker = find(own["env"], own["test_env"], own["name"])
    directory = Path(order["directory"])
    if order["train"]:
        _train(from_json(order["config"]), directory, maker)
    if order["analyses"]:
        if maker is not None:
            maker = maker.expecting(read_written(RunDirectory(directory)).spaces)
        _analyse(directory, order["analyses"], maker)


def _train(config: Config, directory: Path, maker: EnvMaker | None) -> None:
    from dcpg.config.written import read_written
    from dcpg.storage.rundir import RunDirectory
    from dcpg.training.start import resume, start

    if (directory / "config.json").exists():
        there = read_written(RunDirectory(directory))
        if maker is not None:
            maker = maker.expecting(there.spaces)
        resume(directory, config.steps if config.steps > there.config.steps else None, maker)
    else:
        start(config, directory, maker)


def _analyse(directory: Path, names: list[str], maker: EnvMaker | None) -> None:
    """Make the analyses that are missing; one that fails stops no other, and says why at the end."""
    from dcpg.analysis.many import analyse_each
    from dcpg.errors import DcpgError

    found = [(name, one) for name in names for one in analyse_each([directory], name, {}, lambda run: maker)]
    for _, one in found:
        if one.error is not None and _is_away(one.error, directory):
            raise one.error
    failed = [f"{name}: {one.reason}" for name, one in found if one.result is None]
    if failed:
        raise DcpgError(f"The run is trained, but not every analysis could be made. {' '.join(failed)}")


def main() -> None:
    """Work, and end as the command line does: an explained failure is one sentence and an exit code."""
    signal.signal(signal.SIGTERM, _stop_early)
    faulthandler.enable(all_threads=False)  # a library that aborts the process leaves a stack in the log
    from dcpg.machine.guard import guarded
    from dcpg.text import speak_to_the_command_line

    speak_to_the_command_line()
    guarded(_work_unless_away)


def _work_unless_away() -> None:
    """Work. If the run's storage fails for a reason that may pass, say it and end with a code of its own."""
    order = json.loads(_read_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from dcpg.text import say

    try:
        work(order)
    except Exception as error:
        if not _is_away(error, order["directory"]):
            raise
        say(f"dcpg: The run's files cannot be reached now: {error}", to=sys.stderr)
        sys.exit(STORAGE_AWAY)


def _is_away(error: Exception, directory: Path | str) -> bool:
    """Whether an error comes of the run's storage, for a reason that may pass.

    Other errors of the system may be those of the user's environment, whose failures are the run's.
    """
    from dcpg.errors import InUse, StorageFailed, Unavailable
    from dcpg.machine.memory import memory_was_refused
    from dcpg.storage.files import storage_behind

    behind = storage_behind(error)
    if behind is None or isinstance(error, InUse) or memory_was_refused(error):  # InUse comes of an error of the lock
        return False
    return isinstance(error, StorageFailed | Unavailable) or str(behind.filename).startswith(str(directory))


if __name__ == "__main__":
    main()

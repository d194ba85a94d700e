"""Trials in a second process: what Procgen's library does with a file or with bytes may end or hang the process."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired

DONE = "dcpg: done"  # printed after the last line of a trial: a library that ends the process can do so with code 0


@dataclass(frozen=True)
class Ended:
    """How a second process ended."""

    code: int | None  # negative for a signal; None: it had to be killed after the time it was given
    lines: list[str]  # what it printed, without DONE
    done: bool  # it came to the end of its function

    @property
    def why(self) -> str:
        """The last line that it printed, or how it ended without a word."""
        if self.lines:
            return self.lines[-1]
        if self.code is None:
            return "it was not done in time"
        known = {-number.value: number.name for number in signal.Signals}
        return f"it ended the process, {known.get(self.code, f'code {self.code}')}"


def second_process(module: str, function: str, arguments: list[str], seconds: float, data: bytes = b"") -> Ended:
    """Call a function of this package in a new interpreter, with `data` as its standard input; OSError if none starts.

    The interpreter finds modules where this one does. It leads a session of its own, so that a signal to this group of
    processes, such as Ctrl-C, does not look like a failed trial.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\nfrom {module} import {function}\n"
        f"{function}(*sys.argv[1:])\nprint({DONE!r}, flush=True)"
    )
    command = [sys.executable, "-P", "-c", code, *arguments]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True) as child:  # noqa: S603
        try:
            printed, _ = child.communicate(data, timeout=seconds)
            ended: int | None = child.returncode
        except TimeoutExpired:
            child.kill()
            printed, ended = child.communicate()[0], None
        except BaseException:
            child.kill()
            raise
    lines = [line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()]
    return Ended(ended, [line for line in lines if line != DONE], ended == 0 and DONE in lines)

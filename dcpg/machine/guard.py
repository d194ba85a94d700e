"""Turns expected failures into a one-sentence message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from dcpg.errors import DcpgError, OutOfMemory
from dcpg.machine.memory import address_limit, memory_was_refused
from dcpg.text import gigabytes, say
from dcpg.torchrun import is_first


def guarded(work: Callable[[], object]) -> None:
    """Run `work`; an expected failure prints one sentence and exits with its code."""
    try:
        work()
    except DcpgError as error:
        if is_first() or isinstance(error, OutOfMemory):  # several processes report the same error: print it once
            with contextlib.suppress(OSError):  # the terminal may be closed
                say(f"dcpg: {error}", to=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        if not memory_was_refused(error):
            raise
        limit = address_limit()
        limited = f" This process may have at most {gigabytes(limit)} (ulimit -v)." if limit < float("inf") else ""
        say(
            f"dcpg: There was no memory left.{limited} What was saved is kept; free some memory and try again.",
            to=sys.stderr,
        )
        sys.exit(OutOfMemory.exit_code)
    finally:
        _leave_closed_outputs()


def _leave_closed_outputs() -> None:
    """Drop what can no longer be printed: Python would fail to print it when it ends, and exit with 120."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where there was none from the start
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)

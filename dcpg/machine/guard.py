"""Turns expected failures into a one-sentence message and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dcpg.errors import DcpgError, OutOfMemory
from dcpg.torchrun import is_first


def guarded(work: Callable[[], object]) -> None:
    """Run `work`; an expected failure prints one sentence and exits with its code."""
    try:
        work()
    except DcpgError as error:
        if is_first() or isinstance(error, OutOfMemory):  # several processes report the same error: print it once
            print(f"dcpg: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except (MemoryError, RuntimeError) as error:
        from dcpg.machine.memory import memory_was_refused

        if not memory_was_refused(error):
            raise
        print(
            "dcpg: There was no memory left. What was saved is kept; free some memory and try again.", file=sys.stderr
        )
        sys.exit(OutOfMemory.exit_code)

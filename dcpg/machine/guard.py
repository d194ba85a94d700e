"""One sentence and an exit code for every failure that has an explanation."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dcpg.errors import DcpgError, OutOfMemory
from dcpg.torchrun import is_first


def guarded(work: Callable[[], object]) -> None:
    """Do something; a failure that has an explanation is one sentence and an exit code."""
    try:
        work()
    except DcpgError as error:
        if is_first() or isinstance(error, OutOfMemory):  # of several processes, what all say is said once
            print(f"dcpg: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except (MemoryError, RuntimeError) as error:
        from dcpg.machine.memory import memory_was_refused

        if not memory_was_refused(error):
            raise
        print("dcpg: There was no memory left. What was saved stands; make room and try again.", file=sys.stderr)
        sys.exit(OutOfMemory.exit_code)

"""The command line. Imports that take time stand inside the commands, so that --help answers at once."""

from __future__ import annotations

import sys
from collections.abc import Callable

# the order in which --help lists the commands
from dcpg.cli import about, training, results, analysing, sweeping, reporting  # isort: skip
from dcpg.cli.options import app, parse_settings
from dcpg.errors import DcpgError, OutOfMemory
from dcpg.processes import is_first

__all__ = [
    "about",
    "analysing",
    "app",
    "guarded",
    "main",
    "parse_settings",
    "reporting",
    "results",
    "sweeping",
    "training",
]


def main() -> None:
    """Run a command."""
    guarded(app)


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
        from dcpg.memory import memory_was_refused

        if not memory_was_refused(error):
            raise
        print("dcpg: There was no memory left. What was saved stands; make room and try again.", file=sys.stderr)
        sys.exit(OutOfMemory.exit_code)

"""The command line. Imports that take time stand inside the commands, so that --help answers at once."""

from __future__ import annotations

import sys

# the order in which --help lists the commands
from dcpg.cli import about, training, results, analysing, reporting  # isort: skip
from dcpg.cli.options import app, parse_settings
from dcpg.errors import DcpgError

__all__ = ["about", "analysing", "app", "main", "parse_settings", "reporting", "results", "training"]


def main() -> None:
    """Run a command; a failure that has an explanation is one sentence and an exit code."""
    try:
        app()
    except DcpgError as error:
        print(f"dcpg: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except (MemoryError, RuntimeError) as error:
        from dcpg.errors import OutOfMemory
        from dcpg.memory import memory_was_refused

        if not memory_was_refused(error):
            raise
        print("dcpg: There was no memory left. What was saved stands; make room and try again.", file=sys.stderr)
        sys.exit(OutOfMemory.exit_code)

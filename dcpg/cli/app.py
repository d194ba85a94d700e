"""The `dcpg` program: every command, and one way to end."""

from __future__ import annotations

import sys
import warnings
from typing import Any

# the order in which --help lists the commands
from dcpg.cli import about, train, runs, analyse, sweep, report  # isort: skip
from dcpg.cli.options import app
from dcpg.errors import Notice
from dcpg.machine.guard import guarded
from dcpg.text import say, speak_to_the_command_line

__all__ = ["about", "analyse", "app", "main", "report", "runs", "sweep", "train"]


def main() -> None:
    """Run the command that was given."""
    speak_to_the_command_line()
    others = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if issubclass(category, Notice):
            say(f"warning: {message}", to=sys.stderr)
        else:
            others(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    guarded(app)

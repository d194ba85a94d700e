"""The `dcpg` program: every command, and one way to end."""

from __future__ import annotations

# the order in which --help lists the commands
from dcpg.cli import about, train, runs, analyse, sweep, report  # isort: skip
from dcpg.cli.options import app
from dcpg.machine.guard import guarded
from dcpg.text import speak_to_the_command_line

__all__ = ["about", "analyse", "app", "main", "report", "runs", "sweep", "train"]


def main() -> None:
    """Run the command that was given."""
    speak_to_the_command_line()
    guarded(app)

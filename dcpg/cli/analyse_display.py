"""What `dcpg analyse` shows while it analyses many runs: a line for each, and a bar on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dcpg.analysis.many import Analysed
from dcpg.text import one_line
from dcpg.training.display import Display


class AnalyseDisplay(Display):
    """The progress of one analysis over many runs."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(
            TextColumn("{task.completed} of {task.total} runs"),
            BarColumn(bar_width=None),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self.task = self.bar.add_task("", total=0)

    def picture(self) -> Progress:
        return self.bar

    def line(self) -> str:
        task = self.bar.tasks[0]
        return f"{task.completed} of {task.total} runs"

    def done(self, number: int, total: int, run: Analysed, text: str) -> None:
        """Show one more run, with what was found or why nothing was."""
        self.bar.update(self.task, completed=number, total=total, description=one_line(run.run.name))
        self.message(f"{number} of {total}  {run.run}: {text}", "red" if self.on_terminal and run.failed else "")
        if self.on_terminal:
            self.refresh()

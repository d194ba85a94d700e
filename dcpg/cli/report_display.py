"""What `dcpg report` shows while it works: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from dcpg.training.display import Display


class ReportDisplay(Display):
    """The progress of one report."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(
            TextColumn("{task.description:15s}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            console=console,
        )
        self.task = self.bar.add_task("", total=1)

    def open(self, title: str) -> None:
        """Begin to show; without a terminal a short report prints what it has made and nothing else."""
        if self.on_terminal:
            super().open(title)

    def picture(self) -> Progress:
        return self.bar

    def line(self) -> str:
        task = self.bar.tasks[0]
        return f"{task.description}, {task.completed:,.0f} of {task.total:,.0f} done"

    def tell(self, what: str, done: int, total: int) -> None:
        """Show what is being made now."""
        self.bar.update(self.task, description=what, completed=done, total=total)
        self.refresh()

"""What a person sees of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dcpg.sweep.plan import Plan
from dcpg.sweep.view import SweepView, steps_of
from dcpg.text import duration

SHOWN = 8  # running and failed runs, and games, of which each has a line


BEST = 3  # labels a game


def headline(now: SweepView) -> tuple[str, str]:
    """The sweep in two halves of a line."""
    c, left = now.counts, now.seconds_left
    return (
        f"{c['done']} done  {c['running']} running  {c['waiting']} waiting  {c['failed']} failed",
        f"{100 * now.steps / max(now.steps_total, 1):.1f}% of {now.steps_total:,} steps  {now.steps_per_s:,.0f} steps/s"
        f"  {'-' if left is None else duration(left)} left",
    )


def picture(now: SweepView) -> Group:
    """The whole table."""
    first, second = headline(now)
    parts: list[RenderableType] = [Text(first, style="bold"), Text(second)]
    running = [run for run in now.runs if run.status == "running"]
    if running:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("running")
        for name in ("steps", "%", "steps/s", "train", "unseen"):
            table.add_column(name, justify="right", no_wrap=True)
        for run in running[:SHOWN]:
            s = run.on_disk
            table.add_row(
                Text(run.job.name, overflow="ellipsis", no_wrap=True),
                f"{s.steps:,}",
                f"{100 * s.steps / steps_of(run.job):.0f}",
                f"{s.steps_per_s:,.0f}",
                _number(s.train_return),
                _number(s.test_return),
            )
        parts += [table, *_more(len(running))]
    failed = [run for run in now.runs if run.status == "failed"]
    for run in failed[:SHOWN]:  # the cause first: a narrow terminal cuts the rest
        last = run.failure.strip().rsplit("\n", 1)[-1]
        text = f"failed: {run.job.name}: {last or run.history.reason_to_give_up}"
        parts.append(Text(text, style="red", overflow="ellipsis", no_wrap=True))
    parts += _more(len(failed))
    best = now.best()
    if best:
        parts.append(Text("best so far: mean return on unseen levels (finished seeds)", style="dim"))
        table = Table(*[""] * (1 + BEST), box=None, padding=(0, 2, 0, 0), show_header=False)
        for game, rows in list(best.items())[:SHOWN]:
            cells = [f"{label} {mean:.2f} ({seeds})" for label, mean, seeds in rows[:BEST]]
            table.add_row(game, *cells, *[""] * (BEST - len(cells)))
        parts += [table, *_more(len(best))]
    return Group(*parts)


def _more(count: int) -> list[Text]:
    return [Text(f"... and {count - SHOWN} more", style="dim")] if count > SHOWN else []


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


class LiveTable:
    """Refreshes itself."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

    def start(self, plan: Plan, where: str) -> None:
        """Work begins."""
        self.console.print(_beginning(plan, where), style="bold", markup=False, highlight=False)
        self._live = Live(Text("starting"), console=self.console, auto_refresh=False, transient=False)
        self._live.start()

    def update(self, now: SweepView) -> None:
        """A new picture."""
        if self._live is not None:
            self._live.update(picture(now), refresh=True)

    def message(self, text: str) -> None:
        """Above the table."""
        self.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last picture standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class PlainTable:
    """A line for what happens, and one every half minute."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said, self._line = time.monotonic(), ""

    def start(self, plan: Plan, where: str) -> None:
        """Work begins."""
        self.message(_beginning(plan, where))

    def update(self, now: SweepView) -> None:
        """A line now and then."""
        self._line = "   ".join(headline(now))
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            self.message(self._line)

    def message(self, text: str) -> None:
        """A line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """How it stands at the end."""
        if self._line:
            self.message(self._line)


def _beginning(plan: Plan, where: str) -> str:
    return f"{plan.name}: {len(plan.jobs)} runs on {where}"


def table() -> LiveTable | PlainTable:
    """What suits the output."""
    console = Console()
    return LiveTable(console) if console.is_terminal else PlainTable(console)

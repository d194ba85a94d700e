"""What `dcpg sweep` shows: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dcpg.sweep.plan import Plan
from dcpg.sweep.view import RunView, SweepView, format_return, steps_of
from dcpg.text import counted, duration
from dcpg.training.display import Display, as_text

SHOWN = 8  # rows of running runs, of failed runs and of games
BEST = 3  # labels per game


class SweepDisplay(Display):
    """The progress of a sweep."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.now: SweepView | None = None

    def start(self, plan: Plan, where: str) -> None:
        self.open(f"{plan.name}: {counted(len(plan.jobs), 'run')} on {where}")

    def update(self, now: SweepView) -> None:
        self.now = now
        self.refresh()

    def picture(self) -> RenderableType:
        return Text("starting") if self.now is None else picture(self.now)

    def line(self) -> str:
        return "starting" if self.now is None else "   ".join(headline(self.now))

    def close(self) -> None:
        if not self.on_terminal and self.now is not None:
            self.refresh(force=True)
        super().close()


class ProbeDisplay:
    """Which speed a dry run measures: one line, rewritten on a terminal and one line for each elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console, self.status = console, console.status("") if console.is_terminal else None

    def __enter__(self) -> ProbeDisplay:
        if self.status is not None:
            self.status.start()
        return self

    def next(self, number: int, total: int, method: str) -> None:
        text = f"Measuring speed {number} of {total}: {method}"
        if self.status is not None:
            self.status.update(as_text(text))
        else:
            self.console.print(as_text(text), soft_wrap=True)

    def __exit__(self, *exception: object) -> None:
        if self.status is not None:
            self.status.stop()


def headline(now: SweepView) -> tuple[str, str]:
    """The counts of runs, and the steps with speed and time."""
    count, left = now.counts, now.seconds_left
    return (
        f"{count['done']} done  {count['running']} running  {count['waiting']} waiting  {count['failed']} failed"
        + (f"  {counted(now.analyses_missing, 'analysis')} missing" if now.analyses_missing else ""),
        f"{100 * now.steps / max(now.steps_total, 1):.1f}% of {now.steps_total:,} steps  {now.steps_per_s:,.0f} steps/s"
        f"  {'-' if left is None else duration(left)} left",
    )


def picture(now: SweepView) -> Group:
    """The table of a sweep, which `dcpg sweep status` prints too."""
    counts, steps = headline(now)
    parts: list[RenderableType] = [Text(counts, style="bold"), Text(steps)]
    running = [run for run in now.runs if run.status == "running"]
    if running:
        parts += [_running(running), *_more(len(running))]
    failed = [run for run in now.runs if run.status == "failed"]
    for run in failed[:SHOWN]:  # the cause comes early, because a narrow terminal cuts the end
        last = run.failure.strip().rsplit("\n", 1)[-1]
        text = f"failed: {run.job.name}: {last or run.history.reason_to_give_up}"
        parts.append(as_text(text, "red", cut=True))
    parts += _more(len(failed))
    best = now.best()
    if best:
        parts.append(Text("best so far: mean return on unseen levels (finished seeds)", style="dim"))
        parts += [_best(best), *_more(len(best))]
    return Group(*parts)


def _running(runs: list[RunView]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("running")
    for name in ("steps", "%", "steps/s", "train", "unseen"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs[:SHOWN]:
        status = run.on_disk
        table.add_row(
            as_text(run.job.name, cut=True),
            f"{status.steps:,}",
            f"{100 * status.steps / steps_of(run.job):.0f}",
            f"{status.steps_per_s:,.0f}",
            format_return(status.train_return),
            format_return(status.test_return),
        )
    return table


def _best(games: dict[str, list[tuple[str, float, int]]]) -> Table:
    table = Table(*[""] * (1 + BEST), box=None, padding=(0, 2, 0, 0), show_header=False)
    for game, rows in list(games.items())[:SHOWN]:
        cells = [as_text(f"{label} {mean:.2f} ({seeds})") for label, mean, seeds in rows[:BEST]]
        table.add_row(as_text(game), *cells, *[""] * (BEST - len(cells)))
    return table


def _more(count: int) -> list[Text]:
    return [Text(f"... and {count - SHOWN} more", style="dim")] if count > SHOWN else []

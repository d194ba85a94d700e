"""What a sweep would take on this machine, before anything is started. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpg.config.build import known_spaces
from dcpg.config.schema import Config
from dcpg.errors import BadInput
from dcpg.machine.estimate import training
from dcpg.machine.needs import free_disk
from dcpg.runs.status import Standing, look
from dcpg.settings import dotted
from dcpg.sweep.directory import Layout
from dcpg.sweep.index import Index
from dcpg.sweep.local import Capacity, capacity, needs_of
from dcpg.sweep.plan import Job, Plan
from dcpg.sweep.view import steps_of
from dcpg.text import duration

FIRST = 4  # names that are shown


@dataclass(frozen=True)
class Share:
    """The runs of one method and size that are not done."""

    method: str
    runs: int
    steps: int  # still to make
    steps_per_s: float


@dataclass(frozen=True)
class Cost:
    """A sweep's."""

    jobs: tuple[Job, ...]
    standings: dict[str, Standing]
    failed: int
    shares: tuple[Share, ...]
    capacity: Capacity | None  # None: this machine cannot carry it out, and says why
    why_not: str
    memory: float  # bytes, of the largest run
    disk: float  # of all

    @property
    def steps(self) -> int:
        """Of all runs, done or not."""
        return sum(steps_of(job) for job in self.jobs)

    @property
    def seconds(self) -> float:
        """One run after the other."""
        return sum(share.steps / share.steps_per_s for share in self.shares)

    @property
    def seconds_side_by_side(self) -> float:
        """With as many as fit, none of which can be divided."""
        longest = max((share.steps / share.runs / share.steps_per_s for share in self.shares), default=0.0)
        return max(self.seconds / self.capacity.runs, longest) if self.capacity else self.seconds


def cost(plan: Plan, root: Path) -> Cost:
    """Look at what is there, and probe each method's speed."""
    layout = Layout(root)
    standings = {job.name: look(job.config, layout.run(job.name)) for job in plan.jobs}
    index = Index(layout.index, writable=False)
    failed = sum(index[name].failed and s.status != "finished" for name, s in standings.items())
    left = [job for job in plan.jobs if standings[job.name].status != "finished"]
    sizes = {_size(job.config): job.config for job in plan.jobs}
    try:
        fits = capacity(plan.jobs)
        needs = {size: needs_of(config) for size, config in sizes.items()}
    except BadInput as error:
        return Cost(plan.jobs, standings, failed, (), None, str(error), 0.0, 0.0)
    return Cost(
        plan.jobs,
        standings,
        failed,
        tuple(_shares(left, standings)),
        fits,
        "",
        max(n.memory for n in needs.values()),
        sum(needs[_size(job.config)].disk for job in plan.jobs),
    )


def _size(config: Config) -> tuple[Any, ...]:
    """What decides speed and room: numbers with a fraction, such as a discount, do not, nor which level or seed."""
    return tuple(
        value
        for name, value, _ in dotted(config)
        if name not in ("game", "seed") and not name.startswith("levels.") and not isinstance(value, float)
    )


def _shares(left: list[Job], standings: dict[str, Standing]) -> Iterator[Share]:
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in left:
        groups.setdefault(_size(job.config), []).append(job)
    for jobs in groups.values():
        config = jobs[0].config
        spaces = known_spaces(config)
        assert spaces is not None
        speed = steps_of(jobs[0]) / training(config, spaces, config.rollouts)
        steps = sum(steps_of(job) - standings[job.name].steps for job in jobs)
        yield Share(config.method, len(jobs), steps, speed)


def lines(plan: Plan, root: Path, found: Cost) -> Iterator[str]:
    """For people."""
    jobs = plan.jobs
    names = ", ".join(job.name for job in jobs[:FIRST]) + (", ..." if len(jobs) > FIRST else "")
    each = Counter(job.config.steps for job in jobs)
    sizes = ", ".join(f"{count:,} runs of {steps:,} steps" for steps, count in each.items())
    yield f"{plan.name}: {sizes}; {found.steps:,} steps in whole rollouts"
    yield f"Runs: {names}"
    status = Counter(s.status for s in found.standings.values())
    failed = f" ({found.failed} of these failed before; --retry tries them again)" if found.failed else ""
    yield (
        f"In {root}: {status['finished']} finished, {status['interrupted']} interrupted, {status['waiting']} "
        f"not begun{failed}."
    )
    if found.capacity is None:
        yield f"Time and room cannot be told here: {found.why_not}"
        return
    fits = found.capacity
    free = free_disk(root, held=False)
    yield (
        f"Each run may need {_size_text(found.memory)} of memory; all of them {_size_text(found.disk)} of disk "
        f"({_size_text(free)} are free)."
    )
    for share in found.shares:
        seconds = share.steps / share.steps_per_s
        yield (
            f"  {share.method:14s} {share.runs:5d} runs  {share.steps_per_s:7,.0f} steps/s  "
            f"{duration(seconds / share.runs):>9s} each  {duration(seconds):>10s} in all"
        )
    if found.shares:
        yield f"On this machine, one after another: about {duration(found.seconds)}."
        yield f"{fits.runs} side by side ({fits.reason}): about {duration(found.seconds_side_by_side)}."
    if any(job.config.analyse for job in jobs):
        yield "What `analyse` measures comes on top."


def _size_text(size: float) -> str:
    return f"{size / 1e12:.1f} TB" if size >= 1e12 else f"{size / 1e9:.1f} GB"

"""`dcpg sweep --dry-run`: what a sweep would take on this machine. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput
from dcpg.machine.estimate import training
from dcpg.machine.needs import free_disk
from dcpg.runs.status import RunStatus
from dcpg.settings import dotted
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.index import Index
from dcpg.sweep.local import Capacity, capacity, run_needs
from dcpg.sweep.plan import Job, Plan
from dcpg.sweep.view import missing_analyses, statuses, steps_of
from dcpg.text import counted

NAMES_SHOWN = 4
ALIKE = 1.2  # speeds up to this ratio are one figure: probes on a machine that does other work vary by a tenth


@dataclass(frozen=True)
class UnfinishedRuns:
    """The runs of one method and size that have not finished."""

    method: str
    runs: int
    steps: int  # still to make
    steps_per_s: float

    @property
    def seconds(self) -> float:
        """One run after the other."""
        return self.steps / self.steps_per_s


@dataclass(frozen=True)
class SweepEstimate:
    """What a sweep takes, and how far it has come."""

    jobs: tuple[Job, ...]
    statuses: dict[str, RunStatus]
    failed: int
    unfinished: tuple[UnfinishedRuns, ...] = ()
    capacity: Capacity | None = None  # None: this machine cannot carry it out
    why_not: str = ""
    memory: float = 0.0  # bytes, of the largest run
    disk: float = 0.0  # bytes, of all runs
    analysed: Counter[str] = field(default_factory=Counter)  # analysis -> runs that have it

    @property
    def steps(self) -> int:
        """The steps of all runs, finished or not."""
        return sum(steps_of(job) for job in self.jobs)

    @property
    def seconds(self) -> float:
        """The time that remains, with one run after the other."""
        return sum(group.seconds for group in self.unfinished)

    @property
    def seconds_side_by_side(self) -> float:
        """The time that remains, with as many runs as fit; no run can be divided."""
        longest = max((group.seconds / group.runs for group in self.unfinished), default=0.0)
        return max(self.seconds / self.capacity.runs, longest) if self.capacity else self.seconds


def count_sweep(plan: Plan, root: Path) -> SweepEstimate:
    """Read what is there already, and what the runs need; no time is measured."""
    directory = SweepDirectory(root)
    found = statuses(plan, directory)
    index = Index(directory.index, writable=False)
    failed = sum(index[name].failed and status.state != "finished" for name, status in found.items())
    missing = missing_analyses(plan.jobs, found, directory)
    done = [job for job in plan.jobs if job.name in missing]
    analysed = Counter(name for job in done for name in job.analyses if name not in missing[job.name])
    sizes = {_size(job): job for job in plan.jobs}
    try:
        fits = capacity(plan.jobs)
        needs = {size: run_needs(job) for size, job in sizes.items()}
    except BadInput as error:
        return SweepEstimate(plan.jobs, found, failed, why_not=str(error), analysed=analysed)
    return SweepEstimate(
        plan.jobs,
        found,
        failed,
        (),
        fits,
        memory=max(n.memory for n in needs.values()),
        disk=sum(needs[_size(job)].disk for job in plan.jobs),
        analysed=analysed,
    )


def _size(job: Job) -> tuple[Any, ...]:
    """What decides speed and memory: not the game, levels or seed, nor any fraction, such as a discount."""
    return job.spaces, *(
        value
        for name, value, _ in dotted(job.config)
        if name not in ("game", "seed") and not name.startswith("levels.") and not isinstance(value, float)
    )


def measure_speeds(estimate: SweepEstimate, tell: Callable[[int, int, str], None]) -> SweepEstimate:
    """The same with the speed of each method, from short probes; `tell` hears of each: its number, of how many."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in estimate.jobs:
        if estimate.statuses[job.name].state != "finished" and estimate.capacity is not None:
            groups.setdefault(_size(job), []).append(job)
    found = []
    for number, jobs in enumerate(groups.values(), 1):
        config = jobs[0].config
        tell(number, len(groups), config.method)
        speed = steps_of(jobs[0]) / training(config, jobs[0].spaces, config.rollouts)
        steps = sum(steps_of(job) - estimate.statuses[job.name].steps for job in jobs)
        found.append(UnfinishedRuns(config.method, len(jobs), steps, speed))
    return replace(estimate, unfinished=tuple(found))


def alike(groups: Iterable[UnfinishedRuns]) -> list[list[UnfinishedRuns]]:
    """Groups whose speeds differ by less than a probe can tell, together, fastest first."""
    found: list[list[UnfinishedRuns]] = []
    for group in sorted(groups, key=lambda group: -group.steps_per_s):
        if found and found[-1][0].steps_per_s <= ALIKE * group.steps_per_s:
            found[-1].append(group)
        else:
            found.append([group])
    return found


def describe(plan: Plan, root: Path, estimate: SweepEstimate) -> Iterator[str]:
    """The lines that `--dry-run` prints at once."""
    jobs = plan.jobs
    names = ", ".join(job.name for job in jobs[:NAMES_SHOWN]) + (", ..." if len(jobs) > NAMES_SHOWN else "")
    counts = Counter(job.config.steps for job in jobs)
    sizes = ", ".join(f"{counted(count, 'run')} of {steps:,} steps" for steps, count in counts.items())
    yield f"{plan.name}: {sizes}; {estimate.steps:,} steps in whole rollouts"
    yield f"Runs: {names}"
    states = Counter(status.state for status in estimate.statuses.values())
    failed = f" ({estimate.failed} of these failed before; --retry tries them again)" if estimate.failed else ""
    yield (
        f"In {root}: {states['finished']} finished, {states['interrupted']} interrupted, {states['waiting']} "
        f"not begun{failed}."
    )
    for analysis, count in Counter(analysis for job in jobs for analysis in job.analyses).items():
        yield f"After training: {analysis} of {counted(count, 'run')}, {estimate.analysed[analysis]} there already."
    if estimate.capacity is None:
        yield f"Time and memory cannot be estimated here: {estimate.why_not}"
        return
    yield (
        f"Each run may need {_bytes(estimate.memory)} of memory; all of them {_bytes(estimate.disk)} of disk "
        f"({_bytes(free_disk(root, held=False))} are free)."
    )


def describe_times(estimate: SweepEstimate) -> Iterator[str]:
    """The lines that `--dry-run` prints when the speeds are measured; rounded, for a probe is no more exact."""
    for groups in alike(estimate.unfinished):
        runs, seconds = sum(group.runs for group in groups), sum(group.seconds for group in groups)
        fastest, slowest = (f"{_two_digits(group.steps_per_s):,.0f}" for group in (groups[0], groups[-1]))
        speed = fastest if fastest == slowest else f"{slowest} to {fastest}"
        yield (
            f"  {', '.join(dict.fromkeys(group.method for group in groups))}: {counted(runs, 'run')}, {speed} steps/s, "
            f"about {roughly(seconds / runs)} each, {roughly(seconds)} in all"
        )
    if estimate.unfinished and estimate.capacity is not None:
        fits = estimate.capacity
        yield f"On this machine, one after another: about {roughly(estimate.seconds)}."
        yield f"{fits.runs} side by side ({fits.reason}): about {roughly(estimate.seconds_side_by_side)}."
    if any(job.config.analyse for job in estimate.jobs):
        yield "The measurements of `analyse` come on top."


def roughly(seconds: float) -> str:
    """A duration with two digits that count."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size or size == 1:
            value = _two_digits(seconds / size)
            return f"{value:,.0f} {unit}" if value >= 10 or size == 1 else f"{value:.1f} {unit}"
    raise AssertionError  # seconds are always left


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _bytes(size: float) -> str:
    return f"{size / 1e12:.1f} TB" if size >= 1e12 else f"{size / 1e9:.1f} GB"

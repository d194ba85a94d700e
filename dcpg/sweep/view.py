"""A sweep at one moment: what the live table, `dcpg sweep status` and its JSON show."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dcpg.analysis.analyse import kept_result
from dcpg.config.schema import ANALYSES, OWN
from dcpg.config.written import parse_written, to_show
from dcpg.errors import BadInput, Unavailable
from dcpg.runs.status import RunStatus, is_running, status_of
from dcpg.storage.files import Unreadable, read_json
from dcpg.sweep.directory import SweepDirectory, check_name
from dcpg.sweep.index import Index, RunHistory
from dcpg.sweep.plan import MAX_RUNS, Job, Plan, expand
from dcpg.text import one_line, printable

SCHEMA = 1  # of sweep.json
MAX_PLAN_SIZE = 64_000_000  # bytes
AWAY_PAUSES = (0.2, 1.0, 3.0)  # seconds before a run that cannot be read is read again
LONGEST_COMMAND = 10_000  # characters
STATUSES = ("done", "running", "waiting", "failed")


@dataclass(frozen=True)
class RunView:
    """One run of a sweep."""

    job: Job
    status: str  # one of STATUSES
    on_disk: RunStatus
    history: RunHistory
    missing: tuple[str, ...] = ()  # analyses that were asked for and are not there, of a run that is done

    def to_json(self) -> dict[str, Any]:
        config, run = self.job.config, self.on_disk
        row = {
            "name": self.job.name, "method": config.method, "game": config.game, "seed": config.seed,
            "status": self.status, "steps": run.steps, "train_return": run.train_return,
            "test_return": run.test_return, "attempts": self.history.attempts,
        }  # fmt: skip
        row |= {"analyses_missing": list(self.missing)} if self.job.analyses else {}
        return row | ({"last_lines": self.failure} if self.status == "failed" else {})

    @property
    def failure(self) -> str:
        """What is wrong with the run's directory, or else the last lines that the run printed."""
        return self.on_disk.note or self.history.last_lines


@dataclass(frozen=True)
class SweepView:
    """All runs of a sweep."""

    runs: tuple[RunView, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of runs of each status."""
        return {status: sum(run.status == status for run in self.runs) for status in STATUSES}

    @cached_property
    def analyses_missing(self) -> int:
        """The number of analyses that runs that are done do not have."""
        return sum(len(run.missing) for run in self.runs)

    @property
    def steps(self) -> int:
        return sum(run.on_disk.steps for run in self.runs)

    @property
    def steps_total(self) -> int:
        return sum(steps_of(run.job) for run in self.runs)

    @property
    def steps_per_s(self) -> float:
        """The speed of all running runs together."""
        return sum(run.on_disk.steps_per_s for run in self.runs if run.status == "running")

    @property
    def seconds_left(self) -> float | None:
        """The time that the runs that have not failed still take at this speed; None while nothing runs."""
        left = sum(steps_of(run.job) - run.on_disk.steps for run in self.runs if run.status in ("running", "waiting"))
        return left / self.steps_per_s if self.steps_per_s > 0 else None if left else 0.0

    def best(self) -> dict[str, list[tuple[str, float, int]]]:
        """For each game, best first: label, mean return on unseen levels, number of finished seeds."""
        found: dict[str, dict[str, list[float]]] = {}
        for run in self.runs:
            if run.status == "done" and run.on_disk.test_return is not None:
                labels = found.setdefault(run.job.config.game.removeprefix(OWN), {})
                labels.setdefault(run.job.label, []).append(run.on_disk.test_return)
        return {
            game: sorted(((label, sum(v) / len(v), len(v)) for label, v in labels.items()), key=lambda row: -row[1])
            for game, labels in sorted(found.items())
        }

    def to_json(self) -> dict[str, Any]:
        return {
            **self.counts,
            "steps": self.steps,
            "steps_total": self.steps_total,
            "steps_per_s": self.steps_per_s,
            "seconds_left": self.seconds_left,
            "analyses_missing": self.analyses_missing,
            "runs": [run.to_json() for run in self.runs],
        }


def format_return(value: float | None) -> str:
    """A return for messages, or a dash before the first evaluation."""
    return "-" if value is None else f"{value:.2f}"


def steps_of(job: Job) -> int:
    """The steps of a run, rounded down to whole rollouts."""
    return job.config.rollouts * job.config.rollout_size


def view(
    plan: Plan,
    index: Index,
    statuses: Mapping[str, RunStatus],
    running: Callable[[str], bool],
    missing: Mapping[str, tuple[str, ...]],
) -> SweepView:
    """The sweep as it stands; `running` is asked only about runs that are neither done nor failed."""
    runs = []
    for job in plan.jobs:
        on_disk, history = statuses[job.name], index[job.name]
        if on_disk.state == "finished":
            status = "done"
        elif history.failed or on_disk.state == "damaged":
            status = "failed"
        else:
            status = "running" if running(job.name) else "waiting"
        runs.append(RunView(job, status, on_disk, history, missing.get(job.name, ())))
    return SweepView(tuple(runs))


def driver_of(root: Path) -> tuple[bool, str]:
    """Whether a driver works on a sweep, and the command that its last driver was started with; empty if unknown."""
    try:
        command = read_json(SweepDirectory(root).plan, MAX_PLAN_SIZE).get("command")
    except (OSError, ValueError, AttributeError):
        command = None
    found = _sweep_command(command, root) if isinstance(command, str) else ""
    return is_running(root), found  # the lock is as that of a run


def _sweep_command(recorded: str, root: Path) -> str:
    """A recorded command, which may be anybody's, as one call of `dcpg sweep` with all else quoted; else empty.

    It names the directory where the sweep lies now, which may have been moved or copied.
    """
    try:
        words = shlex.split(one_line(recorded)) if len(recorded) <= LONGEST_COMMAND else []
    except ValueError:
        return ""
    if words[:2] != ["dcpg", "sweep"]:
        return ""
    if "--out" in words[:-1]:
        at = words.index("--out")
        del words[at : at + 2]
    return shlex.join([*words, "--out", str(root)])


def view_directory(root: Path) -> tuple[Plan, SweepView]:
    """A sweep from its directory, while its driver works or long after. Writes nothing."""
    directory = SweepDirectory(root)
    plan = read_plan(directory)
    index = Index(directory.index, writable=False)
    found = statuses(plan, directory)
    missing = missing_analyses(plan.jobs, found, directory)
    return plan, view(plan, index, found, lambda name: is_running(directory.run(name)), missing)


def missing_analyses(
    jobs: Iterable[Job], statuses: Mapping[str, RunStatus], directory: SweepDirectory
) -> dict[str, tuple[str, ...]]:
    """Of runs that are done, the analyses that were asked for and are not there, as far as can be read now."""

    def is_kept(job: Job, name: str) -> bool:
        try:
            return kept_result(directory.run(job.name), name, {}) is not None
        except (BadInput, OSError):
            return False

    return {
        job.name: tuple(name for name in job.analyses if not is_kept(job, name))
        for job in jobs
        if job.analyses and statuses[job.name].state == "finished"
    }


def statuses(plan: Plan, directory: SweepDirectory) -> dict[str, RunStatus]:
    """The status of every run, by its name; BadInput if a directory holds another run or stays unavailable."""

    def status(job: Job) -> RunStatus:
        path, maker = directory.run(job.name), job.own.maker if job.own is not None else None
        for pause in AWAY_PAUSES:
            with contextlib.suppress(Unavailable):
                return status_of(job.config, path, maker)
            time.sleep(pause)
        return status_of(job.config, path, maker)

    return {job.name: status(job) for job in plan.jobs}


def plan_json(plan: Plan) -> dict[str, Any]:
    """The content of sweep.json: the sweep as it was read, and the names of its runs.

    With code from outside of the package also every configuration, so that `dcpg sweep status` needs no such code.
    """
    found = {"schema": SCHEMA, "name": plan.name, "sweep": plan.source, "runs": [job.name for job in plan.jobs]}
    if plan.plugins or any(job.own is not None for job in plan.jobs):
        found["jobs"] = [
            {"label": job.label, "config": to_show(job.config), "analyses": list(job.analyses)} for job in plan.jobs
        ]
    return found


def read_plan(directory: SweepDirectory) -> Plan:
    """The plan in a sweep's directory."""
    directory.check_own()
    try:
        plain = read_json(directory.plan, MAX_PLAN_SIZE)
        name, source, runs = plain["name"], plain["sweep"], plain["runs"]
        known = plain["schema"] == SCHEMA and isinstance(name, str) and isinstance(source, dict)
    except FileNotFoundError:
        raise BadInput(f"{directory.root} holds no sweep: sweep.json is missing.") from None
    except Unreadable as error:
        raise BadInput(f"{directory.plan} cannot be read ({error}).") from None
    except (TypeError, KeyError) as error:
        raise BadInput(f"{directory.plan} cannot be read ({type(error).__name__}: {error}).") from None
    if not known or not isinstance(runs, list) or len(runs) > MAX_RUNS:
        raise BadInput(f"{directory.plan} is not a sweep that this program knows, of at most {MAX_RUNS:,} runs.")
    if "jobs" in plain:
        return Plan(name, source, tuple(_recorded_jobs(plain["jobs"], runs, directory)))
    if "envs" in source:  # would be imported to expand it
        raise BadInput(
            f"{directory.plan} names environments without their runs; start the sweep again to write it anew."
        )
    plan = expand(name, source, directory.plan)
    if [job.name for job in plan.jobs] != runs:
        raise BadInput(
            f"{directory.plan} does not name the runs that it describes; start the sweep again to write it anew."
        )
    return plan


def _recorded_jobs(plain: Any, names: Any, directory: SweepDirectory) -> Iterator[Job]:
    """The runs of a sweep with code from outside, as they are written down; nothing is imported."""
    try:
        for name, job in zip(names, plain, strict=True):
            config = parse_written(job["config"], directory.plan, code=False).config
            analyses = tuple(one for one in job.get("analyses", []) if one in ANALYSES)
            yield Job(check_name(name), config, printable(job["label"]), analyses=analyses)
    except (TypeError, KeyError, ValueError) as error:
        raise BadInput(f"{directory.plan} cannot be read ({type(error).__name__}: {error}).") from None

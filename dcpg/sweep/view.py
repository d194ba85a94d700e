"""A sweep at one moment: what the table, `dcpg sweep status` and its JSON show."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dcpg.errors import BadInput
from dcpg.runs.status import Standing, look, runs_now
from dcpg.storage.files import read_regular
from dcpg.sweep.directory import Layout
from dcpg.sweep.index import Index, Tally
from dcpg.sweep.plan import Job, Plan, expand

SCHEMA = 1


MOST_PLAN = 64_000_000  # bytes


STATUSES = ("done", "running", "waiting", "failed")


@dataclass(frozen=True)
class RunView:
    """One run."""

    job: Job
    status: str  # one of STATUSES
    standing: Standing
    tally: Tally

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        c, s = self.job.config, self.standing
        row = {
            "name": self.job.name, "method": c.method, "game": c.game, "seed": c.seed, "status": self.status,
            "steps": s.steps, "train_return": s.train_return, "test_return": s.test_return,
            "attempts": self.tally.attempts,
        }  # fmt: skip
        return row | ({"last_lines": self.why} if self.status == "failed" else {})

    @property
    def why(self) -> str:
        """What it said last, or what is wrong with its directory."""
        return self.standing.note or self.tally.last_lines


@dataclass(frozen=True)
class View:
    """All of them."""

    runs: tuple[RunView, ...]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Runs of each status."""
        return {status: sum(run.status == status for run in self.runs) for status in STATUSES}

    @property
    def steps(self) -> int:
        """Made so far."""
        return sum(run.standing.steps for run in self.runs)

    @property
    def steps_total(self) -> int:
        """Of whole rollouts."""
        return sum(steps_of(run.job) for run in self.runs)

    @property
    def steps_per_s(self) -> float:
        """Of all that run now together."""
        return sum(run.standing.steps_per_s for run in self.runs if run.status == "running")

    @property
    def seconds_left(self) -> float | None:
        """At this speed, for all that have not failed; None while nothing moves."""
        left = sum(steps_of(run.job) - run.standing.steps for run in self.runs if run.status in ("running", "waiting"))
        return left / self.steps_per_s if self.steps_per_s > 0 else None if left else 0.0

    def best(self) -> dict[str, list[tuple[str, float, int]]]:
        """For each game, best first: a label, its mean return on unseen levels, and over how many finished seeds."""
        found: dict[str, dict[str, list[float]]] = {}
        for run in self.runs:
            if run.status == "done" and run.standing.test_return is not None:
                labels = found.setdefault(run.job.config.game, {})
                labels.setdefault(run.job.label, []).append(run.standing.test_return)
        return {
            game: sorted(((label, sum(v) / len(v), len(v)) for label, v in labels.items()), key=lambda row: -row[1])
            for game, labels in sorted(found.items())
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **self.counts,
            "steps": self.steps,
            "steps_total": self.steps_total,
            "steps_per_s": self.steps_per_s,
            "seconds_left": self.seconds_left,
            "runs": [run.to_json() for run in self.runs],
        }


def steps_of(job: Job) -> int:
    """Steps of a run, floored to whole rollouts."""
    return job.config.rollouts * job.config.rollout_size


def view(plan: Plan, index: Index, standings: Mapping[str, Standing], running: Callable[[str], bool]) -> View:
    """The sweep as it stands; `running` is asked only about runs that may be."""
    rows = []
    for job in plan.jobs:
        standing, tally = standings[job.name], index[job.name]
        if standing.status == "finished":
            status = "done"
        elif tally.failed or standing.status == "damaged":
            status = "failed"
        else:
            status = "running" if running(job.name) else "waiting"
        rows.append(RunView(job, status, standing, tally))
    return View(tuple(rows))


def from_directory(root: Path) -> tuple[Plan, View]:
    """A sweep from its directory, while its driver works or long after. Writes nothing."""
    layout = Layout(root)
    plan = read_plan(layout)
    standings = {job.name: look(job.config, layout.run(job.name)) for job in plan.jobs}
    index = Index(layout.index, writable=False)
    return plan, view(plan, index, standings, lambda name: runs_now(layout.run(name) / "lock"))


def plan_json(plan: Plan) -> dict[str, Any]:
    """What sweep.json holds: the sweep as it was read, and the names of its runs."""
    return {"schema": SCHEMA, "name": plan.name, "sweep": plan.source, "runs": [job.name for job in plan.jobs]}


def read_plan(layout: Layout) -> Plan:
    """The plan of a sweep's directory."""
    try:
        plain = json.loads(read_regular(layout.plan, MOST_PLAN))
        name, source, runs = plain["name"], plain["sweep"], plain["runs"]
        known = plain["schema"] == SCHEMA and isinstance(name, str) and isinstance(source, dict)
    except FileNotFoundError:
        raise BadInput(f"{layout.root} holds no sweep: sweep.json is missing.") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"{layout.plan} cannot be read ({type(error).__name__}: {error}).") from None
    if not known:
        raise BadInput(f"{layout.plan} is not a sweep that this program knows.")
    plan = expand(name, source, layout.plan)
    if [job.name for job in plan.jobs] != runs:
        raise BadInput(f"{layout.plan} does not name the runs that it means; start the sweep again to write it anew.")
    return plan

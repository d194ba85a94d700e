"""The driver of a sweep: gives its runs to an engine until each is done or given up.

It may die at any moment and be started again: who is done is read from the run directories, and how often a run has
failed from the index.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dcpg.errors import BadInput, Stopped, StorageFailed, SweepIncomplete
from dcpg.runs.status import Standing, look, runs_now
from dcpg.storage.files import dump, write_atomic
from dcpg.storage.lock import Lock
from dcpg.sweep.attempt import Order, Outcome
from dcpg.sweep.directory import Layout
from dcpg.sweep.engine import Engine
from dcpg.sweep.index import Index
from dcpg.sweep.plan import Job, Plan
from dcpg.sweep.view import View, plan_json, view
from dcpg.training.stop import StopSignals, Watchdog

LOOK = 1.0  # seconds between two looks at the runs


PAUSE = 5.0  # seconds before a run that failed is tried again, times its failures in a row


REFUSED = 3  # different runs in a row that cannot begin or be written to: then it is not the runs' fault


NAMED = 10  # failed runs that the last sentence names


class Show(Protocol):
    """Who tells people."""

    def begin(self, plan: Plan, where: str) -> None:
        """Work begins; where, in words."""

    def update(self, now: View) -> None:
        """How things stand; called often."""

    def say(self, text: str) -> None:
        """Something happened."""

    def close(self) -> None:
        """No more."""


class Driver:
    """One sweep in one directory."""

    def __init__(self, plan: Plan, root: Path, show: Show) -> None:
        self.plan, self.layout, self.show = plan, Layout(root.absolute()), show
        self.jobs = {job.name: job for job in plan.jobs}
        self.signals = StopSignals()
        self.standings: dict[str, Standing] = {}
        self.submitted: set[str] = set()
        self.started: set[str] = set()  # of those, whose attempt is in the index
        self.later: dict[str, float] = {}  # runs that failed -> when they are tried again
        self.refused: dict[str, str] = {}  # of the last outcomes in a row: runs that could not begin or be written

    def run(self, make_engine: Callable[[Sequence[Job]], Engine], again: str, retry: bool = False) -> View:
        """All of it. `again` is the command that goes on with it; `retry` gives failed runs another chance."""
        try:
            self.layout.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"{self.layout.root} cannot be written to ({error.strerror}); choose another --out."
            ) from None
        lock = Lock(self.layout.lock)
        lock.acquire()
        try:
            with self.signals, Watchdog(lock, math.inf):
                self._scan()
                self._prepare(retry)
                todo = [job for job in self.plan.jobs if self._to_do(job.name)]
                try:
                    if todo:
                        self._carry_out(todo, make_engine)
                finally:
                    self.index.close()
            return self._conclude(again)
        finally:
            lock.release()

    def _scan(self) -> None:
        """Where every run stands; one that is not this sweep's is refused."""
        self.standings = {name: look(job.config, self.layout.run(name)) for name, job in self.jobs.items()}

    def _prepare(self, retry: bool) -> None:
        try:
            write_atomic(self.layout.plan, dump(plan_json(self.plan)))
            self.index = Index(self.layout.index)
            self.index.reconcile({name: s.status == "finished" for name, s in self.standings.items()})
        except OSError as error:
            raise StorageFailed(f"{self.layout.root} cannot be written to ({error}).") from None
        for name in self.jobs:
            tally = self.index[name]
            if retry and tally.failed:
                self.index.append(name, "retry")
            elif tally.hopeless and not tally.failed and not tally.finished:  # the driver died before it said so
                self._give_up(name)

    def _to_do(self, name: str) -> bool:
        return self.standings[name].status in ("waiting", "interrupted") and not self.index[name].failed

    @property
    def _stopping(self) -> str:
        """Why no run is begun any more; empty if runs are."""
        return self.signals.asked or (f"{REFUSED} runs in a row were refused" if len(self.refused) >= REFUSED else "")

    def _carry_out(self, todo: Sequence[Job], make_engine: Callable[[Sequence[Job]], Engine]) -> None:
        engine = make_engine(todo)
        try:
            self.show.begin(self.plan, engine.describe())
            for job in todo:
                self._submit(engine, job.name)
            asked, next_look = False, 0.0
            while self.submitted or self.later:
                if self._stopping and not asked:
                    asked = True
                    self.show.say(f"{self._stopping}: the runs are saved now; a second Ctrl-C ends at once.")
                    engine.stop()
                    self.later.clear()
                for outcome in engine.wait(LOOK / 4):
                    self._ended(outcome)
                for name in [name for name, when in self.later.items() if time.monotonic() >= when]:
                    del self.later[name]
                    self._submit(engine, name)
                if (began := time.monotonic()) > next_look:
                    self.show.update(self._look())
                    took = time.monotonic() - began  # long on slow storage with thousands of runs
                    next_look = time.monotonic() + max(LOOK, 10 * took)
            self.show.update(self._look())
        finally:
            engine.close()
            self.show.close()

    def _submit(self, engine: Engine, name: str) -> None:
        self.submitted.add(name)
        engine.submit(Order(str(self.layout.root), name, self.jobs[name].config.to_json()))

    def _look(self) -> View:
        """How things stand. The engine begins attempts on its own; they are noted here when they are seen."""
        running = {name for name in self.submitted if runs_now(self.layout.run(name) / "lock")}
        for name in running:
            self._note_start(name)
            self.standings[name] = self._standing(name)
        return view(self.plan, self.index, self.standings, running.__contains__)

    def _standing(self, name: str) -> Standing:
        """Where a run stands, or stood when that could last be told: storage may fail for a moment."""
        try:
            return look(self.jobs[name].config, self.layout.run(name))
        except (BadInput, OSError) as error:  # the directory was in order when the sweep began
            self.show.say(f"{name}: {error}")
            return self.standings[name]

    def _note_start(self, name: str) -> None:
        if name not in self.started:
            self.started.add(name)
            self.index.append(name, "started")

    def _ended(self, outcome: Outcome) -> None:
        name, code = outcome.name, outcome.code
        if name not in self.submitted:
            return
        self.submitted.remove(name)
        standing = self.standings[name] = self._standing(name)
        if name not in self.started and self._stopping and code == Stopped.exit_code:
            return  # it never began
        self._note_start(name)
        self.started.remove(name)
        facts = {"code": code, "node": outcome.node, "place": standing.place}
        self.index.append(name, "ended", **facts, last_lines="" if code in (0, 75) else outcome.last_lines)
        tally = self.index[name]
        if code in (BadInput.exit_code, StorageFailed.exit_code) and tally.failures:
            self.refused[name] = outcome.last_lines.strip().rsplit("\n", 1)[-1]
        elif not self._stopping:
            self.refused.clear()
        if standing.status == "finished":
            self.index.append(name, "finished", **facts)
            self.show.say(f"{name} is done: return on unseen levels {_text(standing.test_return)}.")
        elif tally.hopeless:
            self._give_up(name)
        elif standing.status == "damaged":
            self.show.say(f"{name} cannot go on: {standing.note}")
        elif not self._stopping:
            if code != Stopped.exit_code:
                self.show.say(f"{name} {_how(code)} and is tried again{_count(tally.failures)}.")
            self.later[name] = time.monotonic() + PAUSE * tally.failures

    def _give_up(self, name: str) -> None:
        tally = self.index[name]
        self.index.append(name, "failed", code=tally.code, place=tally.place, last_lines=tally.last_lines)
        self.show.say(f"{name} is given up: {tally.hopeless}. Log: {self.layout.log(name)}")

    def _conclude(self, again: str) -> View:
        now = view(self.plan, self.index, self.standings, lambda name: False)
        done, failed = now.counts["done"], now.counts["failed"]
        said = f"{done} of {len(self.jobs)} runs are done"
        if self.signals.asked and now.counts["waiting"]:
            raise Stopped(f"Stopped by {self.signals.asked}, and the runs are saved; {said}. Go on with: {again}")
        if len(self.refused) >= REFUSED:
            raise SweepIncomplete(
                f"{REFUSED} runs in a row could not begin or could not be written, so the sweep stopped; {said}. The "
                f"last one said: {list(self.refused.values())[-1]} When the cause is gone: {again}"
            )
        if failed:
            names = [run.job.name for run in now.runs if run.status == "failed"]
            more = f" and {failed - NAMED} more" if failed > NAMED else ""
            raise SweepIncomplete(
                f"{said}, {failed} failed: {', '.join(names[:NAMED])}{more}. Their last lines are in "
                f"{self.layout.index}, their logs in {self.layout.root / 'logs'}; when the cause is gone: "
                f"{again} --retry"
            )
        return now


def _how(code: int | None) -> str:
    if code is None:
        return "lost its worker"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _count(failures: int) -> str:
    return f" ({failures} without progress)" if failures else ""


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

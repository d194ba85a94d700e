"""The driver of a sweep: hands its runs to an engine until each has finished or is given up.

It may be killed at any moment and started again: which runs have finished is read from the run directories, and how
often a run has failed from the index.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from dcpg.config.automatic import as_in
from dcpg.config.schema import OWN, Config, Machine
from dcpg.config.written import check_plugins, read_written, warn_of_plugins
from dcpg.envs.library import library
from dcpg.errors import BadInput, DcpgError, Stopped, StorageFailed, SweepIncomplete
from dcpg.extras import need
from dcpg.machine.automatic import settled
from dcpg.methods.plugins import to_send
from dcpg.runs.status import RunStatus, is_running, status_of
from dcpg.storage.files import dump, own_folder, write_atomic
from dcpg.storage.lock import Lock
from dcpg.storage.rows import Event
from dcpg.storage.rundir import RunDirectory
from dcpg.sweep.attempt import Attempt, Outcome
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.engine import Engine
from dcpg.sweep.index import MAX_LOST, Index, RunHistory
from dcpg.sweep.plan import Job, Plan
from dcpg.sweep.view import SweepView, format_return, missing_analyses, plan_json, statuses, view
from dcpg.text import counted, option, printable
from dcpg.training.stop import StopSignals, Watchdog

REFRESH_SECONDS = 1.0  # between two looks at the runs
RETRY_SECONDS = 5.0  # before a run that failed is tried again, times its failures in a row
MAX_REFUSED = 3  # different runs in a row that cannot start or be written: then the cause is not in the runs
NAMES_SHOWN = 10  # of failed runs in the last message


class SweepObserver(Protocol):
    """Displays the progress of a sweep."""

    def start(self, plan: Plan, where: str) -> None:
        """The engine is ready; `where` describes it."""

    def update(self, now: SweepView) -> None:
        """Called about once per second."""

    def message(self, text: str) -> None:
        """A sentence about something that happened."""

    def close(self) -> None: ...


class SilentSweepObserver:
    """For calls from Python: the progress is not displayed."""

    def start(self, plan: Plan, where: str) -> None: ...

    def update(self, now: SweepView) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


def check_tools(jobs: Sequence[Job], engine: str) -> None:
    """Refuse a sweep of which no run could start here, before anything is written."""
    for method, encoder in dict.fromkeys((job.config.method, job.config.network.encoder) for job in jobs):
        to_send(method, encoder)  # refuses what other processes cannot load
    if engine == "ray":
        need("ray", "--engine ray")
    elif any(not job.config.game.startswith(OWN) for job in jobs):
        _ = library().loaded
    if any(job.analyses for job in jobs):
        need("report", "analyse_after", "matplotlib")
    if any(job.config.wandb for job in jobs):
        need("wandb", "wandb=true")


class Driver:
    """Carries out one sweep in one directory."""

    def __init__(self, plan: Plan, root: Path, observer: SweepObserver) -> None:
        self.plan, self.directory, self.observer = plan, SweepDirectory(root.absolute()), observer
        self.jobs = {job.name: job for job in plan.jobs}
        self.signals = StopSignals()
        self.statuses: dict[str, RunStatus] = {}
        self.submitted: set[str] = set()
        self.started: set[str] = set()  # of the submitted runs, those whose attempt is in the index as started
        self.missing: dict[str, tuple[str, ...]] = {}  # runs that are done -> analyses that are not there
        self.only_analysed: set[str] = set()  # of the submitted runs, those that were done before
        self.not_analysed: dict[str, str] = {}  # runs whose analyses failed -> why
        self.analyses_lost: Counter[str] = Counter()  # runs -> how often their worker or storage was lost meanwhile
        self.retry_at: dict[str, float] = {}  # runs that failed -> when they are tried again
        self.broken: DcpgError | None = None  # why the engine can start no further run
        self.refused: dict[str, str] = {}  # runs of the last outcomes in a row that could not start or be written

    def run(
        self, make_engine: Callable[[Sequence[Job]], Engine], resume_command: str, retry: bool = False
    ) -> SweepView:
        """Carry out the sweep. `resume_command` is for messages; `retry` also tries runs again that were given up."""
        try:
            self.directory.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"{self.directory.root} cannot be written to ({error.strerror}); choose another {option('out')}."
            ) from None
        self.directory.check_own()
        lock = Lock(self.directory.lock)
        lock.acquire()
        try:
            with self.signals, Watchdog(lock, math.inf):
                self.statuses = statuses(self.plan, self.directory)
                self.missing = missing_analyses(self.plan.jobs, self.statuses, self.directory)
                self._prepare(retry, resume_command)
                self._settle()
                todo = [job for job in self.jobs.values() if self._to_do(job.name)]
                try:
                    if todo:
                        self._run_all(todo, make_engine)
                finally:
                    self.index.close()
            return self._conclude(resume_command)
        finally:
            lock.release()

    def _prepare(self, retry: bool, resume_command: str) -> None:
        try:
            write_atomic(self.directory.plan, dump(plan_json(self.plan) | {"command": resume_command}))
            own_folder(self.directory.runs)
            self.index = Index(self.directory.index)
            self.index.reconcile({name: status.state == "finished" for name, status in self.statuses.items()})
        except OSError as error:
            raise StorageFailed(f"{self.directory.root} cannot be written to ({error}).") from None
        for name in self.jobs:
            history = self.index[name]
            if retry and history.failed:
                self.index.append(Event(run=name, event="retry"))
            elif history.reason_to_give_up and not history.failed and not history.finished:
                self._give_up(name)  # the last driver was killed before it could

    def _settle(self) -> None:
        """Resolve what is automatic: a run that exists keeps what it has, and seeds and games that follow get the same.

        Others get the device and precision of a run for which the plan left the same to be resolved, or this machine's.
        """
        same, alike, related = dict[str, Machine](), dict[Any, Machine](), dict[Any, Machine]()
        extended = 0
        for name, job in self.jobs.items():
            if self.statuses[name].state in ("interrupted", "finished"):
                there = read_written(RunDirectory(self.directory.run(name)))
                if self.statuses[name].state == "interrupted":
                    check_plugins(there, f"{name} cannot be continued")
                else:
                    warn_of_plugins(there)
                own = job.own.maker if job.own is not None else None
                if own is not None and there.environment is not None and there.environment.changed(own):
                    self.observer.message(
                        f"{name} was trained on {printable(own.id)} as it was then; it has been changed since, and "
                        "runs that train now use it as it is. Reports name such runs."
                    )
                extended += there.config.steps < job.config.steps
                same[name] = machine = there.config.machine
                alike.setdefault((job.label, job.config.steps), machine)
                related.setdefault((job.config.machine, job.config.preset), replace(machine, chunk=0))

        if extended:
            text = f"{counted(extended, 'run')} of fewer steps will go on to the sweep's number of steps."
            self.observer.message(text)

        def resolved(job: Job) -> Config:
            config = job.config
            machine = (
                same.get(job.name)
                or alike.get((job.label, config.steps))
                or related.get((config.machine, config.preset))
            )
            return as_in(config, machine) if machine is not None else config

        self.jobs = {name: replace(job, config=settled(resolved(job), job.spaces)) for name, job in self.jobs.items()}

    def _to_do(self, name: str) -> bool:
        if self.statuses[name].state == "finished":
            return bool(self.missing.get(name))
        return self.statuses[name].state != "damaged" and not self.index[name].failed

    @property
    def _stopping(self) -> str:
        """Why no further run is started; empty while runs are."""
        refused = f"{MAX_REFUSED} runs in a row were refused" if len(self.refused) >= MAX_REFUSED else ""
        return self.signals.asked or refused or ("No further run can start" if self.broken is not None else "")

    def _run_all(self, todo: Sequence[Job], make_engine: Callable[[Sequence[Job]], Engine]) -> None:
        engine = make_engine(todo)
        try:
            self.observer.start(self.plan, engine.describe())
            for job in todo:
                self._submit(engine, job.name)
            stopped, next_refresh = False, 0.0
            while self.submitted or self.retry_at:
                if self._stopping and not stopped:
                    stopped = True
                    self.observer.message(f"{self._stopping}: saving the runs; a second Ctrl-C ends at once.")
                    engine.stop()
                    self.retry_at.clear()
                for outcome in self._wait(engine):
                    self._note_end(outcome)
                for name in [name for name, when in self.retry_at.items() if time.monotonic() >= when]:
                    del self.retry_at[name]
                    self._submit(engine, name)
                if (began := time.monotonic()) > next_refresh:
                    self.observer.update(self._refresh())
                    took = time.monotonic() - began  # long on slow storage with thousands of runs
                    next_refresh = time.monotonic() + max(REFRESH_SECONDS, 10 * took)
            self.observer.update(self._refresh())
        finally:
            engine.close()
            self.observer.close()

    def _wait(self, engine: Engine) -> list[Outcome]:
        """The next outcomes. An engine that fails is asked to stop, so that the other runs are saved."""
        try:
            return engine.wait(REFRESH_SECONDS / 4)
        except DcpgError as error:
            if self.broken is not None:
                raise
            self.broken = error
            return []

    def _submit(self, engine: Engine, name: str) -> None:
        self.submitted.add(name)
        job = self.jobs[name]
        plugins = to_send(job.config.method, job.config.network.encoder)
        sent = job.own.sent if job.own is not None else None
        trained = self.statuses[name].state == "finished"
        if trained:
            self.only_analysed.add(name)
        root, config, analyses = str(self.directory.root), job.config.to_json(), list(job.analyses)
        engine.submit(Attempt(root, name, config, plugins, sent, analyses, train=not trained))

    def _refresh(self) -> SweepView:
        """Read the status of the running runs; attempts that the engine has started since are noted in the index."""
        trained = self.submitted - self.only_analysed
        running = {name for name in trained if is_running(self.directory.run(name))}
        for name in running:
            self._note_start(name)
        for name in running | (self.started & trained):  # one that is not running may be trained, and is analysed now
            self.statuses[name] = self._read_status(name)
        return view(self.plan, self.index, self.statuses, running.__contains__, self.missing)

    def _read_status(self, name: str) -> RunStatus:
        """The status of a run, or the last one known: storage may fail for a moment."""
        try:
            return status_of(self.jobs[name].config, self.directory.run(name))
        except (BadInput, OSError) as error:  # the directory was in order when the sweep started
            self.observer.message(f"{name}: {error}")
            return self.statuses[name]

    def _note_start(self, name: str) -> None:
        if name not in self.started:
            self.started.add(name)
            self.index.append(Event(run=name, event="started"))

    def _note_end(self, outcome: Outcome) -> None:
        name, code = outcome.name, outcome.code
        if name not in self.submitted:
            return
        self.submitted.remove(name)
        if name in self.only_analysed:
            self.only_analysed.remove(name)
            self._note_analyses(outcome)
            return
        status = self.statuses[name] = self._read_status(name)
        if name not in self.started and self._stopping and code == Stopped.exit_code:
            return  # it had not started
        self._note_start(name)
        self.started.remove(name)
        node, place, lines = (
            outcome.node,
            status.checkpoint,
            "" if code in (0, Stopped.exit_code) else outcome.last_lines,
        )
        self.index.append(Event(run=name, event="ended", code=code, node=node, place=place, last_lines=lines))
        history = self.index[name]
        if code in (BadInput.exit_code, StorageFailed.exit_code) and history.failures:
            self.refused[name] = outcome.last_lines.strip().rsplit("\n", 1)[-1]
        elif not self._stopping:
            self.refused.clear()
        if status.state == "finished":
            self.index.append(Event(run=name, event="finished", code=code, node=node, place=place))
            self.observer.message(f"{name} is done: return on unseen levels {format_return(status.test_return)}.")
            self._note_analyses(outcome)
        elif history.reason_to_give_up:
            self._give_up(name)
        elif status.state == "damaged":
            self.observer.message(f"{name} cannot go on: {status.note}")
        elif not self._stopping:
            if code != Stopped.exit_code:
                failures = f" ({history.failures} without progress)" if history.failures else ""
                self.observer.message(f"{name} {_describe_end(code)} and is tried again{failures}.")
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS * _patience(history, code)

    def _note_analyses(self, outcome: Outcome) -> None:
        """Say if analyses of a run that is done are missing: the run counts as done all the same."""
        name = outcome.name
        job = self.jobs[name]
        self.missing |= missing_analyses([job], self.statuses, self.directory)
        missing = ", ".join(self.missing.get(name, ()))
        if missing and outcome.code is None and not self._stopping and self.analyses_lost[name] < MAX_LOST:
            self.analyses_lost[name] += 1
            self.observer.message(f"{name} {_describe_end(None)} before its analyses were made; they are tried again.")
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS * _waits(self.analyses_lost[name])
        elif missing and not (self._stopping and outcome.code == Stopped.exit_code):
            self.not_analysed[name] = outcome.last_lines.strip().rsplit("\n", 1)[-1] or _describe_end(outcome.code)
            self.observer.message(f"{name} has no {missing} yet ({self.not_analysed[name]})")
        elif job.analyses and not missing:
            self.observer.message(f"{name} is analysed: {', '.join(job.analyses)}.")

    def _give_up(self, name: str) -> None:
        history = self.index[name]
        code, place, lines = history.code, history.checkpoint, history.last_lines
        self.index.append(Event(run=name, event="failed", code=code, place=place, last_lines=lines))
        self.observer.message(f"{name} is given up: {history.reason_to_give_up}. Log: {self.directory.log(name)}")

    def _check_still_there(self) -> None:
        """Do not call runs done that are no longer where they were written: the directory may have been moved."""
        if not self.directory.runs.is_dir():
            raise StorageFailed(
                f"{self.directory.runs} is not there any more: was it moved, or is its disk away? What the runs have "
                "saved is where they are; start the sweep again there."
            )
        done = [name for name, status in self.statuses.items() if status.state == "finished"]
        gone = [name for name in done if self._read_status(name).state != "finished"]
        if gone:
            raise StorageFailed(
                f"{counted(len(gone), 'run')} that {'was' if len(gone) == 1 else 'were'} done cannot be found in "
                f"{self.directory.runs} any more, such as {gone[0]}: was it moved, or is its disk away? Start "
                "the sweep again where its runs are; nothing is repeated."
            )

    def _conclude(self, resume_command: str) -> SweepView:
        if self.broken is not None and not self.signals.asked:
            raise self.broken
        self.missing |= missing_analyses([self.jobs[name] for name in self.not_analysed], self.statuses, self.directory)
        self.not_analysed = {name: why for name, why in self.not_analysed.items() if self.missing[name]}
        self._check_still_there()
        now = view(self.plan, self.index, self.statuses, lambda name: False, self.missing)
        done, failed = now.counts["done"], now.counts["failed"]
        progress = f"{done} of {counted(len(self.jobs), 'run')} {'is' if len(self.jobs) == 1 else 'are'} done"
        unanalysed = now.analyses_missing - sum(len(self.missing[name]) for name in self.not_analysed)
        if self.signals.asked and (now.counts["waiting"] or unanalysed):
            raise Stopped(
                f"Stopped by {self.signals.asked}, and the runs are saved; {progress}. Go on with: {resume_command}"
            )
        if len(self.refused) >= MAX_REFUSED:
            raise SweepIncomplete(
                f"{MAX_REFUSED} runs in a row could not begin or could not be written, so the sweep stopped; "
                f"{progress}. The last one said: {list(self.refused.values())[-1]} When the cause is gone: "
                f"{resume_command}"
            )
        if failed:
            names = [run.job.name for run in now.runs if run.status == "failed"]
            more = f" and {failed - NAMES_SHOWN} more" if failed > NAMES_SHOWN else ""
            raise SweepIncomplete(
                f"{progress}, {failed} failed: {', '.join(names[:NAMES_SHOWN])}{more}. Their last lines are in "
                f"{self.directory.index}, their logs in {self.directory.logs}; when the cause is gone: "
                f"{resume_command} --retry"
            )
        if now.analyses_missing:
            name, reason = list(self.not_analysed.items())[-1]
            raise SweepIncomplete(
                f"{progress}, but {counted(now.analyses_missing, 'analysis')} of them could not be made; of {name}: "
                f"{reason} When the cause is gone: {resume_command}"
            )
        return now


def _patience(history: RunHistory, code: int | None) -> int:
    """How long to wait before a run is tried again; longer and longer while nodes or their storage are away."""
    return _waits(history.lost) if code in (None, 0) and history.lost else history.failures


def _waits(lost: int) -> int:
    return min(1 << (lost - 1), 60)


def _describe_end(code: int | None) -> str:
    if code is None:
        return "lost its worker or its storage"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

"""A small sweep, run directories as real runs leave them, and an engine in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from dcpg.config.schema import SCHEMA
from dcpg.errors import Stopped, StorageFailed, SweepIncomplete
from dcpg.storage.files import dump
from dcpg.storage.rows import Evaluation, Event, Split, Summary, Timing
from dcpg.sweep.attempt import Attempt, Outcome
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.driver import Driver
from dcpg.sweep.index import FIRST_CHECKPOINT, Index
from dcpg.sweep.plan import Job, Plan, expand
from dcpg.sweep.view import SweepView, steps_of

TINY = {"methods": ["ppo", "dcpg"], "games": "starpilot", "seeds": 2, "preset": "tiny", "steps": 512}
NAMES = ["starpilot-ppo-0", "starpilot-dcpg-0", "starpilot-ppo-1", "starpilot-dcpg-1"]


def planned(**changes: Any) -> Plan:
    return expand("small", {**TINY, **changes}, "small.toml")


def place(steps: int, minibatch: int = 0) -> str:
    """The name of a checkpoint."""
    return f"{steps:012d}-00.000.{minibatch:06d}-00001"


def evaluation(steps: int, train: float, test: float, episodes: int = 1) -> bytes:
    """A row of eval.jsonl."""
    splits = {name: split(mean, episodes) for name, mean in (("train", train), ("test", test))}
    return dump(Evaluation(k=steps // 128, rollout=steps // 128, steps=steps, splits=splits).plain())


def split(mean: float, episodes: int = 1) -> Split:
    """Episodes that all have the same return."""
    values = {"predicted_value": 1.0, "true_value": 2.25, "true_value_own_gamma": 2.25}
    return Split(mean=mean, returns=[mean] * episodes, levels=[0] * episodes, **values)


def timing(steps: int, steps_per_s: float) -> bytes:
    """A row of timing.jsonl."""
    return dump(Timing(steps=steps, steps_per_s=steps_per_s, seconds={"collect": 1.5}).plain())


def summary(job: Job, status: Literal["running", "stopped", "finished"], steps: int) -> bytes:
    """The content of summary.json."""
    config = job.config
    names = {"method": config.method, "game": config.game, "seed": config.seed, "steps_asked": config.steps}
    return dump(Summary(**names, steps=steps, status=status).plain())


def write_run(root: Path, job: Job, at: str, finished: bool = False, **changes: Any) -> Path:
    """The directory of a run that has come as far as a checkpoint."""
    out = SweepDirectory(root).run(job.name)
    (out / "checkpoints" / at).mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_bytes(dump({"schema": SCHEMA, **job.config.to_json(), **changes}))
    steps = steps_of(job) if finished else int(at[:12])
    (out / "summary.json").write_bytes(summary(job, "finished" if finished else "stopped", steps))
    last = evaluation(max(steps, 1), 3.0, 2.0 + job.config.seed, episodes=5000)
    (out / "eval.jsonl").write_bytes(evaluation(128, 9.0, 9.0) + last)
    (out / "timing.jsonl").write_bytes(timing(max(steps, 1), 40.0))
    return out


class Quiet:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.views: list[SweepView] = []

    def start(self, plan: Plan, where: str) -> None:
        self.said.append(where)

    def update(self, now: SweepView) -> None:
        self.views.append(now)

    def message(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


class Memory:
    """An engine in memory. The script has one pair per attempt at a run: exit code, steps that the run has come to."""

    def __init__(self, root: Path, script: dict[str, list[tuple[int | None, int]]], then: Callable[[], None]) -> None:
        self.root, self.script, self.then = root, script, then
        self.attempts: list[Attempt] = []
        self.begun: list[str] = []
        self.stopped = self.closed = False

    def make(self, jobs: Sequence[Job]) -> Memory:
        self.jobs = {job.name: job for job in jobs}
        return self

    def submit(self, attempt: Attempt) -> None:
        assert attempt.root == str(self.root)
        assert attempt.config == self.jobs[attempt.name].config.to_json()
        assert attempt.name not in [other.name for other in self.attempts]
        self.attempts.append(attempt)

    def wait(self, seconds: float) -> list[Outcome]:
        if not self.attempts:
            return []
        attempt = self.attempts.pop(0)
        if self.stopped:
            return [Outcome(attempt.name, 75, "here")]
        self.begun.append(attempt.name)
        steps = self.script.get(attempt.name, [])
        code, to = steps.pop(0) if steps else (0, 512)
        if to:
            job = self.jobs[attempt.name]
            write_run(self.root, job, place(to), finished=to == job.config.steps)
        self.then()
        return [Outcome(attempt.name, code, "here", f"last lines of {attempt.name}")]

    def describe(self) -> str:
        return "memory"

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


def drive_once(
    root: Path,
    script: dict[str, list[tuple[int | None, int]]] | None = None,
    plan: Plan | None = None,
    retry: bool = False,
    then: Callable[[], None] = lambda: None,
) -> tuple[Memory, Quiet, Any]:
    """Run the driver once; the engine, the observer, and the view or the error at the end."""
    engine, quiet = Memory(root, script or {}, then), Quiet()
    try:
        end: Any = Driver(plan or planned(), root, quiet).run(engine.make, "dcpg sweep x", retry)
    except (Stopped, StorageFailed, SweepIncomplete) as error:
        end = error
    assert not (root / "lock").exists()
    return engine, quiet, end


def indexed(path: Path) -> list[tuple[str, str]]:
    """The runs and events of an index."""
    return [(row["run"], row["event"]) for row in map(json.loads, path.read_text().splitlines())]


def end_attempt(index: Index, code: int | None, at: str = FIRST_CHECKPOINT, run: str = "a") -> None:
    """Note an attempt that has started and ended."""
    index.append(Event(run=run, event="started"))
    index.append(Event(run=run, event="ended", code=code, node="n", place=at, last_lines="last"))

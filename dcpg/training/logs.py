"""Curves and timing of a run: TensorBoard always, Weights & Biases if asked for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dcpg.config.schema import Config
from dcpg.config.written import fingerprint
from dcpg.storage.files import own_folder
from dcpg.storage.rows import Evaluation, Metrics
from dcpg.storage.rundir import RunDirectory

PHASES = ("collect", "policy", "auxiliary", "evaluate", "analyse", "save")


class Stopwatch:
    """Measures the time of each phase of a rollout: a lap adds the time since the previous one."""

    def __init__(self) -> None:
        self._clock = time.monotonic()
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self._seconds[phase] += now - self._clock
        self._clock = now

    def take(self) -> dict[str, float]:
        """The seconds of each phase since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return taken


class EventFile:
    """TensorBoard's file, written synchronously: errors in the thread of its own writer could not be caught."""

    def __init__(self, folder: Path, purge: int | None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        own_folder(folder)
        name = f"events.out.tfevents.{time.time_ns() // 1000:018d}.{os.getpid()}"
        self._records = RecordWriter(open(folder / name, "xb", buffering=0))  # noqa: SIM115
        self._write(file_version="brain.Event:2")
        if purge is not None:  # discards what was written for this step and later
            self._write(step=purge, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())

    def scalars(self, numbers: dict[str, float], steps: int) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=steps, summary=self._summary(value=values))

    def close(self) -> None:
        self._records.close()


class Logs:
    """Writes the numbers of the rows to TensorBoard and Weights & Biases."""

    def __init__(self, config: Config, directory: RunDirectory, warn: Callable[[str], None]) -> None:
        self.config, self.directory, self.warn = config, directory, warn
        self._write_failed = False
        self._purge: int | None = None
        self._again: list[dict[str, float]] = []  # kept numbers at the purged step
        self._writer: EventFile | None = None
        self._wandb: Any = None

    def connect(self, origin: str) -> None:
        """Begin with Weights & Biases, if it is wanted; a run that is resumed goes on with its page there.

        `origin` is `Written.origin`: runs that began with other weights, environments or plugins have other pages.
        """
        if self.config.wandb and self.directory.writes:
            import wandb

            self._wandb = wandb.init(
                project="dcpg",
                name=self.directory.path.name,
                config=self.config.to_json(),
                dir=str(self.directory.path),
                id=f"{fingerprint(self.config.to_json())[:12]}-{origin[:12]}-{self.config.seed}",
                resume="allow",
            )

    def purge(self, steps: int, row: Metrics | None, evaluation: Evaluation | None) -> None:
        """Prepare a resumed run: discard curves from `steps` on, and write the last rows that were kept again."""
        self._purge = steps
        self._again = [_of_row(row)] if row is not None else []
        self._again += [_of_evaluation(evaluation)] if evaluation is not None and evaluation.steps == steps else []

    def row(self, row: Metrics, steps_per_s: float) -> None:
        self._add({**_of_row(row), "training/steps_per_s": steps_per_s}, row.steps)

    def evaluation(self, row: Evaluation) -> None:
        self._add(_of_evaluation(row), row.steps)

    def _add(self, numbers: dict[str, float], steps: int) -> None:
        if not self.directory.writes:
            return
        try:
            self._write(numbers, steps)
        except OSError as error:  # not fatal: metrics.jsonl and eval.jsonl have the same numbers
            if not self._write_failed:
                self.warn(f"TensorBoard's file could not be written ({error}); the run continues without it.")
            self._write_failed = True

    def _write(self, numbers: dict[str, float], steps: int) -> None:
        if self._wandb is not None:
            self._wandb.log(numbers, step=steps)
        if self._write_failed:
            return
        if self._writer is None:
            self._writer = EventFile(self.directory.tensorboard, self._purge)
            for before in self._again:
                self._writer.scalars(before, self._purge or 0)
        self._writer.scalars(numbers, steps)

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            self._writer = None
        if self._wandb is not None:
            self._wandb.finish()


def _of_row(row: Metrics) -> dict[str, float]:
    columns = {"reward_variance": row.reward_variance, **row.more}
    numbers = {name: value for name, value in columns.items() if isinstance(value, (int, float))}
    if row.episode_returns:
        numbers["episode_return"] = sum(row.episode_returns) / len(row.episode_returns)
    return {f"training/{k}": v for k, v in numbers.items()}


def _of_evaluation(row: Evaluation) -> dict[str, float]:
    return {f"evaluation/{name}": value for name, value in row.plain().items() if isinstance(value, float)}

"""The engine that needs no server: attempts side by side on this machine."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from dcpg.config.resolve import available_cores
from dcpg.errors import BadInput
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of
from dcpg.machine.needs import Needs, free_memory, needs_of
from dcpg.sweep.attempt import Attempt, Outcome, could_not_run, not_started, run_attempt
from dcpg.sweep.plan import Job, one_per_label
from dcpg.text import counted, given


@dataclass(frozen=True)
class Capacity:
    """How many runs fit on this machine side by side, and what limits them."""

    runs: int
    reason: str
    gpus: tuple[str, ...] = ()  # as CUDA_VISIBLE_DEVICES names them, one per run; none: the environment stays as it is


def capacity(jobs: Sequence[Job]) -> Capacity:
    """How many runs would fit if all were as large as the largest; at least one."""
    some = one_per_label(jobs).values()
    configs = [settled(job.config, job.spaces) for job in some]
    for config in configs:
        device_of(config)  # refuses what this machine does not have
    threads = max(c.machine.threads for c in configs)
    memory, free = max(run_needs(job).memory for job in some), free_memory()
    limits = [
        (available_cores() // threads, f"{counted(available_cores(), 'core')}, {threads} per run"),
        (int(free // memory), f"{free / 1e9:.1f} GB of memory, at most {memory / 1e9:.1f} per run"),
    ]
    gpus: tuple[str, ...] = ()
    devices = {c.machine.device for c in configs}
    if devices != {"cpu"}:
        gpus = _visible_gpus() if "cuda" in devices else ()  # "cuda:N" is the user's choice: one run at a time
        limits.append((len(gpus) or 1, f"{counted(len(gpus) or 1, 'GPU')}, one per run"))
    least, reason = min(limits, key=lambda limit: limit[0])
    if free < memory and all(c.check_room for c in configs):
        raise BadInput(
            f"There is no room for a run: it may need {memory / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            f"free. Make room, or make the runs smaller, or start them anyway with {given('check_room', 'false')}."
        )
    return Capacity(max(least, 1), reason, gpus)


def run_needs(job: Job) -> Needs:
    """What one run of a sweep may need."""
    return needs_of(settled(job.config, job.spaces), job.spaces)


def _visible_gpus() -> tuple[str, ...]:
    listed = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(listed or map(str, range(torch.cuda.device_count())))


class _Closed(Exception):
    """Raised in an attempt to kill its process."""


class LocalEngine:
    """Threads, each of which waits for the process of one attempt."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.capacity = capacity(jobs)
        self._pool = ThreadPoolExecutor(self.capacity.runs)
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._gpus: queue.SimpleQueue[str] = queue.SimpleQueue()
        for gpu in self.capacity.gpus[: self.capacity.runs]:
            self._gpus.put(gpu)
        self._stop, self._close = threading.Event(), threading.Event()

    def submit(self, attempt: Attempt) -> None:
        self._pool.submit(self._work, attempt)

    def _work(self, attempt: Attempt) -> None:
        if self._stop.is_set():
            self._outcomes.put(not_started(attempt))
            return
        gpu = self._gpus.get() if self.capacity.gpus else None
        try:
            outcome = run_attempt(
                attempt, self._should_stop, {"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else None
            )
        except _Closed:
            return
        except Exception as error:
            outcome = could_not_run(attempt, error)
        finally:
            if gpu is not None:
                self._gpus.put(gpu)
        self._outcomes.put(outcome)

    def _should_stop(self) -> bool:
        if self._close.is_set():
            raise _Closed
        return self._stop.is_set()

    def wait(self, seconds: float) -> list[Outcome]:
        found = list[Outcome]()
        try:
            found.append(self._outcomes.get(timeout=seconds))
            while True:
                found.append(self._outcomes.get_nowait())
        except queue.Empty:
            return found

    def describe(self) -> str:
        return f"this machine, {self.capacity.runs} side by side ({self.capacity.reason})"

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._close.set()
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

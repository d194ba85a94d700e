"""How far a run has come, read from its directory alone.

The directory is the truth, whatever a sweep has written down about the run.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from dcpg.config.automatic import as_in
from dcpg.config.environments import EnvMaker, in_any_folder
from dcpg.config.schema import UNDECISIVE, Config
from dcpg.config.written import Recorded, Written, fingerprint, parse_written
from dcpg.errors import BadInput, Unavailable
from dcpg.settings import dotted
from dcpg.storage.checkpoint import position
from dcpg.storage.files import AWAY, open_regular, read_json
from dcpg.storage.lock import born
from dcpg.storage.rows import Evaluation, R, Summary, Timing, parse_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.text import option, printable
from dcpg.training.owner import is_of

CHECKPOINT = re.compile(r"[0-9]{12}-[0-9.]+-[0-9]{5}")
LONGEST_ROW = 64_000_000  # bytes
FOREIGN_SILENCE = 120.0  # seconds without a heartbeat after which another host's lock is no sign of a running process


@dataclass(frozen=True)
class RunStatus:
    """How far a run has come."""

    state: Literal["waiting", "interrupted", "finished", "damaged"] = "waiting"  # a running one is "interrupted" too
    steps: int = 0
    checkpoint: str = ""  # name of the newest checkpoint
    train_return: float | None = None
    test_return: float | None = None
    steps_per_s: float = 0.0
    note: str = ""  # what is wrong with a damaged run


def status_of(config: Config, path: Path, maker: EnvMaker | None = None) -> RunStatus:
    """The status of the run with this configuration at this path, on this environment if it is the user's own.

    A run of fewer steps is the same run, interrupted. BadInput if the directory holds another run, Unavailable if it
    cannot be read now; one that does not hold what it should has the state "damaged".
    """
    run = RunDirectory(path)
    try:
        if not run.config.exists():  # a new run writes it last
            return RunStatus()
    except OSError as error:
        if error.errno in AWAY:
            raise Unavailable(f"{run.config} cannot be read now ({error.strerror}).") from None
        return RunStatus("damaged", note=f"{run.config} cannot be read ({error.strerror}).")
    try:
        written = parse_written(run.read_config(), run.config, code=False)
    except Unavailable:
        raise
    except BadInput as error:
        return RunStatus("damaged", note=str(error))
    _check_same(config, run, written)
    there = written.environment
    # one that was moved, and edited since, is the same one; a driver and reports say that it was edited
    if maker is not None and there is not None and in_any_folder(there.ids) != in_any_folder(maker.ids):
        raise BadInput(
            f"{run.path} holds another run than this sweep's {run.path.name}: it was trained on "
            f"{_named(*there.ids)}, the sweep trains on {_named(*maker.ids)}. Choose another "
            f"{option('out')}, or another name for the environment."
        )
    evaluation = next(iter(last_rows(run.evaluations.path, Evaluation)), None)
    # one whole phase, since a rollout with an auxiliary phase takes much longer than the others
    phase = 1 if isinstance(config, Recorded) else max(config.declared().lengths(config.rollouts))
    timing = last_rows(run.timing.path, Timing, phase)
    names = [p.name for p in run.checkpoints.glob("[0-9]*-*") if CHECKPOINT.fullmatch(p.name)]
    checkpoint = max(names, key=position, default="")
    total = config.rollouts * config.rollout_size
    steps = timing[-1].steps if timing else int(checkpoint[:12] or 0)
    evaluated = evaluation is not None and evaluation.steps == total
    finished = evaluated and _summary_says_finished(run.summary, written, total)
    return RunStatus(
        "finished" if finished else "interrupted",
        total if finished else min(steps, total),
        checkpoint,
        _mean_return(evaluation, "train"),
        _mean_return(evaluation, "test"),
        _mean_speed([row.steps_per_s for row in timing]),
    )


def _named(env: str, test_env: str | None) -> str:
    return printable(f"{env} (unseen levels: {test_env})" if test_env is not None else env)


def _check_same(config: Config, run: RunDirectory, written: Written) -> None:
    there = written.config
    config = as_in(config, there.machine)  # what is automatic was resolved when the run began
    if written.init:
        raise BadInput(
            f"{run.path} holds a run that began with the weights of another one; choose another {option('out')}."
        )
    if fingerprint(there.to_json()) != fingerprint(config.to_json()) or there.steps > config.steps:  # fewer: it goes on
        name, old, new = _first_difference(there, config)
        raise BadInput(
            f"{run.path} holds another run than this sweep's {run.path.name}: it has {name}={old}, the sweep {new}. "
            f"Choose another {option('out')}, or change the sweep back."
        )


def _first_difference(there: Config, wanted: Config) -> tuple[str, Any, Any]:
    old, new = ({name: value for name, value, _ in dotted(config)} for config in (there, wanted))
    for name in {**new, **old}:
        decides = name == "steps" or name.split(".")[0] not in UNDECISIVE
        if decides and old.get(name) != new.get(name):
            return name, old.get(name), new.get(name)
    return "settings", "others", "its own"


def _summary_says_finished(path: Path, written: Written, total: int) -> bool:
    try:
        summary = Summary.parse(read_json(path, LONGEST_ROW))
    except (OSError, ValueError, TypeError, OverflowError):
        return False
    return summary.status == "finished" and summary.steps == total and is_of(written, summary.plain())


def _mean_return(evaluation: Evaluation | None, split: str) -> float | None:
    found = evaluation.splits.get(split) if evaluation is not None else None
    return found.mean if found is not None else None


def _mean_speed(steps_per_s: list[float]) -> float:
    """The speed over rollouts of equal size."""
    seconds = [1 / speed for speed in steps_per_s if speed > 0]
    return len(seconds) / sum(seconds) if seconds else 0.0


def last_rows(path: Path, kind: type[R], count: int = 1) -> list[R]:
    """The last `count` rows of a file, oldest first, without reading those before; unreadable rows are left out."""
    try:
        with open_regular(path) as file:
            size, length = os.fstat(file.fileno()).st_size, 8_192
            while True:
                file.seek(max(size - length, 0))
                data = file.read(length)
                whole = len(data) >= size
                lines = data.splitlines(keepends=True)[0 if whole else 1 :]  # the first one may lack its beginning
                if len(lines) > count or whole or length > LONGEST_ROW:
                    rows = [row for line in lines[-count - 1 :] for row in _rows(line, kind)]  # the last may be torn
                    return rows[-count:]
                length *= 8
    except OSError:
        return []


def _rows(line: bytes, kind: type[R]) -> list[R]:
    try:
        return [kind.parse(plain) for plain in parse_rows(line)]
    except (ValueError, OverflowError, RecursionError):
        return []


def is_running(path: Path) -> bool:
    """Whether a process trains in a run's directory. Only reads the lock: trying it would disturb its holder."""
    lock = RunDirectory(path).lock.path
    try:
        holder = read_json(lock, 10_000)
        host, pid = holder["host"], int(holder["pid"])
        if host == socket.gethostname():
            if "born" in holder and holder["born"] != born(pid):  # locks of older releases do not say it
                return False  # the number belongs to another process now
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return time.time() - lock.stat().st_mtime < FOREIGN_SILENCE
    except (OSError, ValueError, TypeError, KeyError, OverflowError, psutil.Error):
        return False

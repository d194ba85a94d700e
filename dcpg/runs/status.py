"""Where a run stands, from its directory alone: that is the truth, whatever a sweep has written down about it."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dcpg.config.schema import UNDECISIVE, Config
from dcpg.config.written import Written, fingerprint, read_written
from dcpg.errors import BadInput
from dcpg.settings import dotted
from dcpg.storage.files import read_regular
from dcpg.storage.rows import parse_rows
from dcpg.storage.rundir import RunDirectory

CHECKPOINT = re.compile(r"[0-9]{12}-[0-9.]+-[0-9]{5}")


MOST_ROW = 64_000_000  # bytes


FOREIGN_SILENCE = 120.0  # seconds after which another host's lock says nothing about a running process


@dataclass(frozen=True)
class Standing:
    """A run's."""

    status: str = "waiting"  # or interrupted (also while it goes on), finished, or damaged
    steps: int = 0
    place: str = ""  # the newest checkpoint's name; names sort as a run goes on
    train_return: float | None = None
    test_return: float | None = None
    steps_per_s: float = 0.0
    note: str = ""  # what is wrong with it, if it is damaged


def look(config: Config, path: Path) -> Standing:
    """Where a run stands; a directory that holds another one is refused, one that cannot be read is damaged."""
    run = RunDirectory(path)
    if not run.config.exists():  # it comes last when a run begins
        return Standing()
    try:
        written = read_written(run)
    except BadInput as error:
        return Standing("damaged", note=str(error))
    _check_same(config, run, written)
    evaluated = next(iter(last_rows(run.evaluations.path)), {})
    phase = last_rows(run.timing.path, config.declared().N_pi)  # rollouts with an auxiliary phase take much longer
    place = max((p.name for p in run.checkpoints.glob("0*-*") if CHECKPOINT.fullmatch(p.name)), default="")
    total = config.rollouts * config.rollout_size
    steps = _whole(phase[-1].get("steps") if phase else 0) or int(place[:12] or 0)
    seconds = [1 / speed for row in phase if (speed := _number(row.get("steps_per_s")) or 0.0) > 0]
    finished = _says_finished(run.summary, total) and _whole(evaluated.get("steps")) == total
    return Standing(
        "finished" if finished else "interrupted",
        total if finished else min(steps, total),
        place,
        _number(evaluated.get("train_return")),
        _number(evaluated.get("test_return")),
        len(seconds) / sum(seconds) if seconds else 0.0,
    )


def _check_same(config: Config, run: RunDirectory, written: Written) -> None:
    there = written.config
    if written.init:
        raise BadInput(f"{run.path} holds a run that began with the weights of another one; choose another --out.")
    if (fingerprint(there.to_json()), there.steps) != (fingerprint(config.to_json()), config.steps):
        name, old, new = _first_difference(there, config)
        raise BadInput(
            f"{run.path} holds another run than this sweep's: it has {name}={old}, the sweep {new}. Choose "
            "another --out, or change the sweep back."
        )


def _first_difference(there: Config, wanted: Config) -> tuple[str, Any, Any]:
    old, new = ({name: value for name, value, _ in dotted(config)} for config in (there, wanted))
    for name in {**new, **old}:
        decides = name == "steps" or name.split(".")[0] not in UNDECISIVE
        if decides and old.get(name) != new.get(name):
            return name, old.get(name), new.get(name)
    return "settings", "others", "its own"


def _says_finished(summary: Path, total: int) -> bool:
    try:
        plain = json.loads(read_regular(summary, MOST_ROW))
        return bool(plain["status"] == "finished" and plain["steps"] == total)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def last_rows(path: Path, count: int = 1) -> list[dict[str, Any]]:
    """The last whole rows of a file of JSON lines, oldest first, without reading the rows before them."""
    try:
        with open(path, "rb") as file:
            size, length = os.fstat(file.fileno()).st_size, 8_192
            while True:
                file.seek(max(size - length, 0))
                data = file.read(length)
                whole = len(data) >= size
                lines = data.splitlines(keepends=True)[0 if whole else 1 :]  # the first may be the end of one only
                rows = [row for line in lines[-count - 1 :] for row in parse_rows(line)]  # the last may be torn
                if len(rows) >= count or whole or length > MOST_ROW:
                    return rows[-count:]
                length *= 8
    except (OSError, RecursionError):
        return []


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def runs_now(lock: Path) -> bool:
    """Whether somebody works in a directory. Only looks: trying the lock would stand in its holder's way."""
    try:
        holder = json.loads(read_regular(lock, 10_000))
        host, pid = holder["host"], int(holder["pid"])
        if host == socket.gethostname():
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return time.time() - lock.stat().st_mtime < FOREIGN_SILENCE
    except (OSError, ValueError, TypeError, KeyError, psutil.Error):
        return False

"""Runs dcpg with faults put into the process from outside; the product has no hooks for this.

    python -m tests.faults.inject FAULT ARGS [+ FAULT ARGS ...] -- train ppo --game starpilot ...

`--serve` keeps a warm interpreter that forks one process a run, so that hundreds of runs do not import torch anew.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import errno
import gc
import importlib
import io
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULTS: dict[str, Callable[..., None]] = {}
real_open = builtins.open
HELD: list[bytearray] = []
NOBODY = 65534


def fault(install: Callable[..., None]) -> Callable[..., None]:
    """Enter an installer under its name."""
    FAULTS[install.__name__.rstrip("_").replace("_", "-")] = install
    return install


# -- something happens at the k-th call of a place


def die() -> None:
    """kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Never come back, with the interpreter free to run its other threads."""
    while True:
        time.sleep(0.05)


def wait_for(file: str) -> None:
    """Say that this place is reached, and wait until a file exists."""
    Path(file + ".reached").touch()
    while not os.path.exists(file):
        time.sleep(0.02)


def exhaust() -> None:
    """Take all memory that this process may have from now on, down to the last kilobyte, and hold it."""
    import resource

    with open("/proc/self/statm") as pages:
        taken = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken, taken))
    for size in (2**24, 2**20, 2**16, 2**12):
        with contextlib.suppress(MemoryError):
            while True:
                HELD.append(bytearray(size))


def action(name: str) -> Callable[[], None]:
    """kill, abort, hang, exhaust (no memory is left), sleep:SECONDS, wait:FILE, or signals such as SIGINT,SIGINT."""
    if name.startswith("sleep:"):
        return lambda: time.sleep(float(name.removeprefix("sleep:")))
    if name.startswith("wait:"):
        return lambda: wait_for(name.removeprefix("wait:"))
    if name in ("kill", "abort", "hang", "exhaust"):
        return {"kill": die, "abort": os.abort, "hang": hang, "exhaust": exhaust}[name]

    def signals() -> None:
        for one in name.split(","):
            os.kill(os.getpid(), signal.Signals[one])

    return signals


def before(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Call `then` with the same arguments before every call of owner.name."""
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        then(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


@fault
def at(place: str, number: str, what: str) -> None:
    """At the `number`-th call of a place: collect, remember, evaluate, save, env, written, or the steps of an Adam."""
    from dcpg.core.actor import Actor
    from dcpg.core.algorithm import Algorithm
    from dcpg.core.stepper import Stepper
    from dcpg.envs.procgen import Procgen
    from dcpg.storage import checkpoint
    from dcpg.training import evaluations

    seen, act, evaluating = Counter[str](), action(what), [False]

    def tick(where: str) -> None:
        seen[where] += 1
        if where == place and seen[where] == int(number):
            act()

    before(Actor, "__call__", lambda *_: None if evaluating[0] else tick("collect"))
    before(Stepper, "step", lambda self, name, *_, **__: tick(name))
    before(Algorithm, "remember", lambda *_: tick("remember"))
    before(checkpoint.CheckpointStore, "save", lambda *_: tick("save"))
    before(checkpoint, "write_durable", lambda *_: tick("written"))
    before(Procgen, "step", lambda *_: tick("evaluate" if evaluating[0] else "env"))
    play = evaluations.play

    def played(*args: Any) -> Any:
        evaluating[0] = True
        try:
            return play(*args)
        finally:
            evaluating[0] = False

    evaluations.play = played


# -- files


class Disk:
    """Every write, fsync, rename, removal and new directory of the run, in order, and what is safe from a power cut."""

    def __init__(self) -> None:
        self.number = 0
        self.hooks: list[Callable[[int, str, str, Any], None]] = []
        self.dirty: dict[str, int] = {}  # file -> bytes of it that are safe
        self.names: list[tuple[str, str, str, Any]] = []  # what happened to names whose directory was not synced

    def event(self, kind: str, path: str, extra: Any = None) -> None:
        self.number += 1
        for hook in self.hooks:
            hook(self.number, kind, path, extra)


DISK = Disk()


class Raw(io.FileIO):
    """A file whose writes are events."""

    def write(self, data: Any) -> int:
        path = os.path.realpath(str(self.name))
        DISK.event("write", path, (self, data))
        DISK.dirty.setdefault(path, os.fstat(self.fileno()).st_size)
        return super().write(data) or 0


def watch_disk() -> None:
    """Make the file operations of dcpg events of DISK."""
    from dcpg.storage import files, rows

    if hasattr(files, "open"):
        return

    def opened(path: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        if mode not in ("wb", "ab", "xb"):
            return real_open(path, mode, buffering, *args, **kwargs)
        new = not os.path.exists(path)
        raw = Raw(path, mode)
        if new:
            DISK.names.append(("create", os.path.realpath(path), "", None))
        return raw if buffering == 0 else io.BufferedWriter(raw)

    files.open = rows.open = opened  # type: ignore[attr-defined]
    _watch_os_functions()


def _watch_os_functions() -> None:
    fsync, replace, os_write = os.fsync, os.replace, os.write

    def synced(fd: int) -> None:
        path = os.path.realpath(f"/proc/self/fd/{fd}")
        DISK.event("fsync", path)
        fsync(fd)
        DISK.dirty.pop(path, None)
        DISK.names = [entry for entry in DISK.names if os.path.dirname(entry[1]) != path]

    def replaced(src: Any, dst: Any, **kwargs: Any) -> None:
        a, b = os.path.realpath(src), os.path.realpath(dst)
        DISK.event("replace", b)
        old = Path(b).read_bytes() if os.path.isfile(b) else None
        replace(src, dst, **kwargs)
        for path in [p for p in DISK.dirty if p == a or p.startswith(a + "/")]:
            DISK.dirty[b + path[len(a) :]] = DISK.dirty.pop(path)
        DISK.names = [entry for entry in DISK.names if entry[1] != a]
        DISK.names.append(("replace", b, a, old))

    def os_written(fd: int, data: Any) -> int:
        path = os.path.realpath(f"/proc/self/fd/{fd}")
        if os.path.isfile(path):
            DISK.event("write", path, None)
            DISK.dirty.setdefault(path, os.fstat(fd).st_size)
        return os_write(fd, data)

    os.fsync, os.replace, os.write = synced, replaced, os_written  # type: ignore[assignment]
    for name in ("unlink", "rmdir", "mkdir"):
        original = getattr(os, name)

        def done(path: Any, *args: Any, original: Any = original, name: str = name, **kwargs: Any) -> Any:
            DISK.event(name, str(path))
            original(path, *args, **kwargs)

        setattr(os, name, done)


@fault
def trace_disk(out: str) -> None:
    """Write down every event as a JSON line: [number, kind, path]."""
    watch_disk()
    file = real_open(out, "a")
    DISK.hooks.append(lambda number, kind, path, extra: print(json.dumps([number, kind, path]), file=file, flush=True))


@fault
def die_at_disk(number: str, torn: str = "whole") -> None:
    """kill -9 before event `number`; `torn`: a write gets half of its bytes to the disk first."""
    watch_disk()

    def hook(n: int, kind: str, path: str, extra: Any) -> None:
        if n == int(number):
            if torn == "torn" and kind == "write" and extra is not None:
                raw, data = extra
                io.FileIO.write(raw, bytes(data)[: len(data) // 2])
            die()

    DISK.hooks.append(hook)


@fault
def power_cut(number: str, names: str = "data") -> None:
    """At event `number` what was not synced is lost: bytes, and with `names` also new names and renames."""
    watch_disk()

    def hook(n: int, kind: str, path: str, extra: Any) -> None:
        if n != int(number):
            return
        for file, safe in DISK.dirty.items():
            if os.path.exists(file):
                os.truncate(file, safe)
        if names == "names":
            for what, where, origin, old in reversed(DISK.names):
                if what == "create":
                    Path(where).unlink(missing_ok=True)
                elif os.path.exists(where):
                    shutil.move(where, origin)
                    if old is not None:
                        Path(where).write_bytes(old)
        die()

    DISK.hooks.append(hook)


@fault
def disk_error(code: str, first: str, count: str, kinds: str = "write,fsync", within: str = "") -> None:
    """Events `first` and the next `count` - 1 (-1: all) of these kinds whose path holds `within` raise OSError."""
    watch_disk()
    seen, wanted, number = [0], kinds.split(","), getattr(errno, code)

    def hook(n: int, kind: str, path: str, extra: Any) -> None:
        if kind not in wanted or within not in path:
            return
        seen[0] += 1
        if seen[0] >= int(first) and (int(count) < 0 or seen[0] < int(first) + int(count)):
            raise OSError(number, os.strerror(number), path)

    DISK.hooks.append(hook)


@fault
def flip_written(number: str, within: str) -> None:
    """The disk silently changes a bit of the `number`-th file written whose path holds `within`."""
    from dcpg.storage import checkpoint

    original, seen = checkpoint.write_durable, [0]

    def write(path: Path, data: bytes) -> None:
        if within in path.name:
            seen[0] += 1
            if seen[0] == int(number):
                data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        original(path, data)

    checkpoint.write_durable = write


# -- numbers


@fault
def reward(place: str, number: str, value: str) -> None:
    """The `number`-th step of the environments gives this reward to one of them; place: env or evaluate."""
    from dcpg.envs.procgen import Procgen
    from dcpg.training import evaluations

    step, play, seen, evaluating = Procgen.step, evaluations.play, [0], [False]

    def stepped(self: Any, actions: Any) -> Any:
        result = step(self, actions)
        if evaluating[0] == (place == "evaluate"):
            seen[0] += 1
            if seen[0] == int(number):
                result.rewards[0] = float(value)
        return result

    def played(*args: Any) -> Any:
        evaluating[0] = True
        try:
            return play(*args)
        finally:
            evaluating[0] = False

    Procgen.step, evaluations.play = stepped, played  # type: ignore[method-assign]


@fault
def term(step_name: str, term_name: str, number: str, value: str) -> None:
    """A term of an Adam has this value at its `number`-th call; `gradient`: finite, but its slope is not."""
    from dcpg.config.schema import Config

    declared, seen = Config.declared, [0]

    def bad(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(out: Any, batch: Any) -> Any:
            values = function(out, batch)
            seen[0] += 1
            if seen[0] != int(number):
                return values
            if value == "gradient":
                return values + (values - values).abs().sqrt()  # adds 0, with slope 0 * inf
            return values * float(value)

        return wrapped

    def terms(step: str, found: Any) -> dict[str, Any]:
        return {
            name: (weight, bad(function) if (step, name) == (step_name, term_name) else function)
            for name, (weight, function) in found.items()
        }

    def lines(found: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            dataclasses.replace(
                line,
                terms=terms(line.name, line.terms),
                before={step: terms(step, others) for step, others in line.before.items()},
            )
            for line in found
        )

    def redeclared(self: Config) -> Any:
        method = declared(self)
        return dataclasses.replace(
            method, policy_phase=lines(method.policy_phase), auxiliary_phase=lines(method.auxiliary_phase)
        )

    Config.declared = redeclared  # type: ignore[method-assign]


# -- the rest


@fault
def set_(name: str, value: str) -> None:
    """A module's number, such as dcpg.training.saving.RETRY_SECONDS."""
    module, _, attribute = name.rpartition(".")
    setattr(importlib.import_module(module), attribute, float(value))


@fault
def clock() -> None:
    """time.time jumps by hours, forwards and backwards."""
    original, calls = time.time, [0]

    def jumping() -> float:
        calls[0] += 1
        return original() + (-1) ** calls[0] * 3600.0 * (calls[0] % 7)

    time.time = jumping


@fault
def host(name: str) -> None:
    """Another machine's name."""
    import socket

    socket.gethostname = lambda: name


@fault
def brief() -> None:
    """Without the estimate before a run and the picture after it."""
    from dcpg import api
    from dcpg.cli import train
    from dcpg.training import start

    start._announce = lambda *_: None
    api._finished = lambda run: run
    train.conclude = lambda *_: None


@fault
def untried() -> None:
    """Take the states of Procgen without the trial in a second process, which takes a few seconds."""
    from dcpg.envs import procgen

    procgen.try_states = lambda game, mode, states: None


@fault
def bounded(gigabytes: str = "1.5") -> None:
    """So much more memory and no more; short videos, and nothing is timed."""
    import resource

    from dcpg.machine import estimate
    from dcpg.runs import video
    from dcpg.sweep import dry_run

    with open("/proc/self/statm") as pages:
        taken = int(pages.read().split()[0]) * resource.getpagesize()
    most = taken + int(float(gigabytes) * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    video.MAX_FRAMES, video.END = 2, 1
    estimate.playing = lambda *_: 1.0
    estimate.costs = lambda *_: estimate.Costs(0.1, 0.2, 0.3)
    dry_run.measure_speeds = lambda counts, tell: counts


@fault
def unprivileged() -> None:
    """Go on as a user who owns nothing; the interpreter may lie where only its owner can read, so import all first."""
    import pkgutil

    import dcpg

    for module in pkgutil.walk_packages(dcpg.__path__, "dcpg."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def install(arguments: list[str]) -> None:
    """FAULT ARGS + FAULT ARGS."""
    one: list[str] = []
    for word in [*arguments, "+"]:
        if word != "+":
            one.append(word)
        elif one:
            FAULTS[one[0]](*one[1:])
            one = []


def main(arguments: list[str]) -> None:
    """Install the faults that stand before `--`, then run dcpg with the rest."""
    cut = arguments.index("--")
    install(arguments[:cut])
    from dcpg.cli.app import main as dcpg_main

    sys.argv = ["dcpg", *arguments[cut + 1 :]]
    dcpg_main()


# -- the warm interpreter

PRELOADED = (
    "dcpg.training.display", "dcpg.machine.estimate", "dcpg.runs.curves", "dcpg.training.start", "dcpg.runs.agent",
    "dcpg.api", "torch._dynamo",
    "torch.utils.tensorboard", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "dcpg.runs.video",
    "dcpg.report.write", "dcpg.sweep.view", "dcpg.analysis.analyse", "dcpg.runs.export",
)  # fmt: skip


def serve() -> None:
    """For each line of standard input, a job as JSON, fork a process that runs it; outcomes are files."""
    for name in PRELOADED:
        importlib.import_module(name)
    from dcpg.cli import app as cli
    from dcpg.envs.procgen import Procgen

    Procgen(1, "starpilot", seed=0).close()  # loads the assets
    with contextlib.redirect_stdout(io.StringIO()):
        cli.app(["games"], standalone_mode=False)  # loads what the command line needs
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nanny(json.loads(line))


def nanny(job: dict[str, Any]) -> None:
    """Start a run, wait for its end and write down how it ended."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    pid = os.fork()
    if pid == 0:
        child(job)
    place = job["job"]
    Path(f"{place}.pid").write_text(str(pid))
    _, status, usage = os.wait4(pid, 0)
    Path(f"{place}.part").write_text(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]))
    os.rename(f"{place}.part", f"{place}.end")
    os._exit(0)


def child(job: dict[str, Any]) -> None:
    """The run itself."""
    code = 1
    try:
        for number, suffix in ((1, "out"), (2, "err")):
            fd = os.open(f"{job['job']}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(job["cwd"])
        os.environ.update(job["env"])
        main(job["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main(sys.argv[1:])

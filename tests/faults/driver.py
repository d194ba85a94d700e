"""Starts, kills and resumes real runs, and compares them byte for byte."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from dcpg import methods
from dcpg.config.resolve import resolve
from dcpg.storage.checkpoint import sealed
from tests.faults.figures import record

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds after which a run counts as stuck
WORKERS = 2
METHODS = tuple(methods.METHODS)
# the Adams of each method in the order in which they step, and the terms of each
TERMS = {
    name: {step: tuple(terms) for step, terms in resolve(name, "bigfish").declared().adams.items()} for name in METHODS
}
FINAL = re.compile(r"[0-9]{12}-00\.000\.000000-[0-9]{5}")
COMPARED = ("weights.safetensors", "adam.safetensors", "state.json", "collector.zst")
# small networks, evaluations and auxiliary phases (2 x 4 steps): what is tried here does not depend on sizes
SMALL = ("evaluation.max_steps=12", "evaluation.episodes=2", "env.frame_size=16", "network.channels=4")
SHORT = ("E_aux", "E_V")  # epochs that are many by default
# a bandit that tries another arm after each rollout
ARMS = ("augment=ucb", "drac.c=5")
# ten levels of bossfight, whose episodes end soon: with this network, all are scored in the second rollout and
# replayed from then on
REPLAY = ("network.channels=2,4", "levels.sampler=prioritised", "levels.seeds=2,7,11,17,36,43,47,5,23,30")
BOTH = (*ARMS, *REPLAY)
OWN = {"ucb-drac": ARMS, "plr": REPLAY}


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int  # exit code; -9 for SIGKILL
    out: str
    err: str
    peak: int  # most memory, KiB

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Machine:
    """The warm interpreter of tests/faults/inject.py."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dcpg-faults-"))
        self.numbers = itertools.count()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.inject", "--serve"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("the interpreter that forks the runs did not start")

    def start(self, arguments: Sequence[str], env: dict[str, str] | None = None, cwd: Path = ROOT) -> Process:
        """Fork a process that runs `inject` with these arguments."""
        place = self.folder / str(next(self.numbers))
        job = {"job": str(place), "arguments": list(arguments), "env": env or {}, "cwd": str(cwd)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Process(place)

    def close(self) -> None:
        """End the interpreter; its runs have ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder)


class Process:
    """A run that was forked from the machine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        until(Path(f"{place}.pid").exists)
        until(lambda: bool(self._text("pid")))
        self.pid = int(self._text("pid"))

    def _text(self, suffix: str) -> str:
        path = Path(f"{self.place}.{suffix}")
        return path.read_text(errors="replace") if path.exists() else ""

    def ended(self) -> bool:
        """Whether it has ended."""
        return Path(f"{self.place}.end").exists()

    def kill(self) -> None:
        """kill -9, unless it has ended."""
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)

    def killed_after(self, seconds: float) -> Ended:
        """Its end, by kill -9 if it has not come by then."""
        with contextlib.suppress(TimeoutError):
            until(self.ended, seconds)
        self.kill()
        return self.wait()

    def wait(self) -> Ended:
        """Its end, which must come."""
        try:
            until(self.ended)
        except TimeoutError:
            self.kill()
            raise
        code, peak = json.loads(self._text("end"))
        return Ended(code, self._text("out"), self._text("err"), peak)


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


def settings(*pairs: str) -> list[str]:
    """--set for each."""
    return [word for pair in pairs for word in ("--set", pair)]


def train_arguments(out: Path, method: str = "ddcpg", steps: int = 512, more: Iterable[str] = ()) -> list[str]:
    """The command line of a small run."""
    known = {field.name for field in dataclasses.fields(methods.METHODS[method].settings)}
    pairs = [*SMALL, *(f"algorithm.{name}=2" for name in SHORT if name in known), *OWN.get(method, ()), *more]
    game = "bossfight" if REPLAY[-1] in pairs else "starpilot"
    run = ["train", method, "--game", game, "--preset", "tiny", "--steps", str(steps), "--seed", "1"]
    return [*run, "--out", str(out), *settings(*pairs)]


class Driver:
    """Runs on the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def start(
        self, arguments: Sequence[str], *faults: str, full: bool = False, tried: bool = False, **how: Any
    ) -> Process:
        """Start dcpg with faults, each a string such as "at save 2 kill"; `tried`: with the trial of states."""
        words = [] if full else ["brief"] if tried else ["brief", "+", "untried"]
        for fault in faults:
            words += ["+", *fault.split()]
        return self.machine.start([*words, "--", *arguments], **how)

    def run(self, arguments: Sequence[str], *faults: str, **how: Any) -> Ended:
        """The same, to its end."""
        return self.start(arguments, *faults, **how).wait()

    def train(
        self, out: Path, *faults: str, method: str = "ddcpg", steps: int = 512, more: Iterable[str] = ()
    ) -> Ended:
        """A new run."""
        return self.run(train_arguments(out, method, steps, more), *faults)

    def resume(self, out: Path, *faults: str) -> Ended:
        """Go on with a run."""
        return self.run(["resume", str(out)], *faults)

    def recovers(self, out: Path, reference: Path) -> Ended:
        """Resume must end well, with the reference's bytes and no temporary file."""
        ended = self.resume(out)
        assert ended.code == 0, str(ended)
        assert differences(out, reference) == []
        assert temporary(out) == []
        return ended


def real(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m ...` as people start it."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def each(jobs: Iterable[Any], work: Callable[[Any], Any], fault: str = "", times: int = 1) -> None:
    """Work on all jobs, a few at a time; every failure is told, not only the first, and counted under `fault`."""
    failures = []
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [(job, pool.submit(work, job)) for job in jobs]
        for job, future in futures:
            try:
                future.result()
            except Exception as error:
                failures.append(f"{job}: {type(error).__name__}: {str(error)[-700:]}")
    if fault:
        record(fault, times * len(futures), times * (len(futures) - len(failures)))
    assert not failures, f"{len(failures)} of {len(futures)} failed:\n" + "\n".join(failures)


# -- what a run left behind


def names(out: Path) -> list[str]:
    """Its checkpoints, oldest first."""
    root = out / "checkpoints"
    if not root.is_dir():
        return []
    return sorted(p.name for p in root.iterdir() if re.fullmatch(r"[0-9]{12}-.*", p.name) and p.is_dir())


def newest(out: Path) -> Path:
    """Its newest checkpoint."""
    return out / "checkpoints" / names(out)[-1]


def line(name: str) -> int:
    """The line of Algorithm 1 that a checkpoint stands in."""
    return int(name.split("-")[1].split(".", maxsplit=1)[0])


def inside_second_line(name: str) -> bool:
    """Whether a checkpoint stands inside the second line: the auxiliary phase, or the value line of daac and idaac."""
    _, epoch, minibatch = name.split("-")[1].split(".")
    return line(name) > 1 and (int(epoch), int(minibatch)) > (0, 0)


def differences(out: Path, reference: Path) -> list[str]:
    """The files of a finished run whose bytes are not the reference's."""
    pairs = [(name, out / name, reference / name) for name in ("metrics.jsonl", "eval.jsonl")]
    ends = [[n for n in names(run) if FINAL.fullmatch(n)][-1:] for run in (out, reference)]
    if not all(ends) or ends[0] != ends[1]:
        return [f"final checkpoints {ends[0]} instead of {ends[1]}"]
    mine, theirs = (run / "checkpoints" / ends[0][0] for run in (out, reference))
    files = [{p.name for p in folder.iterdir()} - {"manifest.json"} for folder in (mine, theirs)]
    if files[0] != files[1]:
        return [f"files {sorted(files[0])} instead of {sorted(files[1])}"]
    pairs += [(name, mine / name, theirs / name) for name in files[0]]
    return [name for name, a, b in pairs if a.read_bytes() != b.read_bytes()]


def temporary(out: Path) -> list[str]:
    """Temporary files and folders that are left."""
    return [str(p.relative_to(out)) for p in out.rglob(".tmp-*")]


def listing(folder: Path) -> dict[str, str]:
    """Every file under a folder with its hash."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "folder"
        for p in sorted(folder.rglob("*"))
        if not p.is_symlink()
    }


def copy(source: Path, target: Path) -> Path:
    """A copy of a run to damage."""
    shutil.copytree(source, target, symlinks=True)
    return target


def flip(path: Path, place: float = 0.6) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(bytes(data))


def rewrite(checkpoint: Path, key: str, data: bytes, **meta: Any) -> None:
    """Change a file of a checkpoint and make its manifest say so, as an attacker or a strange program would."""
    where = checkpoint.parent / key if key.startswith("shared/") else checkpoint / key
    if key:
        where.write_bytes(data)
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    if key:
        manifest["files"][key] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_bytes(sealed(manifest | meta))


def split(data: bytes) -> list[bytes]:
    """The byte strings of a list file."""
    count = struct.unpack_from("<q", data)[0]
    lengths = struct.unpack_from(f"<{count}q", data, 8)
    ends = 8 * (count + 1) + np.cumsum(lengths)
    return [data[e - n : e] for e, n in zip(ends.tolist(), lengths, strict=True)]


def joined(parts: list[bytes]) -> bytes:
    """The other way."""
    return struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)) + b"".join(parts)


def envs(checkpoint: Path) -> list[bytes]:
    """The states of a checkpoint's environments."""
    return _collector(checkpoint)[1:]


def _collector(checkpoint: Path) -> list[bytes]:
    """What the choosers remember, as JSON, and the states of the environments."""
    return split(zstandard.ZstdDecompressor().decompress((checkpoint / "collector.zst").read_bytes()))


def set_envs(checkpoint: Path, parts: list[bytes]) -> None:
    packed = joined([_collector(checkpoint)[0], *parts])
    rewrite(checkpoint, "collector.zst", zstandard.ZstdCompressor().compress(packed))


def memory(checkpoint: Path, name: str) -> Any:
    """What a checkpoint's chooser remembers: levels, augmentation."""
    return json.loads(_collector(checkpoint)[0])[name]


def set_memory(checkpoint: Path, name: str, value: Any) -> None:
    """Replace it, with a matching hash."""
    first, *rest = _collector(checkpoint)
    packed = joined([json.dumps(json.loads(first) | {name: value}).encode(), *rest])
    rewrite(checkpoint, "collector.zst", zstandard.ZstdCompressor().compress(packed))


def only(out: Path, keep: str) -> None:
    """Leave one checkpoint."""
    for name in names(out):
        if name != keep:
            shutil.rmtree(out / "checkpoints" / name)


def events(path: Path) -> list[tuple[int, str, str]]:
    """What `trace-disk` wrote down."""
    return [(n, kind, where) for n, kind, where in map(json.loads, path.read_text().splitlines())]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """So many of them, evenly, first and last included."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]

"""Hours of kills: one run and one sweep side by side, killed at random and resumed, compared with undisturbed ones.

    python -m tests.faults.soak --hours 2 --out DIR

Each is made once without disturbance. Then, until the time is over, it is started, killed every few minutes (mostly
SIGKILL, sometimes SIGTERM) and resumed until it ends; its bytes are compared, and it begins anew. Memory and file
descriptors of every process are sampled on the way: DIR/samples.csv, DIR/kills.csv and DIR/soak.png.
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dcpg.sweep.plan import read
from tests.faults.driver import ROOT, differences, temporary

SWEEP = """
methods = ["dcpg", "ppo"]
games = "coinrun"
seeds = 2
steps = {steps}
preset = "laptop"

[set]
evaluation.episodes = 20
machine.threads = 1
checkpoints.minutes = 0.5
"""
SETTINGS = ("evaluation.episodes=20", "machine.threads=1", "checkpoints.minutes=0.5")
SAMPLE_SECONDS = 2.0
WARM = 180.0  # seconds after which a process has all that it needs, on a busy machine too
TERM = 0.2  # of the kills


@dataclass
class Log:
    """What was seen, by everybody, in order."""

    began: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, str, int, float, int]] = field(default_factory=list)
    kills: list[tuple[float, str, str]] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def sample(self, kind: str, process: psutil.Process) -> None:
        """Memory in MiB and open descriptors of a process and of all that it started."""
        for one in [process, *_children(process)]:
            try:
                with one.oneshot():
                    name = f"{kind}, driver" if kind == "sweep" and one == process else kind
                    self.samples.append((self.now, name, one.pid, one.memory_info().rss / 2**20, one.num_fds()))
            except psutil.Error:
                continue


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


class Soaked(threading.Thread, ABC):
    """One command that is killed and started again until it ends, round after round."""

    def __init__(self, kind: str, log: Log, until: float, every: float, seed: int) -> None:
        super().__init__(name=kind)
        self.kind, self.log, self.until, self.every = kind, log, until, every
        self.random = random.Random(f"{seed} {kind}")

    @abstractmethod
    def command(self, fresh: bool) -> list[str]: ...

    @abstractmethod
    def check(self) -> list[str]:
        """What is not as in the undisturbed one."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the results of a round."""

    def run(self) -> None:
        while self.log.now < self.until:
            self.clear()
            if not self._round():
                return
            found = self.check()
            self.log.compared[self.kind] += 1
            self.log.wrong += [f"{self.kind}: {one}" for one in found]
            print(f"{self.log.now:7.0f} s  {self.kind}: a round ended, {len(found)} differences", flush=True)

    def _round(self) -> bool:
        fresh = True
        while True:
            process = subprocess.Popen(
                [sys.executable, "-m", "dcpg", *self.command(fresh)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            code, killed = self._watch(process)
            if code == 0:
                return True
            if not killed and not (fresh and code == 2):
                said = process.stderr.read()[-500:] if process.stderr else ""
                self.log.wrong.append(f"{self.kind}: ended by itself with {code}: {said}")
                return False
            fresh = not self.begun()

    def begun(self) -> bool:
        """Whether there is something to resume."""
        return True

    def _watch(self, process: subprocess.Popen[str]) -> tuple[int, bool]:
        """Sample a process until it ends or is killed; its exit code, and whether it was killed."""
        seen = psutil.Process(process.pid)
        # after the time is over, the last round ends in peace
        at, killed = self.log.now + self.random.expovariate(1 / self.every), False
        while process.poll() is None:
            self.log.sample(self.kind, seen)
            if at < self.log.now < self.until and not killed:
                killed = self._kill(seen)
                at = self.log.now + self.random.expovariate(1 / self.every)
            time.sleep(SAMPLE_SECONDS)
        if process.stderr is not None and process.returncode == 0:
            process.stderr.close()
        return process.returncode, killed

    def _kill(self, process: psutil.Process) -> bool:
        """Kill the process or, of a sweep, one of its trainers; whether it was the process."""
        number = signal.SIGTERM if self.random.random() < TERM else signal.SIGKILL
        victim = process
        if self.kind == "sweep" and self.random.random() < 0.5 and (children := _children(process)):
            victim = self.random.choice(children)
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        which = "its driver" if self.kind == "sweep" and victim == process else "a trainer"
        self.log.kills.append((self.log.now, self.kind, f"{number.name} {which}"))
        return victim == process


class OneRun(Soaked):
    """A run of the laptop preset."""

    def __init__(self, folder: Path, steps: int, *rest: Any) -> None:
        super().__init__("run", *rest)
        self.folder, self.steps = folder, steps

    def train(self, out: Path) -> list[str]:
        words = ["train", "dcpg", "--game", "starpilot", "--preset", "laptop", "--steps", str(self.steps)]
        return [*words, "--out", str(out), *(word for pair in SETTINGS for word in ("--set", pair))]

    def command(self, fresh: bool) -> list[str]:
        return self.train(self.folder / "run") if fresh else ["resume", str(self.folder / "run")]

    def begun(self) -> bool:
        return (self.folder / "run" / "config.json").exists()

    def reference(self) -> None:
        _must(self.train(self.folder / "undisturbed-run"))

    def check(self) -> list[str]:
        out = self.folder / "run"
        return [*differences(out, self.folder / "undisturbed-run"), *temporary(out)]

    def clear(self) -> None:
        shutil.rmtree(self.folder / "run", ignore_errors=True)


class OneSweep(Soaked):
    """A sweep of four runs on the local engine."""

    def __init__(self, folder: Path, steps: int, *rest: Any) -> None:
        super().__init__("sweep", *rest)
        self.folder, self.file = folder, folder / "soak.toml"
        self.file.write_text(SWEEP.format(steps=steps))

    def command(self, fresh: bool) -> list[str]:
        return ["sweep", str(self.file), "--out", str(self.folder / "sweep"), "--retry"]

    def reference(self) -> None:
        _must(["sweep", str(self.file), "--out", str(self.folder / "undisturbed-sweep")])

    def check(self) -> list[str]:
        found = []
        for job in read(str(self.file)).jobs:
            out, other = (self.folder / sweep / "runs" / job.name for sweep in ("sweep", "undisturbed-sweep"))
            found += [f"{job.name}: {name}" for name in [*differences(out, other), *temporary(out)]]
        return found

    def clear(self) -> None:
        shutil.rmtree(self.folder / "sweep", ignore_errors=True)


def _must(words: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "dcpg", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def growth(log: Log) -> dict[str, tuple[int, float, float, int, int]]:
    """Of each kind: how many lived for long, most growth after the warm-up in MiB, peak; the same of descriptors."""
    lives: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    for at, kind, pid, rss, fds in log.samples:
        lives[kind, pid].append((at, rss, fds))
    found: dict[str, tuple[int, float, float, int, int]] = {}
    for kind in sorted({kind for kind, _ in lives}):
        mine = [life for (one, _), life in lives.items() if one == kind]
        warm = [[s for s in life if s[0] - life[0][0] > WARM] for life in mine]
        long = [life for life in warm if len(life) > 5]
        found[kind] = (
            len(long),
            max((life[-1][1] - life[0][1] for life in long), default=0.0),
            max(s[1] for life in mine for s in life),
            max((life[-1][2] - life[0][2] for life in long), default=0),
            max(s[2] for life in mine for s in life),
        )
    return found


def draw(log: Log, out: Path) -> None:
    """Memory and descriptors of every process over time, with a line for each kill."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    colours = {"run": "#2a6fbb", "sweep": "#c96f2a", "sweep, driver": "#4a8f4a"}
    lives: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    for at, kind, pid, rss, fds in log.samples:
        lives[kind, pid].append((at / 60, rss, fds))
    figure, axes = plt.subplots(2, 1, figsize=(10, 6), sharex=True, layout="constrained")
    for (kind, _), life in lives.items():
        for axis, column in zip(axes, (1, 2), strict=True):
            axis.plot([s[0] for s in life], [s[column] for s in life], color=colours[kind], linewidth=1)
    for at, _, what in log.kills:
        for axis in axes:
            axis.axvline(at / 60, color="#999999", linewidth=0.4, linestyle="-" if "KILL" in what else ":")
    for kind, colour in colours.items():
        axes[0].plot([], [], color=colour, label=kind)
    axes[0].legend(loc="lower right")
    axes[0].set(ylabel="resident memory, MiB", ylim=(0, None))
    axes[1].set(ylabel="open file descriptors", xlabel="minutes", ylim=(0, None))
    figure.savefig(out, dpi=120)


def write(log: Log, folder: Path) -> None:
    """The samples, the kills and the picture."""
    with open(folder / "samples.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "process", "pid", "rss_mib", "descriptors"])
        rows.writerows((f"{at:.1f}", kind, pid, f"{rss:.1f}", fds) for at, kind, pid, rss, fds in log.samples)
    with open(folder / "kills.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["seconds", "of", "kill"])
        rows.writerows((f"{at:.1f}", kind, what) for at, kind, what in log.kills)
    draw(log, folder / "soak.png")


def main() -> int:
    """Soak, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=float, default=150.0, help="mean seconds between two kills of one command")
    parser.add_argument("--steps", type=int, default=131_072, help="of the run")
    parser.add_argument("--sweep-steps", type=int, default=32_768, help="of each run of the sweep")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    log = Log()
    common = (log, given.hours * 3600, given.every, given.seed)
    both = [OneRun(given.out, given.steps, *common), OneSweep(given.out, given.sweep_steps, *common)]
    for one in both:
        print(f"{one.kind}: undisturbed", flush=True)
        one.reference()
    log.began = time.monotonic()
    for one in both:
        one.start()
    for one in both:
        one.join()
    write(log, given.out)
    kinds = Counter(f"{kind}: {what}" for _, kind, what in log.kills)
    print(f"{log.now / 3600:.2f} hours, {len(log.kills)} kills: {dict(sorted(kinds.items()))}")
    rounds = ", ".join(f"{number} x {kind}" for kind, number in log.compared.items())
    print(f"compared byte for byte with undisturbed ones: {rounds or 'none'}; {len(log.wrong)} differences")
    for kind, (long, more, peak, fds, most) in growth(log).items():
        print(
            f"{kind}: {long} processes of more than {WARM:.0f} s; memory grew by at most {more:.0f} MiB after that, "
            f"peak {peak:.0f} MiB; descriptors by at most {fds}, peak {most}"
        )
    for one in log.wrong:
        print(f"wrong: {one}")
    return 1 if log.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

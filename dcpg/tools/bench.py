"""`dcpg bench`: what a method costs here at its true sizes, against this machine's own matrix-multiply rate.

Each method runs in a process of its own, on the real code path and real Procgen. A sample of every kind of work is
timed (steps of collection, whole minibatches of each "Optimise" line, whole segments) and scaled to a cycle: N_pi
rollouts and their auxiliary phase. The kinds take turns, and each figure is the median of its turns. The matrix
multiply is timed before and after each piece of work and every second or so within it: machines are shared, and a piece
is held against the rate that this one had meanwhile.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpg.config.build import build_network, make_train, splits, train_levels
from dcpg.config.resolve import resolve
from dcpg.config.schema import Config, Net
from dcpg.core.algorithm import Algorithm
from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer, compress
from dcpg.core.collector import collect
from dcpg.core.method import B, Optimise
from dcpg.core.networks import Impala, Network
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.rollout import Rollout
from dcpg.core.stiffness import stiffness as measure_stiffness
from dcpg.core.targets import with_targets
from dcpg.envs.base import Spaces, Step, VectorEnv
from dcpg.errors import BadInput, DcpgError
from dcpg.machine.devices import device_of
from dcpg.machine.memory import keep_freed_memory, peak_gb
from dcpg.machine.needs import needs
from dcpg.seeding import generator
from dcpg.training import state as snapshot

GAME = "starpilot"  # its segments compress worst of all games, so B is at its largest


MATRIX = 1024  # the rate is that of multiplying two matrices of this size


MULTIPLIES = 4  # a probe of the rate, some 50 ms


PROBE_EVERY = 8  # chunks of frames between two probes within a piece of work


FORWARD = 61.0  # MFLOP of one 64 x 64 frame through the paper's encoder, by convention; a training pass is three times


TURNS = 3


WARM_UP = -1  # a turn that is not counted: memory and kernels are made ready


ACTING_STEPS = 16  # steps of all environments in one turn


NAIVE_FRAMES = 1024  # an auxiliary minibatch


STIFFNESS_STATES = 1024  # a sample of the states of a measurement; memory and time per state do not depend on them


PAPER_STATES = 16_384  # of a measurement in the paper


DEFAULT_METHODS = ("ppo", "ppg", "dcpg", "ddcpg")


PARTS = ("acting", "environment", "policy", "auxiliary", "segments", "other")


# -- several methods
def bench(methods: Sequence[str], preset: str, settings: Mapping[str, Any], memory: bool) -> dict[str, Any]:
    """The figures of several methods, each measured in a process of its own."""
    found: dict[str, Any] = {"machine": {}, "methods": {}}
    for name in methods:
        config = resolve(name, GAME, preset=preset, settings=settings)  # what is wrong with the input is said here
        if device_of(config).type != "cpu":
            raise BadInput("dcpg bench measures CPUs only, so far.")
    for number, name in enumerate(methods, 1):
        print(f"Measuring {name} ({number} of {len(methods)}) ...", file=sys.stderr)
        asked = {"method": name, "preset": preset, "settings": dict(settings), "memory": memory}
        command = [sys.executable, "-m", "dcpg.tools.bench", json.dumps(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (this interpreter)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise DcpgError(f"The measurement of {name} did not end well: {last[0]}")
        result = json.loads(done.stdout.splitlines()[-1])
        found["machine"] = result.pop("machine")
        found["methods"][name] = result
    rates = [m["matmul_gflops"] for m in found["methods"].values() if "matmul_gflops" in m]
    if rates:
        found["machine"]["matmul_gflops"] = statistics.median(rates)
    return found


def main(asked: str) -> None:
    """`python -m dcpg.bench {...}`: one method, as JSON."""
    a = json.loads(asked)
    config = resolve(a["method"], GAME, preset=a["preset"], settings=a["settings"])
    result = filled(config) if a["memory"] else Measurement(config).run()
    print(json.dumps({"machine": {"threads": config.machine.threads, "cpu": cpu_name()}, **result}))


def cpu_name() -> str:
    """The processor, as the system names it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


# -- one method
@dataclass
class Work:
    """One kind of work: timed in turns, and how often a cycle does it for each environment step."""

    part: str
    run: Callable[[int], float]  # turn -> seconds
    per_step: float  # times of it that one environment step costs
    trains: bool = False  # gradients are computed
    seconds: list[float] = field(default_factory=list)
    possible: list[float] = field(default_factory=list)  # GFLOP of matrix multiplies that would have fitted in
    mflop: float = 0.0  # of one time

    @property
    def ms(self) -> float:
        """Milliseconds per environment step."""
        return 1e3 * self.per_step * statistics.median(self.seconds)

    @property
    def possible_mflop(self) -> float:
        """MFLOP per environment step that matrix multiplies would have done in the same time."""
        return 1e3 * self.per_step * statistics.median(self.possible)


class Meter:
    """Counts the frames that go through the encoders, and probes the machine's rate now and then on the way."""

    def __init__(self, network: Network) -> None:
        self.passes = 0  # frames, one with a gradient as three
        self.rates: list[float] = []
        self.paused = 0.0  # seconds of probes
        self.calls = 0
        encode = network.encode

        def watched(encoder: str, frames: Tensor, chunk: int) -> Tensor:
            self.calls += 1
            if self.calls % PROBE_EVERY == 0:
                self.probe()
            features = encode(encoder, frames, chunk)
            self.passes += (3 if features.requires_grad else 1) * len(features)
            return features

        network.encode = watched  # type: ignore[method-assign]

    def probe(self) -> None:
        """The rate now."""
        start = time.perf_counter()
        self.rates.append(matmul_gflops())
        self.paused += time.perf_counter() - start

    def measure(self, work: Work, turn: int, forward_mflop: float) -> None:
        """A piece of work."""
        self.passes, self.rates, self.calls = 0, [], 0
        self.probe()
        self.paused = 0.0
        seconds = work.run(turn) - self.paused
        self.probe()
        if turn != WARM_UP:
            work.seconds.append(seconds)
            work.possible.append(seconds * statistics.mean(self.rates))
            work.mflop = forward_mflop * self.passes


class TimedEnv:
    """The environments, with the time that their steps take."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.seconds = env, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, actions: Any) -> Step:
        """A step, timed."""
        start = time.perf_counter()
        step = self.env.step(actions)
        self.seconds += time.perf_counter() - start
        return step


class Measurement:
    """One method at its true sizes in this process."""

    def __init__(self, config: Config) -> None:
        self.config, self.method = config, config.declared()
        machine, T, N = config.machine, config.rollout_length, config.env.num_envs
        torch.set_num_threads(machine.threads)
        keep_freed_memory()
        self.device = device_of(config)
        self.env = TimedEnv(make_train(config, None, train_levels(config)))
        self.network = build_network(config, self.env.shape, self.env.num_actions).to(self.device)
        self.meter = Meter(self.network)
        self.algorithm = Algorithm(
            self.method, config.algorithm, self.network, lambda rollout: self.tau,
            Buffer(self.method.keep, T, N, self.env.shape, self.env.dtype),
            seed=0, actions=self.env.num_actions, chunk=machine.chunk, device=self.device, precision=machine.precision,
        )  # fmt: skip
        self.tau = self.sample()

    def sample(self) -> Rollout:
        """A rollout of real frames under random actions."""
        T, N = self.config.rollout_length, self.config.env.num_envs
        rng, g = np.random.default_rng(0), generator(0, "bench")
        frames = np.empty((T + 1, N, *self.env.shape), self.env.dtype)
        rewards, dones, levels = np.empty((T, N), np.float32), np.empty((T, N), bool), np.empty((T, N), np.int64)
        frames[0], now = self.env.observe()
        for t in range(T):
            levels[t] = now
            step = self.env.step(rng.integers(0, self.env.num_actions, N))
            frames[t + 1], rewards[t], dones[t], now = step.frames, step.rewards, step.dones, step.levels
        return Rollout(
            frames=torch.from_numpy(frames),
            actions=torch.randint(0, self.env.num_actions, (T, N), generator=g),
            log_probs=torch.full((T, N), -math.log(self.env.num_actions)),
            values={head: torch.randn(T + 1, N, generator=g) for head in self.method.targets},
            final_values={head: torch.zeros(T, N) for head in self.method.targets},
            raw_rewards=torch.from_numpy(rewards),
            rewards=torch.from_numpy(rewards.copy()),
            dones=torch.from_numpy(dones),
            valid=torch.ones(T, N, dtype=torch.bool),
            crosses=torch.from_numpy(dones.copy()),
            levels=torch.from_numpy(levels),
            step_counts=torch.zeros(T, N, dtype=torch.int64),
        )

    def run(self) -> dict[str, Any]:
        """All kinds of work in turns, and the naive path last, which takes much memory."""
        self.tau = with_targets(self.tau, self.method)
        works = [*self.collection(), *self.policy(), *self.auxiliary()]
        forward = self.forward_mflop
        for turn in (WARM_UP, *range(TURNS)):
            for work in works:
                self.meter.measure(work, turn, forward)
        peak = peak_gb()
        return {**self._result(works, peak, self.naive()), "stiffness": self.stiffness()}

    def collection(self) -> Iterator[Work]:
        """Acting, the environments, and what is computed once a rollout."""
        size, N = self.config.rollout_size, self.config.env.num_envs
        uniform = torch.rand(ACTING_STEPS, N, generator=generator(0, "act"), dtype=torch.float64)
        stepping: dict[int, float] = {}

        def acting(turn: int) -> float:
            self.env.seconds = 0.0
            start = time.perf_counter()
            collect(self.env, self.algorithm.actor, uniform, lambda: None)
            stepping[turn] = self.env.seconds
            return time.perf_counter() - start - self.env.seconds

        # a rollout's last frames need their value: a pass of one encoder, here once in 16 steps, there once in 256
        passes = ACTING_STEPS + 1 / len(self.method.networks)

        def targets(turn: int) -> float:
            start = time.perf_counter()
            RewardNormaliser.fresh(N)(self.tau.rewards.numpy(), self.tau.dones.numpy(), self.tau.valid.numpy())
            with_targets(self.tau, self.method)
            self.env.state()
            return time.perf_counter() - start

        yield Work("acting", acting, 1 / (passes * N))
        yield Work("environment", lambda turn: stepping[turn], 1 / (ACTING_STEPS * N))
        yield Work("other", targets, 1 / size)

    def policy(self) -> Iterator[Work]:
        """Minibatches of tau."""
        for line in self.method.policy_phase:
            minibatches = line.data.minibatches_of(len(self.tau))
            per_step = line.epochs * minibatches / self.config.rollout_size
            yield Work("policy", partial(self._minibatch, line, self.tau), per_step, trains=True)

    def auxiliary(self) -> Iterator[Work]:
        """pi_old's outputs, minibatches of B, and B's segments; B holds what whole minibatches need."""
        lines = [(line, line.data.segments) for line in self.method.auxiliary_phase if isinstance(line.data, B)]
        if not lines:
            return
        kept, T, N = self.algorithm.B, self.config.rollout_length, self.config.env.num_envs
        segments = compress(self.tau.frames)
        for rollout in range(math.lcm(N, *(count for _, count in lines)) // N):
            kept.add(rollout, self.tau, segments)
        kept.old_log_policy = torch.full((len(kept), T, self.algorithm.actions), -math.log(self.algorithm.actions))
        states = kept.states(torch.tensor([0]))[:, 0]
        yield Work("auxiliary", _timed(lambda: self.algorithm.actor.log_policy(states)), 1 / T)
        for line, count in lines:
            per_step = line.epochs / (count * T)
            yield Work("auxiliary", partial(self._minibatch, line, kept), per_step, trains=True)
            yield Work("segments", _timed(partial(kept.minibatch, torch.arange(count))), per_step)
        yield Work("segments", _timed(lambda: kept.states(torch.tensor([0]))), 1 / T)
        yield Work("segments", _timed(lambda: compress(self.tau.frames)), 1 / (T * N))

    def _minibatch(self, line: Optimise, data: Rollout | Buffer, turn: int) -> float:
        """A whole minibatch of a line, as the loop trains it; opening B's segments is counted on its own."""
        rows = self.rows(line, data, turn)
        opened = data.minibatch(rows)
        start = time.perf_counter()
        batch = self.drawn(line, data, data.minibatch(rows) if data is self.tau else opened, turn)
        if turn == WARM_UP and not line.couples:
            batch = next(batch.chunks(2 * self.config.machine.chunk))
        self.step(line, batch)
        return time.perf_counter() - start

    def rows(self, line: Optimise, data: Rollout | Buffer, number: int) -> Tensor:
        """The samples of a minibatch of true size."""
        split = data.order(generator(0, "order")).tensor_split(line.data.minibatches_of(len(data)))
        return split[number % len(split)]

    def drawn(self, line: Optimise, data: Rollout | Buffer, batch: Batch, number: int) -> Batch:
        """A minibatch with what its line draws."""
        g = generator(0, "draw", number)
        return line.draw(batch, data, g, self.algorithm.actions) if line.draw is not None else batch

    def step(self, line: Optimise, batch: Batch) -> None:
        """The optimiser steps on a minibatch."""
        for name, terms in line.adams.items():
            self.algorithm.step(name, terms, [batch.to(self.device)], line.couples)

    def naive(self) -> float:
        """How many times as long a training pass of the encoder takes in plain PyTorch."""
        encoder, head = self.network.get_submodule("theta"), self.network.get_submodule("policy")
        assert isinstance(encoder, Impala)
        batch = self.tau.minibatch(torch.arange(min(NAIVE_FRAMES, self.config.rollout_size))).to(self.device)
        plain = contiguous(encoder)

        def naive() -> None:
            pixels = batch.frames.permute(0, 3, 1, 2).contiguous().float().div(255)
            head(naive_features(plain, pixels)).square().sum().backward()
            plain.zero_grad()

        def ours() -> None:
            for part in batch.chunks(self.config.machine.chunk):
                head(encoder(part.frames)).square().sum().backward()
            encoder.zero_grad()

        naive()
        return statistics.median(_timed(naive)(turn) / _timed(ours)(turn) for turn in range(TURNS))

    def stiffness(self) -> dict[str, float]:
        """A measurement of value stiffness, against a training pass of the same value network on the same states."""
        head, chunk = self.method.advantages, self.config.machine.chunk
        count = min(STIFFNESS_STATES, self.config.rollout_size)
        frames = self.tau.frames[:-1].flatten(0, 1)[:count]
        returns = self.tau.returns[head].flatten()[:count]
        encoder = self.network.get_submodule(self.network.stands_on[head])

        def training_pass() -> None:
            for part, target in zip(torch.split(frames, chunk), torch.split(returns, chunk), strict=True):
                value = self.network.get_submodule(head)(encoder(part)).squeeze(1)
                (0.5 * (value - target).square()).sum().backward()
            self.network.zero_grad()

        measure = _timed(lambda: measure_stiffness(self.network, head, frames, returns, chunk))
        training_pass()
        turns = [(measure(turn), _timed(training_pass)(turn)) for turn in range(TURNS)]
        return {
            "training_passes": statistics.median(ours / theirs for ours, theirs in turns),
            "seconds": statistics.median(ours for ours, _ in turns) * PAPER_STATES / count,
        }

    @property
    def forward_mflop(self) -> float:
        """MFLOP of one frame through one encoder."""
        c = self.config
        return FORWARD if c.network == Net() and c.env.frame_size == 64 else encoder_mflop(self.network, self.env.shape)

    def _result(self, works: list[Work], peak: float, naive: float) -> dict[str, Any]:
        ms = {part: sum(w.ms for w in works if w.part == part) for part in PARTS}
        cycle = sum(ms.values())

        def mflop(some: Sequence[Work]) -> float:
            return sum(w.mflop * w.per_step for w in some)

        def ratio(some: Sequence[Work]) -> float:
            return mflop(some) / sum(w.possible_mflop for w in some)

        return {
            "steps_per_s": 1e3 / cycle,
            "ms_per_step": {**ms, "cycle": cycle},
            "mflop_per_step": mflop(works),
            "matmul_gflops": sum(w.possible_mflop for w in works) / cycle,
            "ratio": {
                "training_pass": ratio([w for w in works if w.trains]),
                "acting": ratio([w for w in works if w.part == "acting"]),
                "cycle": ratio(works),
            },
            "speedup_over_naive": naive,
            "peak_memory_gb": peak,
        }


def matmul_gflops() -> float:
    """The rate at which two square matrices are multiplied, now."""
    a, out = torch.ones(MATRIX, MATRIX), torch.empty(MATRIX, MATRIX)
    with torch.no_grad():
        torch.mm(a, a, out=out)  # brings them into the cache
        start = time.perf_counter()
        for _ in range(MULTIPLIES):
            torch.mm(a, a, out=out)
    return MULTIPLIES * 2 * MATRIX**3 / (time.perf_counter() - start) / 1e9


def _timed(work: Callable[[], Any]) -> Callable[[int], float]:
    def run(turn: int) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


# -- the naive path
def contiguous(encoder: Impala) -> Impala:
    """A copy of an encoder in PyTorch's default memory layout."""
    twin = copy.deepcopy(encoder)
    twin.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return twin


def naive_features(encoder: Impala, pixels: Tensor) -> Tensor:
    """The encoder as one would write it down: float frames [b, 3, H, W], the whole minibatch at once."""

    def conv(layer: nn.Conv2d, x: Tensor) -> Tensor:
        return F.conv2d(x, layer.weight, layer.bias, padding=1)

    x = pixels
    for stack in encoder.stacks():
        x = F.max_pool2d(conv(stack.conv, x), 3, stride=2, padding=1)
        for block in (stack.block0, stack.block1):
            x = x + conv(block.conv2, F.relu(conv(block.conv1, F.relu(x))))
    return F.relu(encoder.fc(F.relu(x.flatten(1))))


def encoder_mflop(network: Network, shape: tuple[int, ...]) -> float:
    """MFLOP of one frame through an encoder, counted."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.get_submodule("theta")(torch.zeros(1, *shape, dtype=torch.uint8))
    return float(counter.get_total_flops()) / 1e6


# -- memory
def filled(config: Config) -> dict[str, Any]:
    """Peak memory with B full of real frames: then steps of every line, a checkpoint's files, an evaluation's games."""
    m = Measurement(config)
    kept, method = m.algorithm.B, m.method
    if method.auxiliary_phase:
        for rollout in range(method.N_pi):
            m.tau = dataclasses.replace(m.tau, frames=torch.empty(0))  # as in a run, one rollout at a time is there
            m.tau = with_targets(m.sample(), method)
            kept.add(rollout, m.tau, compress(m.tau.frames))
        shape = (len(kept), config.rollout_length, m.algorithm.actions)
        kept.old_log_policy = torch.full(shape, -math.log(m.algorithm.actions))
    else:
        m.tau = with_targets(m.tau, method)
    for lines, data in ((method.policy_phase, m.tau), (method.auxiliary_phase, kept)):
        for line in lines:
            batch = data.minibatch(m.rows(line, data, 0))
            for number in range(1, 3):
                ahead = data.minibatch(m.rows(line, data, number))  # as the loop opens B's segments ahead
                m.step(line, m.drawn(line, data, batch, number))
                batch = ahead
    m.algorithm.tau = m.tau
    files = snapshot.own_files(m.algorithm, m.env.state(), {})
    for make in snapshot.shared_files(m.algorithm).values():
        make()
    del files
    for make_env in splits(config, None).values():
        env = make_env(config.evaluation.episodes, 0)
        m.algorithm.actor(env.observe()[0])
        env.close()
    held = sum(len(segment) for rollout in kept.rollouts.values() for segment in rollout.segments)
    bound = needs(config, Spaces.of(m.env))
    return {"peak_memory_gb": peak_gb(), "buffer_gb": held / 1e9, "bound_gb": bound.memory / 1e9}


# -- for people
def shown(found: dict[str, Any]) -> str:
    """The figures as tables."""
    machine, methods = found["machine"], found["methods"]
    if "matmul_gflops" not in machine:
        columns = {"peak GB": "peak_memory_gb", "of it B": "buffer_gb", "bound": "bound_gb"}
        rows = {name: [m[key] for key in columns.values()] for name, m in methods.items()}
        return "\n".join([f"{machine['cpu']}, {machine['threads']} threads", *_table(columns, rows, "12.2f")])
    parts = (*PARTS, "cycle")
    times = {name: [m["ms_per_step"][part] for part in parts] for name, m in methods.items()}
    ratios = ("training_pass", "acting", "cycle")
    shares = {name: [m["ratio"][part] for part in ratios] for name, m in methods.items()}
    columns = {
        "steps/s": "steps_per_s", "MFLOP/step": "mflop_per_step", "x naive": "speedup_over_naive",
        "GB (B short)": "peak_memory_gb", "matmul": "matmul_gflops",
    }  # fmt: skip
    rest = {name: [m[key] for key in columns.values()] for name, m in methods.items()}
    stiff = {name: [m["stiffness"][key] for key in ("training_passes", "seconds")] for name, m in methods.items()}
    rate = f"{machine['matmul_gflops']:.0f} GFLOP/s in a matrix multiply"
    return "\n".join(
        [
            f"{machine['cpu']}, {machine['threads']} threads, {rate}",
            "\nmilliseconds per environment step",
            *_table(parts, times, "12.3f"),
            "\nshare of the matrix-multiply rate (61 MFLOP a frame forward, 183 a training pass)",
            *_table(ratios, shares, "14.0%"),
            "",
            *_table(columns, rest, "14.2f"),
            f"\na measurement of value stiffness on {PAPER_STATES:,} states",
            *_table(("training passes", "seconds"), stiff, "16.2f"),
            *_discriminator(methods),
        ]
    )


def _table(columns: Sequence[str] | Mapping[str, Any], rows: Mapping[str, Sequence[float]], form: str) -> list[str]:
    width = int(form.partition(".")[0])
    head = f"{'':14s}" + "".join(f"{column:>{width}s}" for column in columns)
    return [head, *(f"{name:14s}" + "".join(f"{x:{form}}" for x in row) for name, row in rows.items())]


def _discriminator(methods: Mapping[str, Any]) -> list[str]:
    """What the dynamics cost on top of DCPG, each at the speed that the machine had meanwhile."""
    if not {"dcpg", "ddcpg"} <= set(methods):
        return []
    plain, joint = (
        methods[name]["ms_per_step"]["cycle"] * methods[name]["matmul_gflops"] for name in ("dcpg", "ddcpg")
    )
    return [f"\nddcpg costs {joint / plain - 1:+.1%} over dcpg, at equal matrix-multiply rates"]


if __name__ == "__main__":
    main(sys.argv[1])

"""What one method costs at its true sizes: times, the machine's matrix-multiply rate at that time, and peak memory.

The parts of a run work on real Procgen. A sample of every kind of work is timed in turns and scaled to a cycle: N_pi
rollouts and their auxiliary phase. The matrix multiply is timed before and after each piece of work and every second or
so within it: machines are shared, and each piece is compared with the rate that the machine had at that time.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcpg.config.build import splits
from dcpg.config.schema import Config
from dcpg.core.actor import sample_actions
from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer
from dcpg.core.collector import with_rewards
from dcpg.core.encoders import Encoder, Net
from dcpg.core.method import B, Optimise
from dcpg.core.networks import Network
from dcpg.core.observer import LoopObserver
from dcpg.core.rewards import RewardNormaliser
from dcpg.core.rollout import Rollout
from dcpg.core.targets import with_targets
from dcpg.machine.devices import wait_for_gpu
from dcpg.machine.memory import peak_gb
from dcpg.ranks import ALONE
from dcpg.storage.rundir import RunDirectory
from dcpg.training.state import pack
from dcpg.training.trainer import Trainer

PARTS = ("acting", "environment", "policy", "auxiliary", "segments", "other")
TURNS = 3  # that are counted; one before them warms up memory and kernels
ACTING_STEPS = 16  # steps of all environments in one turn
NAIVE_FRAMES = 1024  # an auxiliary minibatch
MATRIX, MULTIPLIES = 1024, 4  # a probe of the rate multiplies two matrices of this size 4 times, in about 50 ms
GPU_MATRIX = 8192  # on a GPU, in float32 without TF32
PROBE_EVERY = 8  # chunks of frames between two probes within a piece of work
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FORWARD = 61.0  # MFLOP of one 64 x 64 frame through the paper's encoder, by convention; a training pass is three times


def seconds_of(work: Callable[[], Any]) -> float:
    """The time that some work takes, on a GPU until it has finished there."""
    wait_for_gpu()
    start = time.perf_counter()
    work()
    wait_for_gpu()
    return time.perf_counter() - start


def matmul_gflops(precision: str = "fp32", device: torch.device | str = "cpu") -> float:
    """The rate at which two square matrices are multiplied, now."""
    size = MATRIX if torch.device(device).type == "cpu" else GPU_MATRIX
    a = torch.ones(size, size, dtype=DTYPES[precision], device=device)
    out = torch.empty_like(a)
    with torch.no_grad():
        torch.mm(a, a, out=out)  # brings them into the cache
        seconds = seconds_of(lambda: [torch.mm(a, a, out=out) for _ in range(MULTIPLIES)])
    return MULTIPLIES * 2 * size**3 / seconds / 1e9


@dataclass
class Work:
    """A kind of work, timed in turns."""

    part: str
    per_step: float  # how often a cycle does it for each environment step
    run: Callable[[], Any]
    trains: bool = False  # computes gradients
    # seconds, GFLOP that matrix multiplies would have done meanwhile in the run's precision and in float32, frames
    # through an encoder (x 3 with a gradient)
    turns: list[tuple[float, float, float, int]] = field(default_factory=list)


def per_step(works: Sequence[Work]) -> list[float]:
    """Seconds, possible GFLOP and passes of the works for each environment step; the first turn is not counted."""
    medians = [work.per_step * np.median(work.turns[1:], axis=0) for work in works]
    return [float(x) for x in sum(medians, np.zeros(4))]


class Measurement:
    """One method at its true sizes in this process: the parts of a run, and a rollout to train on."""

    def __init__(self, config: Config) -> None:
        self.trainer = Trainer(config, RunDirectory(Path("unused"), writes=False))
        self.config, self.method = self.trainer.config, self.trainer.method  # with nothing automatic left
        self.trainer.collector.observer = LoopObserver()  # nothing is saved on the way
        self.env, self.network, self.algorithm = self.trainer.env, self.trainer.network, self.trainer.algorithm
        self.actor, self.B = self.trainer.collector.actor, self.algorithm.B
        self.encode, self.device = self.network.encode, self.algorithm.loader.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # whose end `seconds_of` waits for
        self.tau = self.sample(0)
        self.on_device = self.tau.on(self.device)

    def sample(self, rollout: int) -> Rollout:
        """Real frames under random actions: with features of zero the policy is uniform and costs nothing."""

        def zeros(encoder: str, frames: Tensor, chunk: int) -> Tensor:
            return torch.zeros(len(frames), self.config.network.features, device=frames.device)

        self.network.encode = zeros  # type: ignore[method-assign]
        tau = self.trainer.collector.sample(rollout)
        self.network.encode = self.encode  # type: ignore[method-assign]
        return tau

    def watched_encode(self, encoder: str, frames: Tensor, chunk: int) -> Tensor:
        """`Network.encode`, with passes counted and the machine's rate probed now and then."""
        self.calls += 1
        if self.calls % PROBE_EVERY == 0:
            self.excluded += seconds_of(self.probe)
        features = self.encode(encoder, frames, chunk)
        self.passes += (3 if features.requires_grad else 1) * len(features)
        return features

    def probe(self) -> None:
        """Time matrix multiplies in the run's precision, and in float32 to compare precisions at equal rates."""
        own = self.config.machine.precision
        rate = matmul_gflops(own, self.device)
        self.rates.append((rate, rate if own == "fp32" else matmul_gflops("fp32", self.device)))

    def measure(self, work: Work) -> None:
        """One turn of some work; what is excluded, such as the probes within it, is not part of its time."""
        self.passes, self.calls, self.excluded, self.rates = 0, 0, 0.0, list[tuple[float, float]]()
        self.probe()
        seconds = seconds_of(work.run) - self.excluded
        self.probe()
        own, float32 = map(mean, zip(*self.rates, strict=True))
        work.turns.append((seconds, seconds * own, seconds * float32, self.passes))

    def costs(self) -> dict[str, Any]:
        """All kinds of work in turns, and the naive path last, which takes much memory."""
        works = [*self.collection(), *self.optimisation()]
        self.network.encode = self.watched_encode  # type: ignore[method-assign]
        for _ in range(TURNS + 1):
            for work in works:
                self.measure(work)
        peak, papers = peak_gb(), self.config.network == Net() and self.config.env.frame_size == 64
        forward = FORWARD if papers else encoder_mflop(self.network, self.env.shape)
        ms = {part: 1e3 * per_step([w for w in works if w.part == part])[0] for part in PARTS}
        seconds, gflop, float32_gflop, passes = per_step(works)

        def ratio(some: Sequence[Work]) -> float:
            _, gflop, _, passes = per_step(some)
            return forward * passes / (1e3 * gflop)

        return {
            "steps_per_s": 1 / seconds,
            "ms_per_step": {**ms, "cycle": 1e3 * seconds},
            "mflop_per_step": forward * passes,
            "matmul_gflops": gflop / seconds,
            "matmul_fp32_gflops": float32_gflop / seconds,
            "ratio": {
                "training_pass": ratio([w for w in works if w.trains]),
                "acting": ratio([w for w in works if w.part == "acting"]),
                "cycle": ratio(works),
            },
            "speedup_over_naive": self.speedup_over_naive(),
            "peak_memory_gb": peak,
            **self.device_memory(),
        }

    def collection(self) -> Iterator[Work]:
        """Acting, the environments, and what is computed once per rollout."""
        (T, N), actions = self.tau.actions.shape, self.tau.actions.numpy()
        frames = [self.tau.states(torch.arange(t * N, (t + 1) * N)).numpy() for t in range(min(T, ACTING_STEPS))]
        uniform = torch.rand(N, dtype=torch.float64)

        def act() -> None:
            self.stepping = 0.0
            for t in range(ACTING_STEPS):
                log_policy, _ = self.actor(frames[t % len(frames)])
                sample_actions(log_policy, uniform)
                self.stepping += seconds_of(partial(self.env.step, actions[t % T]))
            self.excluded += self.stepping

        def step() -> None:
            self.excluded -= self.stepping  # timed in `act`: between passes of the network steps take longer

        def targets() -> None:
            with_targets(with_rewards(self.tau, RewardNormaliser.fresh(N)), self.method)
            self.env.state()

        yield Work("acting", 1 / (ACTING_STEPS * N), act)
        yield Work("environment", 1 / (ACTING_STEPS * N), step)
        yield Work("other", 1 / (T * N), targets)

    def optimisation(self) -> Iterator[Work]:
        """Minibatches of every line, pi_old's outputs, and B's segments, as if the training waited for them."""
        T, N = self.tau.actions.shape
        for line in self.method.policy_phase:
            minibatches = line.data.minibatches_of(T * N)
            yield Work("policy", line.epochs * minibatches / (T * N), partial(self.load_and_step, line), trains=True)
        lines = [(line, line.data.segments) for line in self.method.auxiliary_phase if isinstance(line.data, B)]
        if not lines:
            return
        for rollout in range(math.lcm(N, *(segments for _, segments in lines)) // N):  # B of whole minibatches
            self.B.add(rollout, self.tau)
        self.remember()
        first = torch.tensor([0])
        frames = self.B.states(first)[:, 0]
        yield Work("auxiliary", 1 / T, lambda: self.actor.log_policy(frames))
        yield Work("segments", 1 / T, lambda: self.B.states(first))
        yield Work("segments", 1 / (T * N), lambda: dataclasses.replace(self.tau).segments)  # compressed anew
        for line, segments in lines:
            often = line.epochs / (segments * T)
            yield Work("auxiliary", often, partial(self.step, line, self.load(line)), trains=True)
            yield Work("segments", often, partial(self.load, line))

    def remember(self) -> None:
        """As if pi_old were uniform: the values of its outputs do not matter here."""
        shape = (len(self.B), self.config.rollout_length, self.env.num_actions)
        self.B.old_log_policy = torch.full(shape, -math.log(self.env.num_actions))

    def data(self, line: Optimise) -> Rollout | Buffer:
        return self.B if isinstance(line.data, B) else self.on_device

    def load(self, line: Optimise) -> list[Batch]:
        """The last minibatch of an epoch: after it no thread opens the next one."""
        minibatches = self.algorithm.loader.open(line, self.data(line), 0, 1)
        return minibatches.load(0, len(minibatches) - 1)

    def step(self, line: Optimise, batches: list[Batch]) -> None:
        for adam in line.adams:
            self.algorithm.stepper.step(adam, batches, line.couples)

    def load_and_step(self, line: Optimise) -> None:
        self.step(line, self.load(line))

    def speedup_over_naive(self) -> float:
        """How many times as long a training pass of the encoder takes in plain PyTorch and float32."""
        encoder, head = self.network.get_submodule("theta"), self.network.get_submodule("policy")
        assert isinstance(encoder, Encoder)
        batch = self.tau.minibatch(torch.arange(min(NAIVE_FRAMES, len(self.tau)))).to(self.device)
        plain = contiguous(encoder)

        def naive() -> None:
            head(naive_features(plain, batch.frames)).square().sum().backward()

        def ours() -> None:
            for part in batch.chunks(self.config.machine.chunk):
                head(self.encode("theta", part.frames, self.config.machine.chunk)).square().sum().backward()

        naive()
        return median(seconds_of(naive) / seconds_of(ours) for _ in range(TURNS))

    def memory(self) -> dict[str, float]:
        """Peak memory with B full of real frames, after two updates of every line, a checkpoint and an evaluation."""
        for rollout in range(self.method.length_of(0) if self.method.auxiliary_phase else 0):
            del self.tau, self.on_device  # as in a run, one rollout at a time is held
            self.tau = self.sample(rollout)
            self.on_device = self.tau.on(self.device)
            self.B.add(rollout, self.tau)
        self.remember()
        for line in self.method.lines:
            minibatches = self.algorithm.loader.open(line, self.data(line), 0, 1)
            for number in range(min(2, len(minibatches))):
                batches = minibatches.load(0, number)  # as in the loop, while the one before is still held
                self.step(line, batches)
        self.algorithm.tau = self.tau
        files, shared = pack(self.trainer.saver.parts, ALONE, self.trainer.needs.states)
        for make_file in shared.values():
            make_file()
        del files
        for make_env in splits(self.config, None).values():
            env = make_env(self.config.evaluation.most_episodes, 0)
            self.actor(env.observe()[0])
            env.close()
        buffer = sum(len(segment) for kept in self.B.rollouts.values() for segment in kept.segments)
        bound = self.trainer.needs.memory
        return {
            "peak_memory_gb": peak_gb(), "buffer_gb": buffer / 1e9, "bound_gb": bound / 1e9, **self.device_memory(),
        }  # fmt: skip

    def device_memory(self) -> dict[str, float]:
        """The peak memory on a GPU."""
        if self.device.type == "cpu":
            return {}
        return {"peak_device_gb": torch.cuda.max_memory_allocated(self.device) / 1e9}


def encoder_mflop(network: Network, shape: tuple[int, ...]) -> float:
    """MFLOP of one frame through an encoder, counted."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.get_submodule("theta")(torch.zeros(1, *shape, device=next(network.parameters()).device))
    return float(counter.get_total_flops()) / 1e6


def contiguous(encoder: Encoder) -> Encoder:
    """A copy of an encoder in PyTorch's default memory layout."""
    return copy.deepcopy(encoder).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]


def naive_features(encoder: Encoder, frames: Tensor) -> Tensor:
    """The encoder in plain PyTorch, all frames at once and in the default memory layout."""
    return encoder.walk(frames, lambda layer, x: layer(x.contiguous())) if encoder.walks else encoder(frames)

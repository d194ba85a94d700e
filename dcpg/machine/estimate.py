"""How long a run will take, estimated from a short probe of its networks on this machine."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import zstandard

from dcpg.config.build import augmenter_of, build_network
from dcpg.config.schema import Config
from dcpg.core.actor import Actor
from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer, Kept
from dcpg.core.draws import draw_negatives_from_B
from dcpg.core.method import Optimise, Tau
from dcpg.core.networks import Network, Outputs
from dcpg.core.rollout import FrameShape, Rollout
from dcpg.envs.base import Spaces
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of, prepare, wait_for_gpu
from dcpg.seeding import generator

EPISODE = 200  # steps of an average evaluation episode, for the estimate only
ENV_SECONDS = 5e-5  # one environment step
SEGMENT_SECONDS = 7e-9  # one byte of a frame, compressed for B and opened again
OPEN_SECONDS = 4e-10  # one byte of a frame, opened once more


@dataclass(frozen=True)
class Work:
    """How much there is to do of each kind of work."""

    rollouts: int  # to sample and to train on in the policy phase
    remembered: int  # rollouts that auxiliary phases train on
    evaluations: float  # one with more episodes than the others counts as several


def work_of(config: Config, rollouts: int, done: int = 0) -> Work:
    """The work of a run from `done` rollouts to `rollouts`."""
    method, every = config.declared(), config.evaluation.every
    phases = method.in_whole_phases(rollouts) - method.in_whole_phases(done) if method.auxiliary_phase else 0
    if rollouts <= done:
        return Work(0, 0, 0)
    evaluations = (rollouts - 1) // every - (done - 1) // every + ((rollouts - 1) % every > 0)
    more = config.episodes_after(rollouts * config.rollout_size) / config.evaluation.episodes - 1
    return Work(rollouts - done, phases, evaluations + more)


@dataclass(frozen=True)
class Costs:
    """Seconds that one unit of each kind of work takes."""

    rollouts: float
    remembered: float
    evaluations: float

    def of(self, work: Work) -> float:
        """The seconds of some work."""
        kinds = (field.name for field in dataclasses.fields(self))
        return float(sum(getattr(self, kind) * getattr(work, kind) for kind in kinds))


def training(config: Config, spaces: Spaces, rollouts: int) -> float:
    """Seconds that the first rollouts of a run will take, with their evaluations."""
    return costs(config, spaces).of(work_of(config, rollouts))


def costs(config: Config, spaces: Spaces) -> Costs:
    """What the work of a run costs on this machine. Environments, evaluation episodes and B are not timed but known."""
    config, method = settled(config, spaces), config.declared()
    torch.set_num_threads(config.machine.threads)
    device = device_of(config)
    prepare(device)
    network = build_network(config, spaces.shape, spaces.actions).to(device)
    frames = _noise((config.env.num_envs, *spaces.shape), spaces.dtype)
    actor = Actor(network, tuple(method.targets), config.machine.chunk, device)
    acting = _typical(lambda: actor(frames)) / len(frames)
    step = _step_cost(network)
    size, frame = config.rollout_size, math.prod(spaces.single) * spaces.dtype.itemsize
    policy = sum(_line_seconds(config, network, line, spaces, step) for line in method.policy_phase)
    auxiliary = sum(_line_seconds(config, network, line, spaces, step) for line in method.auxiliary_phase)
    episode = min(EPISODE, config.evaluation.max_steps)
    remembering = 0.0
    if method.auxiliary_phase:  # segment by segment, which is slower than all environments at once
        segment = _noise((config.rollout_length, *spaces.shape), spaces.dtype)
        remembering = _typical(lambda: actor.log_policy(segment)) / len(segment)
    return Costs(
        rollouts=size * (acting + ENV_SECONDS) + policy,
        remembered=size * (remembering + SEGMENT_SECONDS * frame) + auxiliary,
        evaluations=2 * config.evaluation.episodes * episode * (acting + ENV_SECONDS),
    )


def playing(actor: Actor, shape: tuple[int, ...], episodes: int) -> float:
    """Seconds that evaluation episodes will take."""
    frames = _noise((min(episodes, 100), *shape), np.dtype(np.uint8))
    acting = _typical(lambda: actor.log_policy(frames)) / len(frames)
    return episodes * EPISODE * (acting + ENV_SECONDS)


def _line_seconds(config: Config, network: Network, line: Optimise, spaces: Spaces, step: float) -> float:
    """Seconds of all epochs of a line on one rollout of tau or B; `step` is what an Adam takes."""
    data = line.data
    minibatch = (
        config.rollout_size // data.minibatches if isinstance(data, Tau) else data.segments * config.rollout_length
    )
    b = min(max(config.machine.chunk, 2), minibatch)  # a segment has two steps or more
    chunk = _chunk_seconds(config, network, line, spaces, b)
    opened = _opened(config, minibatch) * math.prod(spaces.single) * spaces.dtype.itemsize * OPEN_SECONDS
    between = len(line.adams) * step + (opened if line.draw is draw_negatives_from_B else 0)
    return line.epochs * config.rollout_size * (chunk / b + between / minibatch)


def _opened(config: Config, samples: int) -> float:
    """Frames of the segments of a full B that are opened for so many wrong next states."""
    segments = max(config.declared().lengths(config.rollouts)) * config.env.num_envs
    return segments * (1 - (1 - 1 / segments) ** samples) * config.rollout_length


def _step_cost(network: Network) -> float:
    """Seconds of one step of an Adam, with its clipping."""
    parameters = list(network.parameters())
    adam = torch.optim.Adam(parameters, lr=0.0)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def once() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()

    found = _typical(once)
    adam.zero_grad(set_to_none=True)
    return found


def _chunk_seconds(config: Config, network: Network, line: Optimise, spaces: Spaces, b: int) -> float:
    """Seconds of a training pass on one chunk of b samples."""
    zeros, noise, heads = torch.zeros(b), torch.linspace(-1, 1, b), config.declared().targets
    augmenter = augmenter_of(config)
    tau = _blank(b, spaces, augmenter.choose() if augmenter is not None else "")
    batch = Batch(
        frames=tau.frames[0],
        valid=torch.ones(b),
        rows=torch.arange(b),
        returns=dict.fromkeys(heads, noise),
        actions=zeros.long(),
        log_probs=torch.full((b,), -math.log(spaces.actions)),
        advantages=noise,
        old_values=dict.fromkeys(heads, zeros),
        old_log_policy=torch.full((b, spaces.actions), -math.log(spaces.actions)),
        next_rows=zeros.long(),
        crosses=zeros,
        segments=torch.zeros(1, dtype=torch.int64),
    )
    if line.draw is not None:
        data = tau if isinstance(line.data, Tau) else _blank_B(b, spaces)
        batch = line.draw(batch, data, generator(0, "probe"), spaces.actions)
    batch = batch.to(device_of(config))

    def once() -> None:
        for terms in line.adams.values():
            out = Outputs(network, batch, config.machine.chunk)
            loss = torch.stack([weight * term(out, batch).mean() for weight, term in terms.values()]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            network.zero_grad(set_to_none=True)

    return _typical(once)


def _blank(b: int, spaces: Spaces, augmentation: str) -> Rollout:
    """One step of b environments: noise, and zeros beside it."""
    zeros = torch.zeros(1, b)
    return Rollout(
        frames=torch.from_numpy(_noise((2, b, *spaces.shape), spaces.dtype)),
        actions=zeros.long(),
        log_probs=zeros,
        values={},
        final_values={},
        raw_rewards=zeros,
        rewards=zeros,
        dones=zeros.bool(),
        valid=torch.ones(1, b, dtype=torch.bool),
        crosses=zeros.bool(),
        levels=zeros.long(),
        step_counts=zeros.long(),
        augmentation=augmentation,
    )


def _blank_B(b: int, spaces: Spaces) -> Buffer:
    """One segment of b steps: noise, and zeros beside it."""
    zeros = torch.zeros(b, 1)
    segment = zstandard.ZstdCompressor().compress(_noise((b + 1, *spaces.shape), spaces.dtype).tobytes())
    found = Buffer(("s", "a"), (), FrameShape(b, 1, spaces.shape, spaces.dtype))
    found.rollouts[0] = Kept([segment], {"valid": zeros == 0, "actions": zeros.long()})
    return found


def _noise(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Observations to time. Zeros would be quicker than what environments show: every maximum is the first, say."""
    drawn = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return drawn.astype(dtype) if dtype == np.uint8 else (drawn / 256).astype(dtype)


def _typical(work: Callable[[], Any]) -> float:
    """The median time of five, after one run that warms up: the shortest would be that of a machine without company."""
    work()
    times = []
    for _ in range(5):
        wait_for_gpu()
        start = time.perf_counter()
        work()
        wait_for_gpu()
        times.append(time.perf_counter() - start)
    return median(times)

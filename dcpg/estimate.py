"""What a run will take: time from a short probe of its own networks here, memory and disk from its sizes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dcpg.agent import Agent
from dcpg.batch import Batch
from dcpg.build import build_network
from dcpg.config import Config, device_of
from dcpg.methods.base import Optimise, Tau
from dcpg.networks import Network, Outputs, is_image
from dcpg.rollout import Actor, Rollout
from dcpg.seeding import generator

PROGRAM_GB = 0.5  # the interpreter, torch and Procgen's assets
COMPRESSION = 9  # the least that zstd made of segments on any of the 16 games
EPISODE = 200  # steps of an average evaluation episode, for the estimate only
ENV_SECONDS = 5e-5  # one environment step


@dataclass(frozen=True)
class Estimate:
    """Expected cost of a run."""

    seconds: float
    memory_gb: float
    disk_gb: float
    buffer_gb: float = 0.0  # of the memory: B at most

    def sentence(self) -> str:
        """For people."""
        buffer = f" (of which B up to {self.buffer_gb:.1f})" if self.buffer_gb >= 0.05 else ""
        memory = f"{self.memory_gb:.1f} GB of memory{buffer}"
        return f"about {duration(self.seconds)}, {memory}, {self.disk_gb:.2f} GB of disk"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def estimate(config: Config, shape: tuple[int, ...], actions: int, dtype: np.dtype[Any], rollouts: int) -> Estimate:
    """The cost of so many rollouts."""
    method = config.declared()
    torch.set_num_threads(config.machine.threads)
    device = device_of(config)
    network = build_network(config, shape, actions).to(device)
    frames = np.zeros((config.env.num_envs, *shape), dtype)
    actor = Actor(network, tuple(method.targets), config.machine.chunk, device, config.machine.precision)
    acting = _best(lambda: actor(frames)) / len(frames)
    per_step = acting * (2 if method.auxiliary_phase else 1) + ENV_SECONDS
    for line in method.lines:
        cost, size = _line_cost(config, network, line, shape, actions, dtype)
        per_step += line.epochs * cost / size
    evaluations = math.ceil(rollouts / config.evaluation.every) + 1
    seconds = rollouts * config.rollout_size * per_step
    seconds += evaluations * 2 * config.evaluation.episodes * EPISODE * (acting + ENV_SECONDS)
    sizes = (shape, actions, dtype)
    memory, disk = _memory(config, network, *sizes), _disk(config, network, *sizes)
    return Estimate(seconds, memory, disk, _kept_bytes(config, *sizes) / 1e9)


def playing(agent: Agent, episodes: int) -> Estimate:
    """The cost of playing so many episodes."""
    frames = np.zeros((min(episodes, 100), *agent.shape), np.uint8)
    acting = _best(lambda: agent.actor.log_policy(frames)) / len(frames)
    return Estimate(episodes * EPISODE * (acting + ENV_SECONDS), PROGRAM_GB, 0.0)


def _line_cost(
    config: Config, network: Network, line: Optimise, shape: tuple[int, ...], actions: int, dtype: np.dtype[Any]
) -> tuple[float, int]:
    b = config.machine.chunk
    b = min(b, config.rollout_size // line.data.minibatches if isinstance(line.data, Tau) else b)
    zeros, heads = torch.zeros(b), config.declared().targets
    tau = _blank(b, shape, dtype)
    batch = Batch(
        frames=tau.frames[0],
        valid=torch.ones(b),
        rows=torch.arange(b),
        returns=dict.fromkeys(heads, zeros),
        actions=zeros.long(),
        log_probs=zeros,
        advantages=zeros,
        old_values=dict.fromkeys(heads, zeros),
        old_log_policy=torch.full((b, actions), -math.log(actions)),
        next_rows=zeros.long(),
        crosses=zeros,
    )
    if line.draw is not None:
        batch = line.draw(batch, tau, generator(0, "probe"), actions)
    batch = batch.to(device_of(config))

    def once() -> None:
        for terms in line.steps.values():
            out = Outputs(network, batch, config.machine.chunk)
            loss = torch.stack([weight * term(out, batch).mean() for weight, term in terms.values()]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            network.zero_grad(set_to_none=True)

    return _best(once), b


def _blank(b: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Rollout:
    """One step of b environments, all zero."""
    zeros = torch.zeros(1, b)
    return Rollout(
        frames=torch.from_numpy(np.zeros((2, b, *shape), dtype)),
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
    )


def _best(work: Any) -> float:
    work()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _frame_bytes(config: Config, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return config.rollout_size * math.prod(shape) * dtype.itemsize


def _kept_bytes(config: Config, shape: tuple[int, ...], actions: int, dtype: np.dtype[Any]) -> float:
    """B when it is full: compressed frames (Procgen's uint8), small tensors, pi_old's outputs."""
    method = config.declared()
    if not method.auxiliary_phase:
        return 0.0
    ratio = COMPRESSION if dtype == np.uint8 else 1
    return method.N_pi * (_frame_bytes(config, shape, dtype) / ratio + config.rollout_size * (64 + 4 * actions))


def _memory(config: Config, network: Network, shape: tuple[int, ...], actions: int, dtype: np.dtype[Any]) -> float:
    method = config.declared()
    chunk = config.machine.chunk
    for line in method.lines:
        if line.couples and not isinstance(line.data, Tau):
            chunk = max(chunk, line.data.segments * (config.rollout_length + 1))
    activations = chunk * _activation_bytes(config, shape) * len(method.networks)
    weights = 4 * sum(p.numel() for p in network.parameters())
    total = _frame_bytes(config, shape, dtype) + _kept_bytes(config, shape, actions, dtype) + activations + 10 * weights
    return PROGRAM_GB + total / 1e9


def _activation_bytes(config: Config, shape: tuple[int, ...]) -> float:
    """What one frame's graph holds, roughly: each stack's convolution, its pool with indices, two residual blocks."""
    if not is_image(shape):
        return 4.0 * (math.prod(shape) + 2 * config.network.features)
    height, width, _ = shape
    floats = 0.0
    for c in config.network.channels:
        floats += c * height * width + 11 * c * height * width / 4
        height, width = (height + 1) // 2, (width + 1) // 2
    return 4 * floats


def _disk(config: Config, network: Network, shape: tuple[int, ...], actions: int, dtype: np.dtype[Any]) -> float:
    weights = 4 * sum(p.numel() for p in network.parameters())
    ratio = COMPRESSION if dtype == np.uint8 else 1
    tau = _frame_bytes(config, shape, dtype) / ratio
    return (3 * 5 * weights + _kept_bytes(config, shape, actions, dtype) + tau + 3e7) / 1e9

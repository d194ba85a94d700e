"""How long a run will take, estimated from a short probe of its networks on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dcpg.config.build import augmenter_of, build_network
from dcpg.config.schema import Config
from dcpg.core.actor import Actor
from dcpg.core.batch import Batch
from dcpg.core.method import Optimise, Tau
from dcpg.core.networks import Network, Outputs
from dcpg.core.rollout import Rollout
from dcpg.envs.base import Spaces
from dcpg.machine.automatic import settled
from dcpg.machine.devices import device_of, prepare, wait_for_gpu
from dcpg.seeding import generator

EPISODE = 200  # steps of an average evaluation episode, for the estimate only
ENV_SECONDS = 5e-5  # one environment step


def training(config: Config, spaces: Spaces, rollouts: int) -> float:
    """Seconds that some rollouts will take, with their evaluations."""
    config, method = settled(config, spaces), config.declared()
    torch.set_num_threads(config.machine.threads)
    device = device_of(config)
    prepare(device)
    network = build_network(config, spaces.shape, spaces.actions).to(device)
    frames = np.zeros((config.env.num_envs, *spaces.shape), spaces.dtype)
    actor = Actor(network, tuple(method.targets), config.machine.chunk, device)
    acting = _best(lambda: actor(frames)) / len(frames)
    per_step = acting * (2 if method.auxiliary_phase else 1) + ENV_SECONDS
    for line in method.lines:
        cost, size = _line_cost(config, network, line, spaces)
        per_step += line.epochs * cost / size
    evaluations = math.ceil(rollouts / config.evaluation.every) + 1
    seconds = rollouts * config.rollout_size * per_step
    return seconds + evaluations * 2 * config.evaluation.episodes * EPISODE * (acting + ENV_SECONDS)


def playing(actor: Actor, shape: tuple[int, ...], episodes: int) -> float:
    """Seconds that evaluation episodes will take."""
    frames = np.zeros((min(episodes, 100), *shape), np.uint8)
    acting = _best(lambda: actor.log_policy(frames)) / len(frames)
    return episodes * EPISODE * (acting + ENV_SECONDS)


def _line_cost(config: Config, network: Network, line: Optimise, spaces: Spaces) -> tuple[float, int]:
    """Seconds of a training pass on one chunk, and how many samples the chunk has."""
    b = config.machine.chunk
    if isinstance(line.data, Tau):
        b = min(b, config.rollout_size // line.data.minibatches)
    zeros, heads = torch.zeros(b), config.declared().targets
    augmenter = augmenter_of(config)
    tau = _blank(b, spaces, augmenter.choose() if augmenter is not None else "")
    batch = Batch(
        frames=tau.frames[0],
        valid=torch.ones(b),
        rows=torch.arange(b),
        returns=dict.fromkeys(heads, zeros),
        actions=zeros.long(),
        log_probs=zeros,
        advantages=zeros,
        old_values=dict.fromkeys(heads, zeros),
        old_log_policy=torch.full((b, spaces.actions), -math.log(spaces.actions)),
        next_rows=zeros.long(),
        crosses=zeros,
    )
    if line.draw is not None:
        batch = line.draw(batch, tau, generator(0, "probe"), spaces.actions)
    batch = batch.to(device_of(config))

    def once() -> None:
        for terms in line.adams.values():
            out = Outputs(network, batch, config.machine.chunk)
            loss = torch.stack([weight * term(out, batch).mean() for weight, term in terms.values()]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            network.zero_grad(set_to_none=True)

    return _best(once), b


def _blank(b: int, spaces: Spaces, augmentation: str) -> Rollout:
    """One step of b environments, all zero."""
    zeros = torch.zeros(1, b)
    return Rollout(
        frames=torch.from_numpy(np.zeros((2, b, *spaces.shape), spaces.dtype)),
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


def _best(work: Callable[[], Any]) -> float:
    """The shortest time of three, after one run that warms up."""
    work()
    times = []
    for _ in range(3):
        wait_for_gpu()
        start = time.perf_counter()
        work()
        wait_for_gpu()
        times.append(time.perf_counter() - start)
    return min(times)

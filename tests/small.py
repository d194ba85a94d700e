"""Small networks, rollouts and algorithms for tests, without an environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from dcpg.config.resolve import resolve
from dcpg.core.actor import Actor
from dcpg.core.algorithm import Algorithm
from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer
from dcpg.core.encoders import Net
from dcpg.core.loader import Loader
from dcpg.core.networks import Network
from dcpg.core.observer import LoopObserver
from dcpg.core.rollout import FrameShape, Rollout
from dcpg.core.stepper import Stepper
from dcpg.core.targets import with_targets
from dcpg.methods import METHODS, Method, Optimise
from dcpg.seeding import generator

T, N, ACTIONS, SHAPE = 6, 4, 5, (16, 16, 3)


SOON = ("ppo", "dcpg", "ddcpg")
SMALL = MappingProxyType({"env.frame_size": 16, "network.channels": "4,8"})  # where sizes do not matter


def each(names: Iterable[str]) -> list[Any]:
    """Parameters of a slow test: PPO and the paper's two methods at once, others and options in the longer suite."""
    return [pytest.param(name, marks=() if name in SOON else pytest.mark.faults) for name in names]


def declare(name: str, more: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> tuple[Method, Any]:
    """A method with small settings and its settings; `more` are settings outside `algorithm`."""
    small = {"minibatches": 2, "N_pi": 2, "E_aux": 2, "segments": 2} | changes
    known = {f.name for f in dataclasses.fields(METHODS[name].settings)}
    config = resolve(name, "bigfish", settings={f"algorithm.{k}": v for k, v in small.items() if k in known} | more)
    return config.declared(), config.algorithm


def network_of(method: Method, shape: tuple[int, ...] = SHAPE, seed: int = 0, precision: str = "fp32") -> Network:
    net = Net(channels=(4, 4), features=16)
    return Network(method.networks, shape, ACTIONS, net, precision).initialise(generator(seed, "test"))


def rollout_of(method: Method, network: Network, seed: int = 0, dead: bool = False) -> Rollout:
    """A random rollout whose values and log-probabilities are the network's own."""
    g = generator(seed, "rollout")
    frames = torch.randint(0, 256, (T + 1, N, *SHAPE), generator=g, dtype=torch.uint8)
    actor = Actor(network, tuple(method.targets), 64, torch.device("cpu"))
    acted = [actor(frames[t].numpy()) for t in range(T + 1)]
    actions = torch.randint(0, ACTIONS, (T, N), generator=g)
    log_policy = torch.stack([p for p, _ in acted[:T]])
    dones = torch.rand(T, N, generator=g) < 0.2
    valid = torch.ones(T, N, dtype=torch.bool)
    if dead:
        valid[2, 1] = False
    rewards = torch.randn(T, N, generator=g)
    # two levels, each environment's next one at every end; environments were some steps into their episodes
    levels = (torch.cat([torch.zeros(1, N), dones[:-1].cumsum(0)]).long() + torch.arange(N)) % 2
    step_counts = torch.empty(T, N, dtype=torch.int64)
    now = torch.arange(N)
    for t in range(T):
        step_counts[t] = now
        now = torch.where(dones[t], 0, now + 1)
    return with_targets(
        Rollout(
            frames=frames,
            actions=actions,
            log_probs=log_policy.gather(2, actions[..., None]).squeeze(2),
            values={h: torch.stack([v[h] for _, v in acted]) for h in method.targets},
            final_values={h: torch.zeros(T, N) for h in method.targets},
            raw_rewards=rewards,
            rewards=rewards,
            dones=dones,
            valid=valid,
            crosses=dones,
            levels=levels,
            step_counts=step_counts,
            augmentation="crop" if method.augmented else "",
        ),
        method,
    )


class Scripted:
    """A collector without environments: rollouts come from a function."""

    augmentation = ""

    def __init__(self, actor: Actor, collect: Callable[[int], Rollout] | None = None) -> None:
        self.actor, self.collect = actor, collect

    def sample(self, rollout: int) -> Rollout:
        assert self.collect is not None
        return self.collect(rollout)


def bare(
    method: Method,
    network: Network,
    settings: Any = None,
    collect: Callable[[int], Rollout] | None = None,
    *,
    chunk: int = 64,
    shards: int = 1,
    observer: LoopObserver | None = None,
) -> Algorithm:
    """An algorithm on the CPU; `collect` gives it rollouts by their number."""
    cpu, heads = torch.device("cpu"), tuple(method.targets)
    settings = settings if settings is not None else METHODS["ppo"].settings()
    return Algorithm(
        method,
        Scripted(Actor(network, heads, chunk, cpu), collect),
        Loader(seed=3, num_envs=N, actions=ACTIONS, device=cpu, shards=shards),
        Stepper(method, settings, network, chunk=chunk, device=cpu),
        Buffer(method.keep, heads, FrameShape(T, N, SHAPE, np.dtype("uint8"))),
        observer,
    )


def in_training(
    name: str, settings: Mapping[str, Any] = MappingProxyType({}), precision: str = "fp32", **more: Any
) -> Algorithm:
    """A small algorithm that collects random rollouts, a new one each time."""
    changes = {
        k: more.pop(k) for k in list(more) if k in ("minibatches", "N_pi", "E_aux", "segments", "mask_boundaries")
    }
    method, algorithm_settings = declare(name, settings, **changes)
    network = network_of(method, precision=precision)
    return bare(method, network, algorithm_settings, lambda rollout: rollout_of(method, network, seed=rollout), **more)


def step(algorithm: Algorithm, line: Optimise, batch: Batch) -> None:
    """The updates of a line on one minibatch."""
    for adam in line.adams:
        algorithm.stepper.step(adam, [batch], line.couples)


def whole(algorithm: Algorithm, line: Optimise, tau: Rollout) -> Batch:
    """All of tau or B as one minibatch, with what the line draws."""
    data = tau if line in algorithm.method.policy_phase else algorithm.B
    batch = data.minibatch(data.order(generator(0, "o")))
    return line.draw(batch, data, generator(0, "d"), ACTIONS) if line.draw is not None else batch


class Sum(torch.nn.Module):
    """A discriminator that can be computed on paper: (s + 10 a + 100 s') / 100, times a scale."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def logit(self, now: torch.Tensor, actions: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return self.scale * (now + 10 * actions[:, None] + 100 * following).squeeze(1) / 100

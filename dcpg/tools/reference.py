"""A small stored case of every method: does a device compute what a CPU computed in float32?

A case is one phase of the real training loop on made-up rollouts, with weights that do not depend on the device. What
is compared: every term of every line, and the gradient of every encoder and head at every optimiser step, projected on
a few fixed directions. The learning rate is so small that rounding does not grow from one step to the next.

    python -m dcpg.tools.reference    # makes the stored numbers anew, on the CPU in float32
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dcpg.config.resolve import resolve
from dcpg.config.schema import Config
from dcpg.core.actor import Actor
from dcpg.core.algorithm import Algorithm
from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.buffer import Buffer
from dcpg.core.encoders import Net
from dcpg.core.loader import Loader
from dcpg.core.method import Method
from dcpg.core.networks import Network
from dcpg.core.rollout import FrameShape, Rollout
from dcpg.core.stepper import Stepper
from dcpg.core.targets import with_targets
from dcpg.errors import NumericalFailure
from dcpg.machine.devices import prepare
from dcpg.methods import METHODS

STORED = "reference.json"
# Weights that differ by 2e-7 of their size change a case by 3e-5 at most, by 1e-6 by 3e-3 (a ReLU switches), and by
# 5e-4, about what TF32 rounds, by at least 1e-2.
TOLERANCE = 5e-3
T, N, ACTIONS, SHAPE, NET = 8, 4, 5, (16, 16, 3), Net(channels=(4, 6), features=16, discriminator=12)
DIRECTIONS = 4  # that a gradient is projected on
SETTINGS = {
    "algorithm.learning_rate": 1e-6, "algorithm.minibatches": 2, "algorithm.N_pi": 2, "algorithm.E_aux": 2,
    "algorithm.segments": 2,
}  # fmt: skip

Numbers = list[list[float]]  # vectors that are compared as such: ||found - stored|| / ||stored||


def differences(device: torch.device) -> Iterator[tuple[str, float]]:
    """Each method and its worst relative difference on a device, which computes without TF32."""
    prepare(device)
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        for name, stored in stored_numbers().items():
            try:
                yield name, difference(case(name, device), stored)
            except NumericalFailure:
                yield name, math.inf
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def difference(found: Numbers, stored: Numbers) -> float:
    """The worst relative difference of any vector; infinite if numbers are not finite or of another kind."""
    if [len(vector) for vector in found] != [len(vector) for vector in stored]:
        return math.inf
    if not all(math.isfinite(number) for vector in found for number in vector):
        return math.inf
    return max(math.dist(a, b) / math.hypot(*b) for a, b in zip(found, stored, strict=True))


@cache
def stored_numbers() -> dict[str, Numbers]:
    """The stored numbers of each method."""
    stored: dict[str, Numbers] = json.loads(files("dcpg.tools").joinpath("data", STORED).read_text())
    return stored


def case(name: str, device: torch.device) -> Numbers:
    """One phase of a method on a device; a method with augmentations sees all of them."""
    config = case_config(name)
    method = config.declared()
    algorithm = case_algorithm(config, method, case_network(method).to(device), device)
    for _ in range(len(AUGMENTATIONS) if method.augmented else method.length_of(0)):
        algorithm.rollout()
    assert isinstance(algorithm.stepper, Recorder)
    return algorithm.stepper.vectors


def case_config(name: str) -> Config:
    """The configuration of a method's case."""
    known = {f"algorithm.{field}" for field in METHODS[name].settings.__dataclass_fields__}
    return resolve(name, "starpilot", settings={k: v for k, v in SETTINGS.items() if k in known})


def case_network(method: Method) -> Network:
    """A network whose weights come from numpy, because torch's orthogonal ones depend on the machine."""
    network = Network(method.networks, SHAPE, ACTIONS, NET)
    random = np.random.default_rng(0)
    with torch.no_grad():
        for weight in network.parameters():
            spread = math.sqrt(3 / math.prod(weight.shape[1:])) if weight.dim() > 1 else 0.1
            weight.copy_(torch.from_numpy(random.uniform(-spread, spread, tuple(weight.shape))))
    return network


def case_algorithm(config: Config, method: Method, network: Network, device: torch.device) -> Algorithm:
    """The training loop of a case, whose rollouts are made up."""
    heads, chunk = tuple(method.targets), T * N
    return Algorithm(
        method,
        MadeUp(method, AnotherPolicy(network, heads, chunk, device)),
        Loader(seed=0, num_envs=N, actions=ACTIONS, device=device),
        Recorder(method, config.algorithm, network, chunk=chunk, device=device),
        Buffer(method.keep, heads, FrameShape(T, N, SHAPE, np.dtype(np.uint8))),
    )


class AnotherPolicy(Actor):
    """pi_old is a policy near the network's, so that the term that keeps the policy is not zero."""

    def log_policy(self, frames: NDArray[Any]) -> torch.Tensor:
        noise = np.random.default_rng(2).standard_normal((len(frames), ACTIONS), np.float32)
        return F.log_softmax(super().log_policy(frames) + 0.3 * torch.from_numpy(noise), dim=1)


class MadeUp:
    """Rollouts of random numbers instead of an environment's; values and probabilities are not the network's own."""

    def __init__(self, method: Method, actor: Actor) -> None:
        self.method, self.actor, self.augmentation = method, actor, ""

    def sample(self, rollout: int) -> Rollout:
        random = np.random.default_rng(rollout)
        if self.method.augmented:
            self.augmentation = list(AUGMENTATIONS)[rollout % len(AUGMENTATIONS)]

        def numbers(*shape: int) -> torch.Tensor:
            return torch.from_numpy(random.standard_normal(shape, np.float32))

        frames = random.integers(0, 256, (T + 1, N, *SHAPE), np.uint8)
        actions = torch.from_numpy(random.integers(0, ACTIONS, (T, N)))
        dones = torch.from_numpy(random.random((T, N)) < 0.2)
        rewards = numbers(T, N)
        tau = Rollout(
            frames=torch.from_numpy(frames),
            actions=actions,
            log_probs=-math.log(ACTIONS) + 0.1 * numbers(T, N),
            values={head: numbers(T + 1, N) for head in self.method.targets},
            final_values={head: torch.zeros(T, N) for head in self.method.targets},
            raw_rewards=rewards,
            rewards=rewards,
            dones=dones,
            valid=torch.ones(T, N, dtype=torch.bool),
            crosses=dones,
            levels=torch.from_numpy(random.integers(0, 2, (T, N))),
            step_counts=torch.from_numpy(random.integers(0, 100, (T, N))),
        )
        return with_targets(tau, self.method).with_augmentation(self.augmentation)


class Recorder(Stepper):
    """Keeps the terms of every optimiser step, and each encoder's and head's gradient projected on fixed directions."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.vectors, random = list[list[float]](), np.random.default_rng(1)
        self.directions = {
            name: random.standard_normal((DIRECTIONS, sum(p.numel() for p in part.parameters())))
            for name, part in self.network.named_children()
        }

    def step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        values = super().step(*arguments, **named)
        self.vectors += [[value] for value in values.tolist()]
        for name, part in self.network.named_children():
            gradients = [p.grad.flatten().cpu().double().numpy() for p in part.parameters() if p.grad is not None]
            if gradients:
                self.vectors.append((self.directions[name] @ np.concatenate(gradients)).tolist())
        return values


def write(path: Path, names: Sequence[str] = tuple(METHODS)) -> None:
    """Make the stored numbers anew."""
    found = {name: case(name, torch.device("cpu")) for name in names}
    rounded = {name: [[float(f"{x:.9g}") for x in vector] for vector in numbers] for name, numbers in found.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(numbers, separators=(',', ':'))}" for name, numbers in rounded.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write(Path(__file__).parent / "data" / STORED)

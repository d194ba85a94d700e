"""Hold the methods to figures that the authors' code gave on fixed tensors.

    python -m tests.fidelity FILE.npz [METHOD...]

prints the worst relative error of each quantity and exits 1 beyond the tolerances: 1e-4 for tensors, terms and the
first gradient norm, 1e-3 for later gradient norms, 1e-2 for a parameter's change. The update goes through the
product's own loop and objectives; T, N and the network's widths are read off the arrays.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import torch

from dcpg.core.actor import Actor
from dcpg.core.algorithm import Algorithm
from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer
from dcpg.core.encoders import Net
from dcpg.core.loader import Loader
from dcpg.core.networks import Network
from dcpg.core.rollout import FrameShape, Rollout
from dcpg.core.stepper import Stepper
from dcpg.core.targets import with_targets
from dcpg.methods import METHODS, Method
from tests.small import Scripted

# their name of a term -> our line and term
NAMES = {
    "action_loss": ("policy", "J_pi"),
    "dist_entropy": ("policy", "H"),
    "value_loss": (None, "J_V"),
    "aux_value_loss": ("auxiliary", "J_aux"),
    "policy_dist": ("auxiliary", "C_pi"),
    "value_dist": ("policy", "C_V"),
    "dyna_loss": ("auxiliary", "J_f"),
    "adv_loss": ("policy", "J_A"),
}
EPOCHS = {"ppo": 2, "dcpg": 2, "ddcpg": 2, "ppg": 1, "daac": 1}
COVERED = tuple(name for name in EPOCHS if name in METHODS)


@dataclasses.dataclass
class Check:
    """The worst relative error of one quantity, and what is allowed."""

    quantity: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance


def relative(ours: Any, theirs: Any) -> float:
    """The largest difference over the largest magnitude of what is expected."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    if not np.isfinite(ours).all():
        return float("inf")
    scale = np.abs(theirs).max()
    return float(np.abs(ours - theirs).max() / (scale if scale > 0 else 1.0))


def build(data: Any, name: str) -> tuple[Method, Any, Network, dict[str, np.ndarray]]:
    """The method with the fixture's epochs and its network with the fixture's weights."""
    N = data["actions"].shape[1]
    spec = METHODS[name]
    changes = {"minibatches": 1, "E_pi": EPOCHS[name], "N_pi": 1, "E_aux": 2, "segments": N, "E_V": 2}
    known = {f.name for f in dataclasses.fields(spec.settings)}
    settings = spec.settings(**{k: v for k, v in changes.items() if k in known})
    method = spec.declare(settings)
    prefix = f"{name}/weights/"
    weights = {k.removeprefix(prefix): data[k] for k in data.files if k.startswith(prefix)}
    channels, i = [], 0
    while f"theta.stack{i}.conv.weight" in weights:
        channels.append(weights[f"theta.stack{i}.conv.weight"].shape[0])
        i += 1
    C, H, W = data["obs"].shape[2:]
    features = weights["theta.fc.weight"].shape[0]
    actions = weights["policy.weight"].shape[0]
    hidden = len(weights["discriminator.0.bias"]) if "discriminator.0.bias" in weights else 256
    net = Net(channels=tuple(channels), features=features, discriminator=hidden)
    network = Network(method.networks, (H, W, C), actions, net)
    network.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    return method, settings, network, weights


def recorded_negatives(data: Any, name: str) -> Any:
    """A draw that hands out the recorded negatives, mapped to the order of the loop's shuffled segments."""
    T, N = data["actions"].shape
    epochs = iter(zip(data[f"{name}/negative_next"], data[f"{name}/negative_actions"], strict=True))

    def draw(batch: Batch, data: Any, generator: torch.Generator, actions: int) -> Batch:
        nexts, wrong = next(epochs)
        envs = batch.segments.numpy()  # the environment of each column
        column = np.argsort(envs)
        rows = (np.arange(T)[:, None] * N + envs[None]).ravel()  # each sample's row in the recorded [T, N]
        t, n = nexts[rows] // N, nexts[rows] % N
        return dataclasses.replace(
            batch,
            negative_next=torch.from_numpy(t * N + column[n]),
            negative_actions=torch.from_numpy(wrong[rows]),
        )

    return draw


class Recording(Stepper):
    """Keeps the terms and the gradient norm of every update."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.updates: list[tuple[str, list[float]]] = []

    def step(self, name: str, *parts: Any, **more: Any) -> torch.Tensor:
        values = super().step(name, *parts, **more)
        self.updates.append((name, values.tolist()))
        return values


def hold(data: Any, name: str) -> list[Check]:
    """Run the fixture's update through the product's loop and compare."""
    torch.use_deterministic_algorithms(True)
    method, settings, network, weights = build(data, name)
    T, N = data["actions"].shape
    frames = torch.from_numpy(np.ascontiguousarray(data["obs"].transpose(0, 1, 3, 4, 2)))
    if f"{name}/negative_next" in data.files:
        (line,) = method.auxiliary_phase
        method = dataclasses.replace(
            method, auxiliary_phase=(dataclasses.replace(line, draw=recorded_negatives(data, name)),)
        )
    cpu, heads = torch.device("cpu"), tuple(method.targets)
    actor = Actor(network, heads, 48, cpu)
    stepper = Recording(method, settings, network, chunk=48, device=cpu)
    acted = [actor(frames[t].numpy()) for t in range(T + 1)]
    values = {head: torch.stack([v[head] for _, v in acted]) for head in method.targets}
    zeros = torch.zeros(T, N)
    tau = with_targets(
        Rollout(
            frames=frames,
            actions=torch.from_numpy(data["actions"]),
            log_probs=torch.from_numpy(data[f"{name}/log_probs"]),
            values=values,
            final_values=dict.fromkeys(method.targets, zeros),
            raw_rewards=torch.from_numpy(data["rewards"]),
            rewards=torch.from_numpy(data["rewards"]),
            dones=torch.from_numpy(data["dones"]),
            valid=torch.ones(T, N, dtype=torch.bool),
            crosses=torch.from_numpy(data["dones"]),
            levels=zeros.long(),
        ),
        method,
    )
    head = method.advantages
    checks = [
        Check("logits", relative(acted[0][0], data[f"{name}/logits0"]), 1e-4),
        Check("values", relative(values[head], data[f"{name}/values"]), 1e-4),
        Check("returns", relative(tau.returns[head], data[f"{name}/returns"]), 1e-4),
        Check("advantages, raw", relative(tau.advantages_raw, data[f"{name}/advantages_raw"]), 1e-4),
        Check("advantages, normalised", relative(tau.advantages, data[f"{name}/advantages"]), 1e-4),
    ]
    Algorithm(
        method,
        Scripted(actor, lambda rollout: tau),
        Loader(seed=0, num_envs=N, actions=weights["policy.weight"].shape[0], device=cpu),
        stepper,
        Buffer(method.keep, heads, FrameShape(T, N, tuple(frames.shape[2:]), np.dtype("uint8"))),
    ).rollout()
    expected = json.loads(bytes(data["expected"]).decode())[name]
    checks += compare_updates(method, stepper.updates, expected)
    checks += compare_weights(network, weights, expected["after"])
    return checks


def compare_updates(method: Method, updates: list[tuple[str, list[float]]], expected: Any) -> list[Check]:
    """Terms (means over all updates) and gradient norms."""
    terms: dict[tuple[str, str], list[float]] = {}
    names = {line.name: list(line.terms) for line in method.lines}
    for line, values in updates:
        for term, value in zip(names[line], values, strict=False):
            terms.setdefault((line, term), []).append(value)
    checks = []
    for theirs, value in expected["stats"].items():
        line, term = NAMES[theirs]
        # their value_loss is the first line that has J_V: PPG trains it in both phases and reports the policy phase
        found = [v for (on, t), v in terms.items() if t == term and (line is None or on == line)]
        checks.append(Check(f"term {term}", relative(np.mean(found[0]), value), 1e-4))
    norms = [values[-1] for _, values in updates]
    assert len(norms) == len(expected["grad_norms"]), (len(norms), len(expected["grad_norms"]))
    for i, (ours, theirs) in enumerate(zip(norms, expected["grad_norms"], strict=True)):
        checks.append(Check(f"gradient norm {i}", relative(ours, theirs), 1e-3 if i else 1e-4))
    return checks


def compare_weights(network: Network, before: dict[str, np.ndarray], after: Any) -> list[Check]:
    """Each parameter's change: its norm, and a projection of its new value."""
    state = {k: v.numpy() for k, v in network.state_dict().items()}
    assert set(state) == set(after), set(state) ^ set(after)
    checks = []
    for name, (norm, projection) in after.items():
        change = float(np.linalg.norm((state[name] - before[name]).astype(np.float64)))
        direction = np.random.RandomState(len(name)).randn(state[name].size)
        ours = float(state[name].astype(np.float64).ravel() @ direction)
        start = float(before[name].astype(np.float64).ravel() @ direction)
        # a projection's change is compared on the scale that a change of this norm can have
        scale = max(norm * float(np.linalg.norm(direction)), 1e-12) / np.sqrt(max(state[name].size, 1))
        checks.append(Check(f"change of {name}", relative(change, norm), 1e-2))
        checks.append(Check(f"projection of {name}", abs((ours - start) - (projection - start)) / scale, 1e-2))
    return checks


def summary(checks: list[Check]) -> list[Check]:
    """The worst of each kind of quantity."""
    worst: dict[str, Check] = {}
    for check in checks:
        kind = check.quantity.split(" of ")[0]
        if kind not in worst or check.error / check.tolerance > worst[kind].error / worst[kind].tolerance:
            worst[kind] = dataclasses.replace(check, quantity=kind)
    return list(worst.values())


def main(arguments: list[str]) -> int:
    """Print the worst errors of each method; 1 if any is beyond its tolerance."""
    if not arguments:
        print(__doc__)
        return 2
    try:
        data = np.load(arguments[0], allow_pickle=False)
        held = [name for name in COVERED if f"{name}/values" in data.files]
    except (OSError, ValueError, AttributeError) as error:
        print(f"{arguments[0]} is not a file of figures ({error}).")
        return 2
    for name in arguments[1:]:
        if name not in held:
            print(f"No figures for {name!r}; there are some for {', '.join(held)}.")
            return 2
    failed = False
    for name in arguments[1:] or held:
        checks = hold(data, name)
        failed |= not all(check.holds for check in checks)
        print(name)
        for check in summary(checks):
            print(
                f"  {check.quantity:28s} {check.error:9.2e}  (<= {check.tolerance:g}) {'' if check.holds else 'FAILS'}"
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

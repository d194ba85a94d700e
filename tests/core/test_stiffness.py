"""Value stiffness: held to every pair's cosine, to torch.func and to BackPACK."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpg.core.encoders import Net
from dcpg.core.networks import Network
from dcpg.core.stiffness import Stiffness, parameters_of, stiffness
from dcpg.seeding import generator
from tests import oracles
from tests.small import ACTIONS, declare


def network_of(name: str, shape: tuple[int, ...], seed: int = 0) -> Network:
    """The network of a method, "METHOD" or "METHOD on ENCODER"."""
    name, _, encoder = name.partition(" on ")
    method, _ = declare(name)
    net = Net(encoder=encoder or "impala", channels=(4, 6), features=16)
    network = Network(method.networks, shape, ACTIONS, net).initialise(generator(seed, "network"))
    with torch.no_grad():  # biases away from zero, so that their gradients count
        for k, p in enumerate(network.parameters()):
            p.add_(0.1 * torch.randn(p.shape, generator=generator(seed, "noise", k)))
    return network


def states_of(shape: tuple[int, ...], n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(seed, "states")
    frames = torch.randint(0, 256, (n, *shape), generator=g, dtype=torch.uint8)
    return frames if len(shape) == 3 else torch.randn(n, *shape, generator=g), torch.randn(n, generator=g)


def gradients(network: Network, head: str, frames: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    """Of 1/2 (V - R)^2, a row a state, by one backward pass each."""
    rows = []
    for frame, target in zip(frames, returns, strict=True):
        features = network.get_submodule(network.encoder_of[head])(frame[None])
        value = network.get_submodule(head)(features).squeeze()
        grads = torch.autograd.grad(0.5 * (value - target) ** 2, list(parameters_of(network, head)))
        rows.append(torch.cat([g.flatten() for g in grads]).double())
    return torch.stack(rows)


def pairs(rows: torch.Tensor) -> float:
    """The mean cosine over all pairs, one by one."""
    n, total = len(rows), 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += float(rows[i] @ rows[j] / (rows[i].norm() * rows[j].norm()))
    return total / (n * (n - 1))


CASES = [("ppo", "value", (16, 16, 3)), ("ppg", "value", (17, 20, 3)), ("dcpg", "value", (7,))]
CASES += [("dcpg on impoola", "value", (16, 20, 3))]


@pytest.mark.parametrize(("name", "head", "shape"), CASES)
@settings(max_examples=8, deadline=None, derandomize=True)  # rarely, two values of a pool are equal but for rounding
@given(n=st.integers(2, 9), seed=st.integers(0, 1000), chunk=st.integers(1, 10))
def test_stiffness_is_the_mean_over_all_pairs(
    name: str, head: str, shape: tuple[int, ...], n: int, seed: int, chunk: int
) -> None:
    network = network_of(name, shape, seed)
    frames, returns = states_of(shape, n, seed)
    found = stiffness(network, head, frames, returns, chunk)
    rows = gradients(network, head, frames, returns)
    assert found.states == n
    assert found.stiffness == pytest.approx(pairs(rows), abs=2e-5)
    with torch.no_grad():
        features = network.get_submodule(network.encoder_of[head])(frames)
        signs = torch.sign(network.get_submodule(head)(features).squeeze(1) - returns).double()
    assert found.sign_free == pytest.approx(pairs(rows * signs[:, None]), abs=2e-5)
    assert found.sign_agreement == pytest.approx(pairs(signs[:, None]), abs=1e-12)


def test_states_without_a_gradient_are_left_out() -> None:
    """A target that equals the value has no direction; two states with one direction have stiffness 1."""
    network = network_of("ppo", (7,))
    frames, _ = states_of((7,), 3)
    with torch.no_grad():  # one at a time, as the chunks below are: the last bit depends on it
        value = torch.cat([network.value(network.theta(frame[None])).squeeze(1) for frame in frames])
    targets = torch.stack([value[0] - 1, value[1] - 1, value[2]])
    frames[1] = frames[0]
    targets[1] = targets[0]
    found = stiffness(network, "value", frames, targets, 1)
    assert found.states == 2
    assert found.stiffness == pytest.approx(1, abs=1e-6)
    assert found.sign_agreement == 1
    alone = stiffness(network, "value", frames[2:], value[2:], 1)
    assert alone.states == 0
    assert math.isnan(alone.stiffness)
    assert set(found.row()) == {"stiffness", "stiffness_sign_free", "stiffness_sign_agreement", "stiffness_states"}
    assert isinstance(found, Stiffness)


def test_stiffness_equals_torch_funcs() -> None:
    network = network_of("dcpg", (7,))
    frames, returns = states_of((7,), 12)
    value_network = torch.nn.Sequential(network.theta, network.value)

    def loss(parameters: dict[str, torch.Tensor], frame: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = torch.func.functional_call(value_network, parameters, frame[None])
        return 0.5 * (value.squeeze() - target) ** 2

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
    grads = each(dict(value_network.named_parameters()), frames, returns)
    rows = torch.cat([g.detach().flatten(1).double() for g in grads.values()], 1)
    assert stiffness(network, "value", frames, returns, 5).stiffness == pytest.approx(pairs(rows), abs=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("name", oracles.NETWORKS)
def test_stiffness_equals_backpacks(name: str, chunk: int) -> None:
    sizes, case = oracles.NETWORKS[name], oracles.case_of(oracles.load(), f"networks/{name}")
    network = oracles.with_weights(sizes.network(), case)
    frames, returns = (oracles.as_tensor(case[key]) for key in ("frames", "returns"))
    for count in (2, sizes.states):
        found = stiffness(network, "value", frames[:count], returns[:count], chunk)
        assert found.states == count
        assert (found.stiffness, found.sign_free) == pytest.approx(case[f"first{count}"].tolist(), abs=1e-6)

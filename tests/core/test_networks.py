"""Sizes, initialisation and layout of the networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dcpg.core.encoders import Net, scaled
from dcpg.core.networks import Discriminator, Network
from dcpg.methods import METHODS
from dcpg.seeding import generator

# parameters of the paper's networks, 64x64x3 frames and 15 actions
SIZES = dict.fromkeys(("ppo", "ucb-drac", "plr", "dcpg"), 626_256)
SIZES |= dict.fromkeys(("ppg", "ppg+dr", "ppg+ar", "separate-dcpg"), 1_248_657)
SIZES |= dict.fromkeys(("dcpg+f", "dcpg+i", "ddcpg"), 827_473)
SIZES |= {"daac": 1_248_672, "idaac": 1_248_672 + 512 * 2 + 2, "dppg": 1_449_874, "dcpg+fi": 1_028_690}


def paper(name: str) -> Network:
    spec = METHODS[name]
    network = Network(spec.declare(spec.settings()).networks, (64, 64, 3), 15, Net())
    return network.initialise(generator(0, "init"))


@pytest.mark.parametrize("name", SIZES)
def test_number_of_parameters(name: str) -> None:
    assert sum(p.numel() for p in paper(name).parameters()) == SIZES[name]


def test_initialisation() -> None:
    network = paper("ddcpg")
    gains = {"theta.fc": math.sqrt(2), "policy": 0.01, "value": 1.0}
    gains |= {"discriminator.0": math.sqrt(2), "discriminator.2": math.sqrt(2), "discriminator.4": 1.0}
    for name, gain in gains.items():
        w = network.get_submodule(name).weight.detach().double()
        rows, columns = w.shape
        gram = w @ w.T if rows <= columns else w.T @ w
        np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5)
    for name, p in network.named_parameters():
        if name.endswith("bias"):
            assert p.abs().max() == 0
        elif "conv" in name:  # Xavier-uniform: bound sqrt(6 / (fan in + fan out))
            bound = math.sqrt(6 / (9 * (p.shape[0] + p.shape[1])))
            assert bound * 0.95 < p.abs().max() <= bound
            assert abs(float(p.detach().std()) - bound / math.sqrt(3)) < 0.1 * bound


def test_initialisation_is_the_seeds_alone() -> None:
    torch.manual_seed(1)
    a = paper("dcpg").state_dict()
    torch.manual_seed(2)
    b = paper("dcpg").state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_the_skip_carries_the_unrectified_input() -> None:
    block = paper("ppo").theta.stack0.block0
    for p in block.parameters():
        torch.nn.init.zeros_(p)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), x)


def test_only_uint8_is_scaled() -> None:
    assert scaled(torch.tensor([255], dtype=torch.uint8)).tolist() == [1.0]
    assert scaled(torch.tensor([255.0], dtype=torch.float64)).tolist() == [255.0]
    assert scaled(torch.tensor([255.0])).dtype == torch.float32


def test_small_or_flat_observations_get_the_mlp() -> None:
    spec = METHODS["dcpg"]
    layout = spec.declare(spec.settings()).networks
    for shape in [(7,), (8, 8, 3), (3, 4)]:
        network = Network(layout, shape, 3, Net(features=8)).initialise(generator(0, "x"))
        assert network.encode("theta", torch.zeros(5, *shape), 2).shape == (5, 8)
        assert type(network.theta).__name__ == "Flat"


def test_discriminator_reads_state_action_next_in_this_order() -> None:
    f = Discriminator(2, 3, 8)
    seen = {}
    f[0].register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    f.logit(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), torch.tensor([[3.0, 4.0]]))
    assert seen["x"].tolist() == [[1, 2, 0, 1, 0, 3, 4]]

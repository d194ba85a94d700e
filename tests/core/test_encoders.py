"""The choice of encoders: what each computes, held to plain PyTorch, and that everything follows it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dcpg
from dcpg.config.explain import explain
from dcpg.config.resolve import resolve
from dcpg.core import encoders
from dcpg.core.encoders import ENCODERS, Encoder, Flat, Impala, Impoola, Net, encoder_class
from dcpg.core.networks import Network
from dcpg.core.rounded import Rounded
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.seeding import generator
from tests.small import ACTIONS, bare, declare, rollout_of

FRAMES = torch.randint(0, 256, (5, 20, 24, 3), generator=generator(0, "frames"), dtype=torch.uint8)


def made(encoder: type[Encoder], shape: tuple[int, ...], net: Net) -> Encoder:
    made = encoder(shape, net)
    made.initialise(generator(0, "encoder"))
    with torch.no_grad():  # biases away from zero
        for k, p in enumerate(made.parameters()):
            p.add_(0.1 * torch.randn(p.shape, generator=generator(0, "noise", k)))
    return made


def by_hand(encoder: Impala, frames: Tensor) -> Tensor:
    """Impoola, from its definition: IMPALA's stacks, then one number for each channel of the last picture."""
    x = frames.float().permute(0, 3, 1, 2) / 255
    for i in range(2):
        part = f"stack{i}"
        conv = encoder.get_submodule(f"{part}.conv")
        x = F.max_pool2d(F.conv2d(x, conv.weight, conv.bias, padding=1), 3, 2, 1)
        for block in ("block0", "block1"):
            inner = F.relu(x)
            for name in ("conv1", "conv2"):
                conv = encoder.get_submodule(f"{part}.{block}.{name}")
                inner = F.conv2d(F.relu(inner), conv.weight, conv.bias, padding=1)
            x = x + inner
    vector = torch.stack([F.relu(x[:, c]).flatten(1).mean(1) for c in range(x.shape[1])], dim=1)
    return F.relu(vector @ encoder.fc.weight.T + encoder.fc.bias)


def test_impoola_takes_the_mean_over_the_last_picture() -> None:
    encoder = made(Impoola, (20, 24, 3), Net(encoder="impoola", channels=(4, 6), features=16))
    expected, found = by_hand(encoder, FRAMES), encoder(FRAMES)
    assert torch.allclose(found, expected, atol=1e-6)
    assert encoder.fc.weight.shape == (16, 6)
    weight = torch.randn(5, 16, generator=generator(0, "weight"))
    ours = torch.autograd.grad((found * weight).sum(), list(encoder.parameters()))
    theirs = torch.autograd.grad((expected * weight).sum(), list(encoder.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("encoder", [*ENCODERS.values(), Flat])
def test_forward_and_walk_agree_and_the_first_weight_is_the_first(encoder: type[Encoder]) -> None:
    made_ = made(encoder, (20, 24, 3), Net(channels=(4, 6), features=16))
    layers = []

    def through(layer: nn.Module, x: Tensor) -> Tensor:
        layers.append(layer)
        out: Tensor = layer(x)
        return out

    assert torch.allclose(made_.walk(FRAMES, through), made_(FRAMES), atol=1e-5)
    weights = {id(p) for layer in layers for p in layer.parameters()}
    assert weights == {id(p) for p in made_.parameters()}  # every weight belongs to a layer that `walk` passes
    assert made_.get_parameter(made_.first) is layers[0].weight


@pytest.mark.parametrize("encoder", [*ENCODERS.values(), Flat])
def test_every_encoder_computes_in_bfloat16(encoder: type[Encoder]) -> None:
    made_ = made(encoder, (20, 24, 3), Net(channels=(4, 6), features=16))
    with torch.no_grad():
        exact, rounded = made_(FRAMES), Rounded(made_)(FRAMES)
        floats = Rounded(made_)(FRAMES.float() / 255)
    assert rounded.dtype == torch.float32
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.02
    assert float((floats - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize(
    ("net", "parameters"),
    # the paper's 626,256; a linear layer on 32 numbers instead of 2,048; twice as wide, convolutions, linear and heads
    [
        (Net(), 626_256),
        (Net(encoder="impoola"), 626_256 - 2016 * 256),
        (Net(encoder="impoola", width=2), 388_736 + 65 * 256 + 257 * 16),
    ],
)
def test_sizes(net: Net, parameters: int) -> None:
    network = Network(declare("ppo")[0].networks, (64, 64, 3), 15, net, device="meta")
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_width_multiplies_the_channels() -> None:
    wide, plain = Net(width=3, channels=(4, 6)), Net(channels=(12, 18))
    shapes = [[tuple(p.shape) for p in Impala((16, 16, 3), net).parameters()] for net in (wide, plain)]
    assert shapes[0] == shapes[1]


def test_an_encoder_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Unknown encoder 'impola'; did you mean 'impoola'\?"):
        resolve("dcpg", "maze", settings={"network.encoder": "impola"})
    with pytest.raises(BadInput, match=r"network\.width must be at least 1"):
        resolve("dcpg", "maze", settings={"network.width": "0"})


def test_a_new_encoder_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the picture, the rest as IMPALA: declared once, known everywhere."""

    class Half(Impala):
        @staticmethod
        def vector_size(picture: tuple[int, ...]) -> int:
            return picture[0] * (picture[1] // 2) * picture[2]

        @staticmethod
        def vector(x: Tensor) -> Tensor:
            return F.relu(x[:, :, : x.shape[2] // 2].flatten(1))

    monkeypatch.setitem(encoders.ENCODERS, "half", Half)
    config = resolve("ddcpg", "maze", settings={"network.encoder": "half"})
    assert encoder_class((64, 64, 3), config.network) is Half
    assert "half: 16, 32, 32 channels" in explain(config)


@pytest.mark.parametrize("name", METHODS)
def test_every_line_of_every_method_learns_on_impoola(name: str) -> None:
    """One phase: finite terms, and gradients for every weight of the encoders."""
    method, settings = declare(name)
    net = Net(encoder="impoola", channels=(4, 4), features=16)
    network = Network(method.networks, (16, 16, 3), ACTIONS, net).initialise(generator(0, "test"))
    algorithm = bare(method, network, settings, lambda k: rollout_of(method, network, seed=k))
    before = {k: v.clone() for k, v in network.state_dict().items()}
    for _ in range(method.N_pi):
        algorithm.rollout()
    assert all(np.isfinite(value) for value in algorithm.stepper.row().values())
    after = network.state_dict()
    assert [k for k in before if torch.equal(before[k], after[k])] == []


@pytest.mark.faults
def test_a_run_on_impoola_is_evaluated_analysed_exported_and_loaded(tmp_path: Path) -> None:
    settings = {"network.encoder": "impoola", "network.width": 2, "evaluation.episodes": 2, "evaluation.max_steps": 40}
    run = dcpg.train("ddcpg", "maze", preset="tiny", steps=256, out=tmp_path / "run", settings=settings)
    plain = json.loads((tmp_path / "run" / "config.json").read_text())["network"]
    assert (plain["encoder"], plain["width"]) == ("impoola", 2)
    first = dcpg.load(run)
    assert isinstance(first.network.get_submodule("theta"), Impoola)
    found = dcpg.analyse(run, "stiffness", states=64, burn_in=8)
    assert -1 <= found["stiffness"] <= 1
    dcpg.export(run, out=tmp_path / "out")
    second = dcpg.load(tmp_path / "out")
    frame = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    a, b = (agent.actor.log_policy(frame[None]) for agent in (first, second))
    assert torch.equal(a, b)
    assert dataclasses.asdict(second.config.network)["encoder"] == "impoola"

"""bfloat16 and torch.compile on the CPU, held to the plain float32 network. Neither was tried on a GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import dcpg
from dcpg.config.build import build_network
from dcpg.config.resolve import resolve
from dcpg.core.encoders import Impala
from dcpg.seeding import generator
from tests.small import bare, declare, network_of, rollout_of, step, whole

NAMES = ["ppo", "ppg", "ddcpg", "ucb-drac"]


def gradients(name: str, precision: str) -> dict[str, torch.Tensor]:
    """Of every line of a method, before the first step."""
    method, settings = declare(name, N_pi=1, max_grad_norm=1e9)  # not clipped, so that norms can be compared
    network = network_of(method, precision=precision)
    algorithm = bare(method, network, settings, chunk=7)
    tau = rollout_of(method, network)
    if method.auxiliary_phase:
        algorithm.B.add(0, tau)
        algorithm.remember()
    found = {}
    for line in method.lines:
        weights = {k: v.clone() for k, v in network.state_dict().items()}
        step(algorithm, line, whole(algorithm, line, tau))
        assert {p.dtype for p in network.parameters()} == {torch.float32}
        found[line.name] = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        network.load_state_dict(weights)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_gradients_are_those_of_float32_but_for_rounding(name: str) -> None:
    exact, rounded = gradients(name, "fp32"), gradients(name, "bf16")
    for line, grad in exact.items():
        assert not torch.equal(grad, rounded[line])  # it was not float32 in disguise
        assert float(torch.cosine_similarity(grad, rounded[line], dim=0)) > 0.99
        assert float(rounded[line].norm() / grad.norm()) == pytest.approx(1, abs=0.02)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch's compiler, to itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_a_compiled_encoder_computes_the_same() -> None:
    settings = {"env.frame_size": 32, "network.channels": "4,8", "network.features": 16, "machine.compile": True}
    compiled = build_network(resolve("ppo", "maze", settings=settings), (32, 32, 3), 15)
    plain = build_network(resolve("ppo", "maze", settings=settings | {"machine.compile": False}), (32, 32, 3), 15)
    frames = torch.randint(0, 256, (6, 32, 32, 3), generator=generator(0, "frames"), dtype=torch.uint8)
    for network in (compiled, plain):
        theta = network.get_submodule("theta")
        assert isinstance(theta, Impala)
        theta(frames).square().sum().backward()
    for (name, a), b in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        if b.grad is not None:
            assert float((a.grad - b.grad).norm() / b.grad.norm()) < 1e-5, name
    assert list(compiled.state_dict()) == list(plain.state_dict())  # checkpoints do not tell how they were computed


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch's compiler, to itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_a_run_in_bfloat16_with_compiled_encoders(tmp_path: Path) -> None:
    settings = {"machine.compile": True, "machine.precision": "bf16", "algorithm.N_pi": 1, "evaluation.episodes": 1}
    run = dcpg.train("dcpg", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=settings)
    assert run.summary["status"] == "finished"
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert 0 < row["auxiliary.J_V"] < 100

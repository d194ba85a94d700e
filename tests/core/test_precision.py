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
from dcpg.core.actor import Actor, sample_actions
from dcpg.core.batch import Batch
from dcpg.core.encoders import Impala, Net
from dcpg.core.networks import Network, Outputs
from dcpg.methods import METHODS
from dcpg.seeding import generator
from tests.small import bare, declare, in_training, network_of, rollout_of, step, whole


def gradients(name: str, precision: str) -> dict[tuple[str, str], torch.Tensor]:
    """The gradients of every line of a method, by line and encoder or head, on data that float32 made."""
    method, settings = declare(name, N_pi=1, max_grad_norm=1e9)  # not clipped, so that norms can be compared
    exact, network = network_of(method), network_of(method, precision=precision)
    tau = rollout_of(method, exact)
    algorithm = bare(method, network, settings, chunk=7)
    if method.auxiliary_phase:
        other = bare(method, exact)
        for each in (other, algorithm):
            each.B.add(0, tau)
        other.remember()
        algorithm.B.old_log_policy = other.B.old_log_policy
    # away from the parameters that acted, where the terms that keep a network close to them have no slope
    with torch.no_grad():
        for k, p in enumerate(network.parameters()):
            p.add_(0.02 * torch.randn(p.shape, generator=generator(0, "noise", k)))
    found = {}
    for line in method.lines:
        weights = {k: v.clone() for k, v in network.state_dict().items()}
        step(algorithm, line, whole(algorithm, line, tau))
        assert {p.dtype for p in network.parameters()} == {torch.float32}
        for part, module in network.named_children():
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            if grads:
                assert {g.dtype for g in grads} == {torch.float32}
                found[line.name, part] = torch.cat([g.flatten() for g in grads])
        moments = [m for state in algorithm.stepper.adams[line.name].state.values() for m in state.values()]
        assert {m.dtype for m in moments} == {torch.float32}
        network.load_state_dict(weights)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_bfloat16_gradients_are_those_of_float32_but_for_rounding(name: str) -> None:
    """Every line and parameter group. Measured on these 24 samples: cosines from 0.983, norms within 5.1%."""
    exact, rounded = gradients(name, "fp32"), gradients(name, "bf16")
    assert exact.keys() == rounded.keys()
    for place, grad in exact.items():
        assert not torch.equal(grad, rounded[place])  # it was not float32 in disguise
        assert float(torch.cosine_similarity(grad, rounded[place], dim=0)) > 0.97, place
        assert float(rounded[place].norm() / grad.norm()) == pytest.approx(1, abs=0.1), place


def papers(precision: str) -> Network:
    """The paper's network with a policy that is sure of itself."""
    method, _ = declare("dcpg")
    network = Network(method.networks, (64, 64, 3), 15, Net(), precision).initialise(generator(0, "network"))
    with torch.no_grad():
        network.get_submodule("policy").weight.mul_(200)
    return network


FRAMES = torch.randint(0, 256, (48, 64, 64, 3), generator=generator(0, "frames"), dtype=torch.uint8)


def test_the_probability_ratio_starts_at_one() -> None:
    """Acting on all environments at once, learning in chunks: the same arithmetic, so the ratio is 1 but for rounding;
    learning in bfloat16 from actions sampled in float32 it would not be."""
    networks = {precision: papers(precision) for precision in ("fp32", "bf16")}
    acted = {p: Actor(network, ("value",), 48, torch.device("cpu"))(FRAMES.numpy()) for p, network in networks.items()}
    out = Outputs(networks["bf16"], Batch(FRAMES, torch.ones(48), {}), 7)
    sampled = sample_actions(acted["fp32"][0], torch.rand(48, generator=generator(0, "uniform")).double())[:, None]

    def deviation(precision: str) -> float:
        ratio = (out.log_policy.detach() - acted[precision][0]).gather(1, sampled).exp()
        return float((ratio - 1).abs().mean())

    assert deviation("bf16") < 0.01
    assert deviation("fp32") > max(2 * deviation("bf16"), 0.001)
    assert float((out.value("value").detach() - acted["bf16"][1]["value"]).abs().mean()) < 0.01


def test_heads_compute_in_float32() -> None:
    """V(s) is not rounded to the 8 bits of bfloat16: it is the float32 head on the features."""
    network = papers("bf16")
    out = Outputs(network, Batch(FRAMES, torch.ones(48), {}), 48)
    value, features = out.value("value").detach(), out.features("theta").detach()
    assert features.dtype == value.dtype == out.log_policy.dtype == torch.float32
    head = network.get_submodule("value")
    assert torch.equal(value, (features @ head.weight.T + head.bias).squeeze(1).detach())
    assert (value != value.bfloat16().float()).float().mean() > 0.9


def test_weights_are_rounded_once_per_optimiser_step() -> None:
    algorithm = in_training("dcpg", precision="bf16", chunk=3)
    copies = []
    rounded = algorithm.stepper.network.rounded["theta"]
    run = rounded.run

    def watched(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        copies.append(rounded.copies["fc.weight"])
        assert {w.dtype for w in weights.values()} == {torch.bfloat16} == {x.dtype}
        return run(weights, x)

    rounded.run = watched
    algorithm.rollout()
    updates = sum(sums.updates for sums in algorithm.stepper.sums.values())
    chunks = len(copies)
    assert updates == 2
    assert chunks > 4 * updates
    assert len({id(copy) for copy in copies}) == updates  # acting uses those of the first


def test_whole_numbers_of_a_frame_are_exact() -> None:
    """uint8 frames lose nothing: bfloat16 holds 0 to 255, and the division by 255 is part of the first weight."""
    network = papers("bf16")
    rounded = network.rounded["theta"]
    assert torch.equal(rounded._inputs(FRAMES).float(), FRAMES.float())
    first = network.get_parameter("theta.stack0.conv.weight")
    rounded(FRAMES[:1])
    assert torch.equal(rounded.copies["stack0.conv.weight"], (first / 255).bfloat16())


@pytest.mark.faults  # it takes torch's compiler most of a minute
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch's compiler, to itself
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
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


@pytest.mark.faults  # it takes torch's compiler most of a minute
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch's compiler, to itself
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.faults  # slow
def test_a_run_in_bfloat16_with_compiled_encoders(tmp_path: Path) -> None:
    settings = {"machine.compile": True, "machine.precision": "bf16", "algorithm.N_pi": 1, "evaluation.episodes": 1}
    run = dcpg.train("dcpg", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=settings)
    assert run.summary["status"] == "finished"
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert 0 < row["auxiliary.J_V"] < 100

"""Options where the paper and published code differ, all off by default: their numbers by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dcpg
from dcpg.config.explain import explain
from dcpg.config.migrate import migrated
from dcpg.config.resolve import resolve
from dcpg.config.written import from_json, to_write
from dcpg.core import objectives
from dcpg.core.algorithm import Algorithm
from dcpg.core.buffer import Buffer
from dcpg.core.encoders import ENCODERS, Encoder, Net
from dcpg.core.kernels import residual
from dcpg.core.networks import Outputs
from dcpg.core.objectives import J_F, J_f
from dcpg.core.rollout import Rollout
from dcpg.core.rounded import Rounded
from dcpg.core.targets import gae, normalise, with_targets
from dcpg.machine.automatic import settled
from dcpg.machine.needs import KEPT, needs_of
from dcpg.methods import METHODS, Joint, with_joint_dynamics
from dcpg.runs.comparable import setting_of, variant_of
from dcpg.seeding import generator
from tests.core.test_encoders import FRAMES, made
from tests.machine.test_needs import FRAMES as SPACES
from tests.small import ACTIONS, N, Sum, T, bare, declare, in_training, network_of, rollout_of, step, whole

OPTIONS = {
    "dcpg": {"network.skip": "rectified"},
    "separate-dcpg": {"algorithm.two_steps": True},
    "ddcpg": {"algorithm.negatives": "B"},
    "ppg+dr": {"algorithm.advantage_gamma": 0.999},
}


@pytest.mark.parametrize("name", METHODS)
def test_all_of_them_are_off_and_a_run_from_before_them_reads_as_such(name: str) -> None:
    config = resolve(name, "bigfish")
    new = {f.name for f in dataclasses.fields(config.algorithm)} & {"two_steps", "negatives", "advantage_gamma"}
    plain = json.loads(json.dumps(to_write(config, None)))
    older = {**plain, "schema": 9, "network": {k: v for k, v in plain["network"].items() if k != "skip"}}
    older["algorithm"] = {k: v for k, v in plain["algorithm"].items() if k not in new}
    assert migrated(older) == plain
    assert from_json(older) == config
    assert config.network.skip == "plain"


def test_a_run_of_a_plugins_method_gets_the_usual_values_too() -> None:
    config = resolve("ddcpg", "bigfish")
    plain = to_write(config, None)
    algorithm = {k: v for k, v in plain["algorithm"].items() if k != "negatives"}
    found = migrated(plain | {"schema": 9, "algorithm": algorithm, "method_values": {"algorithm.eta": 0.5}})
    assert found["method_values"] == {"algorithm.negatives": "minibatch", "algorithm.eta": 0.5}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("dcpg", "it is impala: 16, 32, 32 channels, 256 features, skips that carry relu(x)"),
        ("separate-dcpg", "10    for epoch = 1 .. 6\n11      minimise J_V_phi with B, 4 segments per minibatch"),
        ("ddcpg", "minimise J_V + C_pi + J_f with B, 4 segments per minibatch, negatives from all of B"),
        ("ppg+dr", "A <- normalised advantages from value, gamma 0.999"),
    ],
)
def test_they_are_explained(name: str, sentence: str) -> None:
    assert sentence in explain(resolve(name, "bigfish", settings=OPTIONS[name]))


# -- the rectified skip


def test_the_rectified_skip_by_hand() -> None:
    """One pixel, weights 3 and 2, biases 1 and 5: relu(x) + 2 relu(3 relu(x) + 1) + 5."""
    weights = [torch.zeros(1, 1, 3, 3) for _ in range(2)]
    for weight, value in zip(weights, (3.0, 2.0), strict=True):
        weight[0, 0, 1, 1] = value
    biases = torch.tensor([1.0]), torch.tensor([5.0])
    for rectified, expected, slopes in ((True, [7.0, 21.0], [0.0, 7.0]), (False, [3.0, 21.0], [1.0, 7.0])):
        x = torch.tensor([-4.0, 2.0]).view(2, 1, 1, 1).requires_grad_()
        out = residual(x, weights[0], biases[0], weights[1], biases[1], rectified)
        assert out.flatten().tolist() == expected
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.flatten().tolist() == slopes


class InPlace(nn.Module):
    """The residual block of the baselines' own code: its ReLU changes x itself, which the skip then carries."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.relu = block, nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()  # the output of a convolution or a pool, which nobody else needs
        out: Tensor = self.block.conv2(self.relu(self.block.conv1(self.relu(x))))
        return out + x


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_with_a_rectified_skip_compute_what_a_relu_in_place_does(name: str) -> None:
    """Values, gradients, the walk of the stiffness and bfloat16."""
    shape, net = (20, 24, 3), Net(encoder=name, channels=(4, 6), features=16, skip="rectified")
    encoder = made(ENCODERS[name], shape, net)
    plain = made(ENCODERS[name], shape, dataclasses.replace(net, skip="plain"))
    theirs = made(ENCODERS[name], shape, net)
    for stack in theirs.stacks():
        stack.block0, stack.block1 = InPlace(stack.block0), InPlace(stack.block1)
    found, expected = encoder(FRAMES), theirs(FRAMES)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(found, plain(FRAMES), atol=1e-2)
    weight = torch.randn(found.shape, generator=generator(0, "weight"))
    ours, others = _gradients(encoder, found, weight), _gradients(theirs, expected, weight)
    for own, other in zip(ours, others, strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(encoder.walk(FRAMES, lambda layer, x: layer(x)), found, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        exact, rounded = encoder(FRAMES), Rounded(encoder)(FRAMES)
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.02


def _gradients(encoder: Encoder, out: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((out * weight).sum(), list(encoder.parameters()))


# -- Separate DCPG in two steps


def test_two_steps_are_the_lines_of_algorithm_3() -> None:
    method = resolve("separate-dcpg", "bigfish", settings=OPTIONS["separate-dcpg"]).declared()
    found = [(line.name, list(line.terms), line.epochs) for line in method.lines]
    assert found == [
        ("policy", ["J_pi", "C_V", "H"], 1),
        ("value", ["J_V_phi"], 1),
        ("auxiliary", ["J_V_theta", "C_pi"], 6),
        ("auxiliary_value", ["J_V_phi"], 6),
    ]


@pytest.mark.parametrize("phase", ["policy_phase", "auxiliary_phase"])
def test_two_steps_clip_each_network_alone(phase: str) -> None:
    """One step clips the norm of both networks' gradients, |g|^2 = |g_theta|^2 + |g_phi|^2, to 0.01; two clip each."""
    norms: dict[bool, list[float]] = {}
    gradients: dict[bool, dict[str, Tensor]] = {}
    for two_steps in (False, True):
        method, settings = declare("separate-dcpg", N_pi=1, two_steps=two_steps, max_grad_norm=0.01)
        network = network_of(method)
        tau = rollout_of(method, network)
        algorithm = bare(method, network, settings)
        algorithm.B.add(0, tau)
        algorithm.remember()
        norms[two_steps], gradients[two_steps] = [], {}
        for line in getattr(method, phase):
            step(algorithm, line, whole(algorithm, line, tau))
            norms[two_steps].append(algorithm.stepper.row()[f"{line.name}.gradient_norm"])
            gradients[two_steps] |= {k: p.grad.clone() for k, p in network.named_parameters() if p.grad is not None}
    (joint,), (theta, phi) = norms[False], norms[True]
    assert min(theta, phi) > 0.01
    assert joint == pytest.approx(math.hypot(theta, phi), rel=1e-4)
    for name, own in (("theta", theta), ("phi", phi)):
        for key in (k for k in gradients[True] if k.startswith(name)):  # in one step each has a share of the norm
            torch.testing.assert_close(gradients[False][key] * joint / own, gradients[True][key], rtol=1e-3, atol=1e-7)


def test_two_steps_train_everything_and_take_dynamics_and_drac() -> None:
    method, _ = declare("separate-dcpg", {"augment": "crop"}, two_steps=True)
    assert [list(line.terms)[-1] for line in method.policy_phase] == ["G_V", "J_V_phi"]
    method, settings = declare("separate-dcpg", two_steps=True)
    network = network_of(method)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    algorithm = bare(method, network, settings, lambda k: rollout_of(method, network, seed=k))
    for _ in range(2):
        algorithm.rollout()
    assert [k for k, v in network.state_dict().items() if torch.equal(before[k], v)] == []
    both = with_joint_dynamics(method, Joint())
    assert [list(line.terms) for line in both.auxiliary_phase] == [["J_V_theta", "C_pi", "J_f"], ["J_V_phi"]]


def test_inverse_dynamics_alone_opens_no_frame_for_wrong_actions_from_B(monkeypatch: pytest.MonkeyPatch) -> None:
    method, settings = declare("dcpg+i", negatives="B")
    network = network_of(method)
    algorithm = bare(method, network, settings, lambda k: rollout_of(method, network, seed=k))
    monkeypatch.setattr(Buffer, "following", lambda *_: pytest.fail("opened"))
    for _ in range(2):
        algorithm.rollout()
    assert algorithm.stepper.row()["auxiliary.J_I"] > 0


# -- negatives from all of B


def with_two_rollouts() -> tuple[Algorithm, list[Rollout]]:
    algorithm = in_training("ddcpg", OPTIONS["ddcpg"])
    taus = [algorithm.collector.sample(k) for k in range(2)]
    for k, tau in enumerate(taus):
        algorithm.B.add(k, tau)
    algorithm.remember()
    return algorithm, taus


def test_steps_of_B_are_numbered_segment_by_segment() -> None:
    algorithm, taus = with_two_rollouts()
    B = algorithm.B
    assert (T, N) == (6, 4)
    assert B.numbers(torch.tensor([5, 2])).tolist() == [30, 12, 31, 13, 32, 14, 33, 15, 34, 16, 35, 17]
    # step 0 of segment 0, step 5 of segment 3, step 2 of segment 6: environment 2 of the second rollout
    found = B.following(torch.tensor([0, 23, 38]))
    assert torch.equal(found, torch.stack([taus[0].frames[1, 0], taus[0].frames[6, 3], taus[1].frames[3, 2]]))
    half = B.part(range(2, 4))
    assert half.own.tolist() == [2, 3, 6, 7]
    assert half.numbers(torch.tensor([6]))[0] == 12
    assert torch.equal(half.following(torch.tensor([12])), taus[1].frames[1, 2][None])


def test_wrong_next_states_are_any_of_B_but_the_true_one() -> None:
    algorithm, taus = with_two_rollouts()
    (line,) = algorithm.method.auxiliary_phase
    following = torch.cat([tau.frames[1:].transpose(0, 1).flatten(0, 1) for tau in taus])  # by number
    keys = {frame.numpy().tobytes(): number for number, frame in enumerate(following)}
    assert len(keys) == 2 * T * N
    batch, seen = algorithm.B.minibatch(torch.tensor([5, 2])), np.zeros((2 * T, 2 * T * N), int)
    true = algorithm.B.numbers(batch.segments).tolist()
    for seed in range(200):
        drawn = line.draw(batch, algorithm.B, generator(seed, "draw"), ACTIONS)
        for sample, frame in enumerate(drawn.other_frames):
            seen[sample, keys[frame.numpy().tobytes()]] += 1
    assert all(seen[sample, number] == 0 for sample, number in enumerate(true))
    # 2400 draws over 47 others each: every state of B is drawn, 200 * 12 / 48 = 50 times but for chance
    assert seen.sum(0).min() > 20
    assert seen.sum(0).max() < 90


def test_wrong_actions_follow_the_actions_of_all_of_B() -> None:
    algorithm, taus = with_two_rollouts()
    (line,) = algorithm.method.auxiliary_phase
    for kept, tau in zip(algorithm.B.rollouts.values(), taus, strict=True):
        kept.tensors["actions"] = torch.full_like(tau.actions, 3)
    algorithm.B.rollouts[1].tensors["actions"][0, 0] = 1  # in segment 4, which is not in the minibatch
    assert algorithm.B.action_counts(ACTIONS).tolist() == [0, 1, 0, 47, 0]
    drawn = line.draw(algorithm.B.minibatch(torch.tensor([5, 2])), algorithm.B, generator(0, "draw"), ACTIONS)
    assert drawn.negative_actions.tolist() == [1] * 12


def test_J_f_with_a_wrong_next_state_from_elsewhere_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features 1, 2, 3 of the frames, 7 and 9 of the wrong next states; the discriminator is a sum."""
    monkeypatch.setattr(objectives, "Discriminator", Sum)
    algorithm, _ = with_two_rollouts()
    batch = algorithm.B.minibatch(torch.tensor([0]))
    batch = dataclasses.replace(
        batch, valid=torch.ones(2), actions=torch.tensor([0, 1]), next_rows=torch.tensor([1, 2]),
        negative_actions=torch.tensor([4, 0]), other_frames=torch.zeros(2, 1),
    )  # fmt: skip

    class Elsewhere:
        def features(self, encoder: str) -> Tensor:
            return torch.tensor([[7.0], [9.0]])

    class Out(Elsewhere):
        network, other = nn.Module(), Elsewhere()

        def all_features(self, encoder: str) -> Tensor:
            return torch.tensor([[1.0], [2.0], [3.0]])

        def features(self, encoder: str) -> Tensor:
            return self.all_features(encoder)[:2]

    Out.network.discriminator = Sum()
    sp = lambda x: math.log1p(math.exp(x))
    true, wrong = [sp(-2.01), sp(-3.12)], [sp((1 + 0 + 700) / 100), sp((2 + 10 + 900) / 100)]
    np.testing.assert_allclose(J_F(Out(), batch, mask_boundaries=False), np.add(true, wrong), rtol=1e-5)
    action = [0.5 * sp((1 + 40 + 200) / 100), 0.5 * sp((2 + 0 + 300) / 100)]
    found = J_f(Out(), batch, eta=0.5, mask_boundaries=False)
    np.testing.assert_allclose(found, np.add(np.add(true, wrong), action), rtol=1e-5)


def test_gradients_reach_the_encoder_through_wrong_next_states_from_elsewhere() -> None:
    algorithm, _ = with_two_rollouts()
    (line,) = algorithm.method.auxiliary_phase
    batch = line.draw(algorithm.B.minibatch(torch.tensor([5, 2])), algorithm.B, generator(0, "draw"), ACTIONS)
    elsewhere = (batch.other_frames.float() / 255).requires_grad_()
    batch = dataclasses.replace(batch, other_frames=elsewhere)
    line.terms["J_f"][1](Outputs(algorithm.stepper.network, batch, 64), batch)[3].backward()
    assert elsewhere.grad is not None
    assert elsewhere.grad.flatten(1).abs().sum(1).nonzero().flatten().tolist() == [3]


def test_the_memory_of_wrong_next_states_from_elsewhere_is_counted() -> None:
    configs = [resolve("ddcpg", "maze", settings=more) for more in ({}, OPTIONS["ddcpg"])]
    less, more = (needs_of(settled(config, SPACES), SPACES).memory for config in configs)
    assert more - less == pytest.approx(1028 * 635_904 * KEPT, rel=0.06)  # another 4 segments of 256, and their ends


# -- gamma' for the value alone


def test_gamma_for_the_value_alone() -> None:
    """The target has gamma' 0.995, the advantages 0.999; the bootstrap of a truncated episode too."""
    alone, _ = declare("ppg+dr", advantage_gamma=0.999)
    both, _ = declare("ppg+dr")
    tau = rollout_of(both, network_of(both))
    tau = dataclasses.replace(tau, final_values={"value": torch.where(tau.dones, 5.0, 0.0)})
    found, usual = with_targets(tau, alone), with_targets(tau, both)
    assert torch.equal(found.returns["value"], usual.returns["value"])
    assert torch.equal(found.advantages_raw, usual.advantages_raw)
    assert tau.dones.any()
    advantages = gae(tau.rewards + 0.999 * tau.final_values["value"], tau.values["value"], tau.dones, 0.999, 0.95)
    assert torch.equal(found.advantages, normalise(advantages, tau.valid))
    assert not torch.allclose(found.advantages, usual.advantages)


def test_gamma_for_the_value_alone_by_hand() -> None:
    """gamma' 0.5, gamma 1, lambda 0.5; rewards 1 and 2, values 10, 20, 40, no end."""
    method, _ = declare("ppg+dr", gamma=0.5, lam=0.5, advantage_gamma=1.0)
    tau = rollout_of(method, network_of(method))
    column = lambda *values: torch.tensor([[v] for v in values])
    tau = dataclasses.replace(
        tau, rewards=column(1.0, 2.0), values={"value": column(10.0, 20.0, 40.0)}, dones=column(False, False),
        valid=column(True, True), final_values={"value": torch.zeros(2, 1)},
    )  # fmt: skip
    found = with_targets(tau, method)
    # gamma': deltas 1 + 10 - 10 = 1 and 2 + 20 - 20 = 2, A_0 = 1 + 0.25 * 2 = 1.5, targets 11.5 and 22
    assert found.returns["value"].flatten().tolist() == [11.5, 22.0]
    # gamma: deltas 1 + 20 - 10 = 11 and 2 + 40 - 20 = 22, A_0 = 11 + 0.5 * 22 = 22 = A_1: both are their mean
    assert found.advantages.flatten().tolist() == [0.0, 0.0]
    assert found.advantages_raw.flatten().tolist() == [1.5, 2.0]


def test_the_true_value_of_an_evaluation_keeps_the_values_own_discount() -> None:
    from dcpg.config.build import protocol_of

    assert protocol_of(resolve("ppg+dr", "bigfish", settings=OPTIONS["ppg+dr"])).gamma == 0.995


# -- in runs


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("dcpg", "dcpg [skip=rectified]"),
        ("separate-dcpg", "separate-dcpg [two_steps=True]"),
        ("ddcpg", "ddcpg [negatives=B]"),
        ("ppg+dr", "ppg+dr [advantage_gamma=0.999]"),
    ],
)
def test_reports_name_them(name: str, label: str) -> None:
    config = resolve(name, "bigfish", settings=OPTIONS[name])
    assert variant_of(config, {}) == label
    assert setting_of(config, {}) == setting_of(resolve(name, "bigfish"), {})  # they are compared with the method


@pytest.mark.faults
def test_a_run_with_options_is_resumed_exactly(tmp_path: Path) -> None:
    settings = {"algorithm.negatives": "B", "network.skip": "rectified", "evaluation.max_steps": 8}
    settings |= {"evaluation.episodes": 2, "machine.threads": 1}
    dcpg.train("ddcpg", "maze", preset="tiny", steps=256, settings=settings, out=tmp_path / "whole")
    first = dcpg.train("ddcpg", "maze", preset="tiny", steps=128, settings=settings, out=tmp_path / "halves")
    dcpg.resume(first, steps=256)
    rows = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "halves")]
    assert rows[0] == rows[1]
    assert b"auxiliary.J_f" in rows[0]

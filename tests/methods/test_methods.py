"""What is each method's own: targets, heads, terms by hand, and combinations that are the same thing."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dcpg
from dcpg.config.resolve import resolve
from dcpg.core.bandit import UCB
from dcpg.core.batch import Batch
from dcpg.core.draws import draw_pairs
from dcpg.core.episodes import EpisodeCounter
from dcpg.core.networks import Outputs
from dcpg.core.objectives import J_A, J_D, J_F, J_I, P_V, J_f, J_order
from dcpg.core.rollout import Rollout
from dcpg.core.targets import gae, normalise, with_targets
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.seeding import generator
from dcpg.storage.rows import read_rows
from tests.small import ACTIONS, SMALL, N, Sum, T, bare, declare, in_training, network_of, rollout_of, step, whole


def test_the_table_is_the_papers_fifteen() -> None:
    from tests.core.test_networks import SIZES
    from tests.core.test_objectives import REACHES

    fifteen = [
        "ppo", "ucb-drac", "plr", "daac", "idaac", "ppg", "ppg+dr", "ppg+ar", "dppg", "dcpg", "separate-dcpg",
        "dcpg+f", "dcpg+i", "dcpg+fi", "ddcpg",
    ]  # fmt: skip
    assert list(METHODS)[:15] == fifteen
    assert set(SIZES) == set(REACHES) == set(fifteen)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ucb-drac", {"augment": "ucb", "drac": {"alpha_r": 0.1, "c": 0.1, "window": 10}, "E_pi": 3}),
        ("plr", {"levels.sampler": "prioritised", "levels.beta": 0.1, "levels.rho": 0.1, "E_pi": 3}),
        ("daac", {"E_pi": 1, "E_V": 9, "alpha_a": 0.25}),
        ("idaac", {"E_pi": 1, "E_V": 9, "alpha_a": 0.25, "alpha_i": 0.001}),
        ("ppg+dr", {"gamma": 0.995, "lam": 0.95, "N_pi": 32, "E_aux": 6}),
        ("ppg+ar", {"gamma": 0.999, "alpha": 0.05}),
        ("dppg", {"beta_f": 1.0, "eta": 0.5}),
        ("separate-dcpg", {"beta_V": 1.0, "beta_pi": 1.0}),
        ("dcpg+f", {"beta_f": 1.0}),
        ("dcpg+i", {"beta_f": 1.0}),
        ("dcpg+fi", {"beta_f": 1.0, "eta": 1.0}),
        ("ddcpg", {"beta_f": 1.0, "eta": 0.5}),
    ],
)
def test_defaults_are_the_papers(name: str, expected: dict[str, Any]) -> None:
    plain = resolve(name, "bigfish").to_json()
    found = plain | plain["algorithm"] | {f"levels.{k}": v for k, v in plain["levels"].items()}
    assert {k: found[k] for k in expected} == expected


WEIGHTS = {
    "ucb-drac": {"policy": {"J_pi": 1, "J_V": 0.5, "H": -0.01, "G_pi": 0.1, "G_V": 0.1}},
    "plr": {"policy": {"J_pi": 1, "J_V": 0.5, "H": -0.01}},
    "daac": {"policy": {"J_pi": 1, "J_A": 0.25, "H": -0.01}, "value": {"J_V": 1}},
    "idaac": {
        "order": {"J_D": 1},
        "policy": {"J_pi": 1, "J_A": 0.25, "H": -0.01, "J_order": 0.001},
        "value": {"J_V": 1},
    },
    "ppg+dr": {"policy": {"J_pi": 1, "J_V": 1, "H": -0.01}, "auxiliary": {"J_V": 1, "J_aux": 1, "C_pi": 1}},
    "ppg+ar": {
        "policy": {"J_pi": 1, "J_V": 1, "H": -0.01, "P_V": 0.05},
        "auxiliary": {"J_V": 1, "J_aux": 1, "C_pi": 1, "P_V": 0.05},
    },
    "dppg": {"policy": {"J_pi": 1, "J_V": 1, "H": -0.01}, "auxiliary": {"J_V": 1, "J_aux": 1, "C_pi": 1, "J_f": 1}},
    "separate-dcpg": {
        "policy": {"J_pi": 1, "C_V": 1, "H": -0.01, "J_V_phi": 1},
        "auxiliary": {"J_V_theta": 1, "C_pi": 1, "J_V_phi": 1},
    },
    "dcpg+f": {"policy": {"J_pi": 1, "C_V": 1, "H": -0.01}, "auxiliary": {"J_V": 1, "C_pi": 1, "J_F": 1}},
    "dcpg+i": {"policy": {"J_pi": 1, "C_V": 1, "H": -0.01}, "auxiliary": {"J_V": 1, "C_pi": 1, "J_I": 1}},
    "dcpg+fi": {"policy": {"J_pi": 1, "C_V": 1, "H": -0.01}, "auxiliary": {"J_V": 1, "C_pi": 1, "J_F": 1, "J_I": 1}},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_step_and_weight(name: str) -> None:
    steps = resolve(name, "bigfish").declared().adams
    assert {k: {t: w for t, (w, _) in terms.items()} for k, terms in steps.items()} == WEIGHTS[name]


# -- Separate DCPG


def test_separate_dcpg_has_two_targets_and_takes_advantages_from_phi_alone() -> None:
    method, _ = declare("separate-dcpg")
    tau = rollout_of(method, network_of(method))
    for head in ("delayed_value", "value"):
        advantages = gae(tau.rewards, tau.values[head], tau.dones, 0.999, 0.95)
        torch.testing.assert_close(tau.returns[head], advantages + tau.values[head][:-1])
    torch.testing.assert_close(tau.advantages_raw, gae(tau.rewards, tau.values["value"], tau.dones, 0.999, 0.95))
    assert not torch.allclose(tau.returns["value"], tau.returns["delayed_value"])
    moved = with_targets(replace(tau, values=tau.values | {"delayed_value": tau.values["delayed_value"] + 7}), method)
    assert torch.equal(moved.advantages, tau.advantages)
    assert not torch.allclose(moved.returns["delayed_value"], tau.returns["delayed_value"])


def test_separate_dcpg_holds_V_theta_still_in_the_policy_phase() -> None:
    """C_V pulls V_theta to its recorded values: a pull that vanishes there, and grows with beta_V."""
    drift = {}
    for beta in (0.0, 30.0):
        method, settings = declare("separate-dcpg", beta_V=beta, minibatches=1)
        network = network_of(method)
        tau = rollout_of(method, network)
        algorithm = bare(method, network, settings)
        (line,) = method.policy_phase
        for _ in range(60):
            step(algorithm, line, whole(algorithm, line, tau))
        out = Outputs(network, tau.minibatch(torch.arange(T * N)), 64)
        old = tau.values["delayed_value"][:-1].flatten()
        drift[beta] = float((out.value("delayed_value").detach() - old).abs().mean())
    assert drift[30.0] < 0.3 * drift[0.0]


def test_separate_dcpg_trains_each_head_on_its_own_target() -> None:
    algorithm = in_training("separate-dcpg", N_pi=1)
    tau = algorithm.collector.sample(0)
    algorithm.B.add(0, tau)
    algorithm.remember()
    (line,) = algorithm.method.auxiliary_phase
    batch = whole(algorithm, line, tau)
    out = Outputs(algorithm.stepper.network, batch, 64)
    for term, head in (("J_V_theta", "delayed_value"), ("J_V_phi", "value")):
        values = line.terms[term][1](out, batch)
        torch.testing.assert_close(values, 0.5 * (out.value(head) - batch.returns[head]).square())


# -- PPG's regularised forms


def test_discount_regularisation_shortens_targets_and_advantages_alike() -> None:
    method, _ = declare("ppg+dr")
    assert {head: t.gamma for head, t in method.targets.items()} == {"value": 0.995}
    tau = rollout_of(method, network_of(method))
    torch.testing.assert_close(tau.advantages_raw, gae(tau.rewards, tau.values["value"], tau.dones, 0.995, 0.95))
    # by hand, one environment, no end, V = 0: R_t = sum (gamma lambda)^k r_{t+k}
    zeros = torch.zeros(4, 1)
    plain = Rollout(
        frames=torch.zeros(4, 1, 1), actions=zeros[:3].long(), log_probs=zeros[:3], values={"value": zeros},
        final_values={"value": zeros[:3]}, raw_rewards=torch.ones(3, 1), rewards=torch.ones(3, 1),
        dones=zeros[:3].bool(), valid=torch.ones(3, 1, dtype=torch.bool), crosses=zeros[:3].bool(),
        levels=zeros[:3].long(),
    )  # fmt: skip
    k = 0.995 * 0.95
    np.testing.assert_allclose(with_targets(plain, method).returns["value"][:, 0], [1 + k + k**2, 1 + k, 1], rtol=1e-6)
    from dcpg.core.rewards import GAMMA

    assert GAMMA == 0.99  # the normaliser's own discount stays


def test_activation_penalty_and_its_gradient_by_hand() -> None:
    out = SimpleNamespace(value=lambda head: {"value": torch.tensor([3.0, -2.0])}[head])
    batch = Batch(frames=torch.zeros(2, 1), valid=torch.ones(2), returns={})
    np.testing.assert_allclose(P_V(out, batch), [4.5, 2.0])
    for line in resolve("ppg+ar", "bigfish").declared().lines:
        value = torch.tensor([3.0, -2.0], requires_grad=True)
        out = SimpleNamespace(value=lambda head, v=value: v)
        with_returns = replace(batch, returns={"value": torch.tensor([1.0, 1.0])})
        loss = sum(line.terms[t][0] * line.terms[t][1](out, with_returns).sum() for t in ("J_V", "P_V"))
        loss.backward()
        # d/dV [1/2 (V - R)^2 + 0.05/2 V^2] = V - R + 0.05 V
        np.testing.assert_allclose(value.grad, [2 + 0.15, -3 - 0.1], rtol=1e-6)


# -- dynamics


def test_forward_and_inverse_dynamics_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpg.core.objectives.Discriminator", Sum)
    network = torch.nn.Module()
    network.discriminator, network.inverse_discriminator = Sum(), Sum(-1.0)
    features = torch.tensor([[1.0], [2.0], [3.0]])
    out: Any = SimpleNamespace(network=network, features=lambda e: features[:2], all_features=lambda e: features)
    batch = Batch(
        frames=torch.zeros(3, 1),
        valid=torch.ones(2),
        returns={},
        actions=torch.tensor([0, 1]),
        next_rows=torch.tensor([1, 2]),
        negative_next=torch.tensor([1, 0]),
        negative_actions=torch.tensor([4, 0]),
        crosses=torch.tensor([0.0, 1.0]),
    )
    sp = lambda x: math.log1p(math.exp(x))
    true, wrong_next, wrong_action = [2.01, 3.12], [3.01, 2.12], [2.41, 3.02]
    forward = [sp(-t) + sp(n) for t, n in zip(true, wrong_next, strict=True)]
    inverse = [sp(-t) + sp(a) for t, a in zip(true, wrong_action, strict=True)]
    np.testing.assert_allclose(J_F(out, batch, mask_boundaries=False), forward, rtol=1e-5)
    np.testing.assert_allclose(J_I(out, batch, mask_boundaries=False), inverse, rtol=1e-5)
    np.testing.assert_allclose(J_F(out, batch, mask_boundaries=True), [forward[0], 0], rtol=1e-5)
    np.testing.assert_allclose(J_I(out, batch, mask_boundaries=True), [inverse[0], 0], rtol=1e-5)
    other = [sp(t) + sp(-a) for t, a in zip(true, wrong_action, strict=True)]  # the other head's logits are negated
    np.testing.assert_allclose(J_I(out, batch, mask_boundaries=False, head="inverse_discriminator"), other, rtol=1e-5)
    joint = [f + i - sp(-t) for f, i, t in zip(forward, inverse, true, strict=True)]  # one head has one true term
    np.testing.assert_allclose(J_f(out, batch, eta=1.0, mask_boundaries=False), joint, rtol=1e-5)


def test_two_heads_weigh_eta_and_stand_apart() -> None:
    method, _ = declare("dcpg+fi", eta=0.25, beta_f=2.0)
    (line,) = method.auxiliary_phase
    assert (line.terms["J_F"][0], line.terms["J_I"][0]) == (2.0, 0.5)
    assert line.couples
    assert "a" in method.keep
    assert list(method.networks["theta"]) == ["policy", "value", "discriminator", "inverse_discriminator"]


def test_dppg_and_ddcpg_are_one_addition_to_two_bases() -> None:
    for with_f, base in (("dppg", "ppg"), ("ddcpg", "dcpg")):
        a, b = declare(with_f)[0], declare(base)[0]
        assert {k: w for k, (w, _) in a.adams["policy"].items()} == {k: w for k, (w, _) in b.adams["policy"].items()}
        assert set(a.adams["auxiliary"]) - set(b.adams["auxiliary"]) == {"J_f"}
        assert set(a.networks["theta"]) - set(b.networks["theta"]) == {"discriminator"}
        assert a.keep == ("s", "a", "R")


# -- DAAC and IDAAC


def test_daac_advantage_objective_by_hand() -> None:
    """(A(s, a) - A)^2 on [feature, one-hot a], without 1/2, against the normalised advantages of J_pi."""
    algorithm = in_training("daac")
    tau = algorithm.collector.sample(0)
    policy, value = algorithm.method.policy_phase
    batch = whole(algorithm, policy, tau)
    network = algorithm.stepper.network
    with torch.no_grad():
        features = network.theta(batch.frames)
        inputs = torch.cat([features, torch.eye(ACTIONS)[batch.actions]], 1)
        expected = (network.advantage(inputs)[:, 0] - batch.advantages) ** 2
    torch.testing.assert_close(J_A(Outputs(network, batch, 64), batch), expected)
    torch.testing.assert_close(
        batch.advantages, normalise(tau.advantages_raw, tau.valid).flatten()[batch.rows], rtol=0, atol=0
    )
    assert (policy.epochs, value.epochs) == (1, 9)


def pairs(tau: Rollout, rows: torch.Tensor, key: int = 0) -> tuple[Batch, torch.Tensor]:
    """A minibatch with its pairs, and the rows of the others, found by their frames, which are all different."""
    batch = draw_pairs(tau.minibatch(rows), tau, generator(key, "pairs"), ACTIONS)
    flat = {frame.numpy().tobytes(): i for i, frame in enumerate(tau.frames[:T].flatten(0, 1))}
    return batch, torch.tensor([flat[frame.numpy().tobytes()] for frame in batch.other_frames])


def test_pairs_stay_inside_a_group_of_environments() -> None:
    method, _ = declare("idaac")
    tau = rollout_of(method, network_of(method), dead=True)
    for envs in (range(2), range(2, 4)):
        part, met = tau.part(envs), set[int]()
        rows = part.order(generator(0, "o"))
        assert set((rows % N).tolist()) == set(envs)
        for key in range(50):
            _, others = pairs(part, rows, key)
            assert set((others % N).tolist()) <= set(envs)
            met |= set((others % N).tolist())
        assert met == set(envs)
    assert tau.part(range(N)) is tau


def test_pairs_come_from_one_level_with_the_labels_of_those_states() -> None:
    method, _ = declare("idaac")
    tau = rollout_of(method, network_of(method), dead=True)
    levels, counts = tau.levels.flatten(), tau.step_counts.flatten()
    rows = tau.order(generator(0, "o"))
    assert len(levels[rows].unique()) == 2
    seen: dict[int, set[int]] = {}
    for key in range(200):
        batch, others = pairs(tau, rows, key)
        assert torch.equal(levels[others], levels[rows])
        assert torch.equal(batch.other_is_earlier, (counts[others] < counts[rows]).float())
        assert tau.valid.flatten()[others].all()  # a dead step is nobody's partner
        for row, other in zip(rows.tolist(), others.tolist(), strict=True):
            seen.setdefault(row, set()).add(other)
    for row in rows.tolist():  # every state of the level is drawn, the state itself included
        assert seen[row] == {r for r in rows.tolist() if levels[r] == levels[row]}
    again, _ = pairs(tau, rows, 7)
    assert torch.equal(again.other_frames, pairs(tau, rows, 7)[0].other_frames)


def test_pairs_are_uniform_over_the_levels_states() -> None:
    method, _ = declare("idaac")
    tau = rollout_of(method, network_of(method))
    rows = torch.arange(T * N)
    hits = torch.zeros(T * N, T * N)
    for key in range(400):
        _, others = pairs(tau, rows, key)
        hits[rows, others] += 1
    same = tau.levels.flatten()[:, None] == tau.levels.flatten()
    expected = 400 * same / same.sum(1, keepdim=True)
    assert (hits[~same] == 0).all()
    assert ((hits - expected).abs()[same] < 6 * expected[same].sqrt()).all()


def test_step_counts_are_those_of_the_states_across_rollouts() -> None:
    counter = EpisodeCounter(2)
    ones = torch.ones(3, 2)

    def tau(dones: list[list[int]], valid: torch.Tensor | None = None) -> Any:
        live = ones.bool() if valid is None else valid
        ended = torch.tensor(dones, dtype=torch.bool)
        return SimpleNamespace(raw_rewards=ones, dones=ended, valid=live, levels=ones.long())

    assert counter.count(tau([[0, 0], [0, 1], [0, 0]])).tolist() == [[0, 0], [1, 1], [2, 0]]
    assert counter.count(tau([[0, 0], [1, 0], [0, 0]])).tolist() == [[3, 1], [4, 2], [0, 3]]
    dead = torch.tensor([[True, False], [True, True], [True, True]])
    assert counter.count(tau([[0, 0], [0, 0], [0, 0]], dead)).tolist() == [[1, 4], [2, 4], [3, 5]]


def test_step_counts_and_levels_on_procgen_are_procgens_own(tmp_path: Path) -> None:
    """A run's tau: a count of 0 exactly where the frame is the level's first, with the level Procgen tells."""
    from dcpg.envs.procgen import Procgen
    from dcpg.storage.rundir import RunDirectory
    from dcpg.training.trainer import Trainer

    config = resolve("idaac", "starpilot", preset="tiny", steps=1280, settings={"levels.count": 5})
    trainer = Trainer(config, RunDirectory(tmp_path / "run"))
    taus = [trainer.collector.sample(r) for r in range(10)]
    fresh = [Procgen(1, "starpilot", seed=0, start=level, count=1, frame_size=32) for level in range(5)]
    firsts = [env.observe()[0][0] for env in fresh]
    begun = 0
    for tau in taus:
        for t, n in (tau.step_counts == 0).nonzero().tolist():
            assert np.array_equal(tau.frames[t, n].numpy(), firsts[int(tau.levels[t, n])])
            begun += 1
        assert torch.equal(tau.step_counts[1:], torch.where(tau.dones[:-1], 0, tau.step_counts[:-1] + 1))
    for before, after in itertools.pairwise(taus):
        assert torch.equal(after.step_counts[0], torch.where(before.dones[-1], 0, before.step_counts[-1] + 1))
    assert begun > 8


def test_the_classifiers_terms_by_hand() -> None:
    algorithm = in_training("idaac")
    tau = algorithm.collector.sample(0)
    policy, _ = algorithm.method.policy_phase
    batch = whole(algorithm, policy, tau)
    network = algorithm.stepper.network
    with torch.no_grad():
        both = torch.cat([network.theta(batch.frames), network.theta(batch.other_frames)], 1)
        p = torch.softmax(network.order(both), 1)[:, 0].double().numpy()
    y = batch.other_is_earlier.numpy()
    assert 0 < y.mean() < 1
    out = Outputs(network, batch, 64)
    np.testing.assert_allclose(J_D(out, batch).detach(), -(y * np.log(p) + (1 - y) * np.log(1 - p)), rtol=1e-5)
    np.testing.assert_allclose(J_order(out, batch).detach(), -0.5 * (np.log(p) + np.log(1 - p)), rtol=1e-5)


def test_the_classifier_learns_on_its_own_adam_and_leaves_the_policy_alone() -> None:
    algorithm = in_training("idaac")
    tau = algorithm.collector.sample(0)
    policy, _ = algorithm.method.policy_phase
    batch = whole(algorithm, policy, tau)
    before = {k: v.clone() for k, v in algorithm.stepper.network.state_dict().items()}
    algorithm.stepper.step("order", [batch])
    moved = {
        k.split(".")[0] for k, v in algorithm.stepper.network.state_dict().items() if not torch.equal(v, before[k])
    }
    assert moved == {"order"}
    held = algorithm.stepper.network.order.weight.clone()
    algorithm.stepper.step(policy.name, [batch])
    assert torch.equal(algorithm.stepper.network.order.weight, held)
    assert {p.shape for p in algorithm.stepper.adams["order"].state} == {(2, 32), (2,)}  # moments for nothing else
    algorithm.stepper.adams["order"].param_groups[0]["lr"] = 0.1
    first = J_D(Outputs(algorithm.stepper.network, batch, 64), batch).mean().item()
    for _ in range(200):
        algorithm.stepper.step("order", [batch])
    last = J_D(Outputs(algorithm.stepper.network, batch, 64), batch).mean().item()
    assert last < 0.3 < first  # it learns to tell these states' order


def test_the_encoder_learns_against_the_classifier_through_both_states() -> None:
    algorithm = in_training("idaac")
    tau = algorithm.collector.sample(0)
    policy, _ = algorithm.method.policy_phase
    batch = whole(algorithm, policy, tau)
    for _ in range(100):
        algorithm.stepper.step("order", [batch])
    one, two = ((f.float() / 255).requires_grad_() for f in (batch.frames, batch.other_frames))
    J_order(
        Outputs(algorithm.stepper.network, replace(batch, frames=one, other_frames=two), 64), batch
    ).sum().backward()
    assert one.grad.abs().max() > 0
    assert two.grad.abs().max() > 0
    told = J_order(Outputs(algorithm.stepper.network, batch, 64), batch).mean().item()
    rest = {name: (0.0, term) for name, (_, term) in policy.terms.items() if name != "J_order"}
    algorithm.stepper.terms["policy"] = {"J_order": (1.0, J_order), **rest}
    algorithm.stepper.adams["policy"].param_groups[0]["lr"] = 5e-3
    for _ in range(60):
        algorithm.stepper.step("policy", [batch])
    assert (
        math.log(2) <= J_order(Outputs(algorithm.stepper.network, batch, 64), batch).mean().item() < told
    )  # towards 1/2


# -- combinations

QUICK = {"evaluation.every": 1000, "evaluation.episodes": 2, "evaluation.max_steps": 20, **SMALL}


def weights(run: Any) -> bytes:
    newest = max(p for p in (run.directory / "checkpoints").iterdir() if p.name[0].isdigit())
    return (newest / "weights.safetensors").read_bytes()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "more"), [("ucb-drac", {"augment": "ucb"}), ("plr", {"levels.sampler": "prioritised"})]
)
def test_a_method_that_is_ppo_with_a_setting_equals_it_to_the_last_byte(
    name: str, more: dict[str, str], tmp_path: Path
) -> None:
    # few levels and a bold bandit, so that levels are replayed and arms change
    quick = QUICK | {"levels.count": 8} | ({"drac.c": 2.0} if name == "ucb-drac" else {})
    common = {"game": "starpilot", "preset": "tiny", "steps": 128 * 10, "seed": 4}
    a = dcpg.train(name, **common, settings=quick, out=tmp_path / "a")
    b = dcpg.train("ppo", **common, settings=quick | more, out=tmp_path / "b")
    plain = dcpg.train("ppo", **common, settings=QUICK | {"levels.count": 8}, out=tmp_path / "c")
    assert weights(a) == weights(b) != weights(plain)
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    rows = read_rows(tmp_path / "a/metrics.jsonl")
    if name == "plr":
        assert rows[-1]["levels_scored"] == 8
    else:
        assert len({row["augmentation"] for row in rows}) > 3


@pytest.mark.parametrize("name", ["ddcpg", "idaac", "separate-dcpg"])
def test_any_method_takes_both(name: str, tmp_path: Path) -> None:
    both = QUICK | {"augment": "ucb", "levels.sampler": "prioritised", "levels.count": 6}
    run = dcpg.train(name, game="starpilot", preset="tiny", steps=128 * 4, settings=both, out=tmp_path / "run")
    rows = read_rows(run.directory / "metrics.jsonl")
    assert all(row["policy.G_pi"] > 0 and row["levels_scored"] == 6 for row in rows)
    config = json.loads((run.directory / "config.json").read_text())
    assert (config["augment"], config["levels"]["sampler"]) == ("ucb", "prioritised")


def test_a_defining_setting_cannot_be_changed_under_the_methods_name() -> None:
    with pytest.raises(BadInput, match="ucb-drac is defined by augment=ucb; got 'crop'"):
        resolve("ucb-drac", "maze", settings={"augment": "crop"})
    assert resolve("ucb-drac", "maze", settings={"drac.c": 0.5}).drac.c == 0.5


def test_what_an_environment_of_ones_own_must_have(tmp_path: Path) -> None:
    from tests.training.test_learning import Signpost, make

    def without_levels(num_envs: int, seed: int) -> Any:
        import gymnasium

        class Anonymous(Signpost):
            def reset(self, **more: Any) -> Any:
                return super().reset(**more)[0], {}

            def step(self, action: int) -> Any:
                return *super().step(action)[:4], {}

        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        return gymnasium.vector.SyncVectorEnv([lambda: Anonymous(0, 20, 1)] * num_envs, autoreset_mode=mode)

    tiny = {"preset": "tiny", "steps": 128, "settings": QUICK}
    with pytest.raises(BadInput, match=r"idaac must know the level of each state"):
        dcpg.train("idaac", env=without_levels, out=tmp_path / "a", **tiny)
    with pytest.raises(BadInput, match=r"augment=ucb needs square colour images.*\(16, 16, 1\)"):
        dcpg.train("ucb-drac", env=without_levels, out=tmp_path / "b", **tiny)
    with pytest.raises(BadInput, match=r"levels.sampler=prioritised sets levels, which only Procgen"):
        dcpg.train("plr", env=make, out=tmp_path / "c", **tiny)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("ppo", {"drac.c": 0.2}, "drac.c has no effect while augment=none; it needs augment=ucb"),
        ("ppo", {"drac.window": 3, "augment": "crop"}, "drac.window has no effect while augment=crop"),
        ("ucb-drac", {"levels.rho": 0.2}, "levels.rho has no effect while levels.sampler=uniform"),
    ],
)
def test_a_setting_without_effect_is_refused(method: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        resolve(method, "maze", settings=settings)
    assert resolve("ppo", "maze", settings={"drac.alpha_r": 0.5, "augment": "crop"}).drac.alpha_r == 0.5


def test_augmentation_needs_a_line_with_J_pi() -> None:
    from dcpg.methods.drac import DrAC, with_drac

    method, _ = declare("ppo")
    (line,) = method.policy_phase
    renamed = replace(line, terms={"J": line.terms["J_pi"]})
    with pytest.raises(BadInput, match="needs a line with the term J_pi"):
        with_drac(replace(method, policy_phase=(renamed,)), DrAC(), "crop")


def test_the_bandit_and_the_scores_look_at_the_value_of_the_advantages() -> None:
    method, _ = declare("separate-dcpg", {"augment": "ucb"})
    tau = rollout_of(method, network_of(method))
    bandit = UCB(method.advantages, c=0.1, window=10)
    bandit.observe(tau)
    bandit.observe(tau)
    assert bandit.rewards[0] == [pytest.approx(float(tau.returns["value"].mean()), rel=1e-5)]
    assert abs(float(tau.returns["value"].mean() - tau.returns["delayed_value"].mean())) > 1e-3

"""Each objective by hand, where its gradient goes, and the negatives."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpg.core.batch import Batch
from dcpg.core.draws import draw_negatives
from dcpg.core.networks import Outputs
from dcpg.core.objectives import C_V, J_V, C_pi, H, J_aux, J_f, J_pi, J_V_clipped
from dcpg.methods import METHODS
from dcpg.seeding import generator
from tests.small import Sum, bare, declare, in_training, network_of, rollout_of, step, whole


class Fixed:
    """Outputs given by hand."""

    def __init__(self, log_policy: list[list[float]] | None = None, **values: list[float]) -> None:
        self.log_policy = torch.tensor(log_policy or [[0.0]])
        self.values = values

    def value(self, head: str) -> torch.Tensor:
        return torch.tensor(self.values[head])


def given_batch(b: int, **fields: object) -> Batch:
    return Batch(**({"frames": torch.zeros(b, 1), "valid": torch.ones(b), "returns": {}} | fields))


def test_J_pi_by_hand() -> None:
    log = math.log
    out = Fixed([[log(0.5), log(0.5)], [log(0.9), log(0.1)], [log(0.9), log(0.1)], [log(0.5), log(0.5)]])
    batch = given_batch(
        4,
        actions=torch.tensor([0, 0, 0, 0]),
        log_probs=torch.tensor([log(0.5), log(0.5), log(0.5), log(0.9)]),
        advantages=torch.tensor([2.0, 2.0, -2.0, -2.0]),
    )
    # ratios 1, 1.8, 1.8, 0.5556: kept, clipped at 1.2, not clipped (the pessimistic side), clipped at 0.8
    np.testing.assert_allclose(J_pi(out, batch, clip=0.2), [-2.0, -2.4, 3.6, 1.6], rtol=1e-6)


def test_entropy_and_kl_by_hand() -> None:
    p, q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    out = Fixed([[math.log(x) for x in q]])
    batch = given_batch(1, old_log_policy=torch.tensor([[math.log(x) for x in p]]))
    np.testing.assert_allclose(H(out, batch), [1.5 * math.log(2)], rtol=1e-6)
    # sum p log(p/q) = 0.5 log 2 + 0 - 0.25 log 2
    np.testing.assert_allclose(C_pi(out, batch), [0.25 * math.log(2)], rtol=1e-6)


def test_value_terms_by_hand() -> None:
    out = Fixed(value=[3.0, 1.1, 2.0], aux_value=[0.0, 0.0, 1.0])
    batch = given_batch(
        3, returns={"value": torch.tensor([1.0, 2.0, 2.0])}, old_values={"value": torch.tensor([1.0, 1.0, 0.0])}
    )
    np.testing.assert_allclose(J_V(out, batch), [2.0, 0.405, 0.0], rtol=1e-6)
    np.testing.assert_allclose(C_V(out, batch), [2.0, 0.005, 2.0], rtol=1e-5)
    np.testing.assert_allclose(J_aux(out, batch), [0.5, 2.0, 0.5], rtol=1e-6)
    # clipped values 1.2, 1.1, 0.2: the larger of both errors counts
    np.testing.assert_allclose(J_V_clipped(out, batch, clip=0.2), [2.0, 0.405, 0.5 * 1.8**2], rtol=1e-6)


def test_J_f_by_hand_and_masked() -> None:
    import dcpg.core.objectives as module

    class Out:
        network = torch.nn.Module()

        def all_features(self, encoder: str) -> torch.Tensor:
            return torch.tensor([[1.0], [2.0], [3.0]])

        def features(self, encoder: str) -> torch.Tensor:
            return self.all_features(encoder)[:2]

    Out.network.discriminator = Sum()
    batch = given_batch(
        2,
        actions=torch.tensor([0, 1]),
        next_rows=torch.tensor([1, 2]),
        negative_next=torch.tensor([1, 0]),
        negative_actions=torch.tensor([4, 0]),
        crosses=torch.tensor([0.0, 1.0]),
    )
    sp = lambda x: math.log1p(math.exp(x))
    expected = [
        sp(-(1 + 0 + 200) / 100) + sp((1 + 0 + 300) / 100) + 0.5 * sp((1 + 40 + 200) / 100),
        sp(-(2 + 10 + 300) / 100) + sp((2 + 10 + 200) / 100) + 0.5 * sp((2 + 0 + 300) / 100),
    ]
    original = module.Discriminator
    module.Discriminator = Sum  # type: ignore[misc, assignment]
    try:
        np.testing.assert_allclose(J_f(Out(), batch, eta=0.5, mask_boundaries=False), expected, rtol=1e-5)
        masked = J_f(Out(), batch, eta=0.5, mask_boundaries=True)
        np.testing.assert_allclose(masked, [expected[0], 0.0], rtol=1e-5)
    finally:
        module.Discriminator = original  # type: ignore[misc]


# name of a term -> the parameters its gradient must reach, for each method
REACHES = {
    "ppo": {"J_pi": {"theta", "policy"}, "J_V": {"theta", "value"}, "H": {"theta", "policy"}},
    "ppg": {
        "J_pi": {"theta", "policy"},
        "H": {"theta", "policy"},
        "J_V": {"phi", "value"},
        "J_aux": {"theta", "aux_value"},
        "C_pi": {"theta", "policy"},
    },
    "dcpg": {
        "J_pi": {"theta", "policy"},
        "H": {"theta", "policy"},
        "C_V": {"theta", "value"},
        "J_V": {"theta", "value"},
        "C_pi": {"theta", "policy"},
    },
}
REACHES["ucb-drac"] = REACHES["ppo"] | {"G_pi": {"theta", "policy"}, "G_V": {"theta", "value"}}
REACHES["plr"] = REACHES["ppo"]
REACHES["daac"] = {
    "J_pi": {"theta", "policy"},
    "J_A": {"theta", "advantage"},
    "H": {"theta", "policy"},
    "J_V": {"phi", "value"},
}
REACHES["idaac"] = REACHES["daac"] | {"J_D": {"order"}, "J_order": {"theta"}}
REACHES["ppg+dr"] = REACHES["ppg"]
REACHES["ppg+ar"] = REACHES["ppg"] | {"P_V": {"phi", "value"}}
REACHES["dppg"] = REACHES["ppg"] | {"J_f": {"theta", "discriminator"}}
REACHES["separate-dcpg"] = {
    "J_pi": {"theta", "policy"},
    "H": {"theta", "policy"},
    "C_V": {"theta", "delayed_value"},
    "J_V_theta": {"theta", "delayed_value"},
    "J_V_phi": {"phi", "value"},
    "C_pi": {"theta", "policy"},
}
REACHES["dcpg+f"] = REACHES["dcpg"] | {"J_F": {"theta", "discriminator"}}
REACHES["dcpg+i"] = REACHES["dcpg"] | {"J_I": {"theta", "discriminator"}}
REACHES["dcpg+fi"] = REACHES["dcpg"] | {"J_F": {"theta", "discriminator"}, "J_I": {"theta", "inverse_discriminator"}}
REACHES["ddcpg"] = REACHES["dcpg"] | {"J_f": {"theta", "discriminator"}}


def minibatches(name: str) -> list[tuple[object, object, Batch]]:
    """(algorithm, line, one minibatch) for every line, after the network has moved a little."""
    algorithm = in_training(name, N_pi=1)
    tau = algorithm.collector.sample(0)
    algorithm.B.add(0, tau)
    algorithm.remember()
    with torch.no_grad():
        for p in algorithm.stepper.network.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator(0, "move")))
    found = []
    for line in algorithm.method.lines:
        found.append((algorithm, line, whole(algorithm, line, tau)))
    return found


@pytest.mark.parametrize("name", REACHES)
def test_each_term_reaches_exactly_its_parameters(name: str) -> None:
    seen = set()
    for algorithm, line, batch in minibatches(name):
        for term_name, (_, term) in [item for terms in line.adams.values() for item in terms.items()]:
            algorithm.stepper.network.zero_grad()
            term(Outputs(algorithm.stepper.network, batch, 64), batch).sum().backward()
            reached = {
                k.split(".")[0]
                for k, p in algorithm.stepper.network.named_parameters()
                if p.grad is not None and p.grad.abs().max() > 0
            }
            assert reached == REACHES[name][term_name], (line.name, term_name)
            seen.add(term_name)
    assert seen == set(REACHES[name])


@pytest.mark.parametrize("name", ["dcpg", "ddcpg", "ppg", "separate-dcpg"])
def test_regularisers_are_zero_with_zero_gradient_at_the_old_parameters(name: str) -> None:
    algorithm = in_training(name, N_pi=1)

    tau = algorithm.collector.sample(0)
    algorithm.B.add(0, tau)
    algorithm.remember()
    for line in algorithm.method.lines:
        data = tau if line in algorithm.method.policy_phase else algorithm.B
        batch = data.minibatch(data.order(generator(0, "o")))
        for term_name, (_, term) in line.terms.items():
            if term_name not in ("C_V", "C_pi"):
                continue
            algorithm.stepper.network.zero_grad()
            values = term(Outputs(algorithm.stepper.network, batch, 64), batch)
            values.sum().backward()
            assert values.abs().max() < 1e-6
            worst = max(float(p.grad.abs().max()) for p in algorithm.stepper.network.parameters() if p.grad is not None)
            assert worst < 1e-5, term_name


def test_J_f_reaches_the_encoder_through_s_the_next_s_and_the_wrong_next_s() -> None:
    ((algorithm, _, _), (_, line, batch)) = minibatches("ddcpg")
    term = line.terms["J_f"][1]
    weight = torch.zeros(len(batch))
    weight[0] = 1.0  # look at the first sample alone
    frames = batch.frames.float().requires_grad_()
    loose = dataclasses.replace(batch, frames=frames)
    (term(Outputs(algorithm.stepper.network, loose, 64), loose) * weight).sum().backward()
    touched = {int(i) for i in frames.grad.flatten(1).abs().sum(1).nonzero().squeeze(1)}
    own, following = 0, int(batch.next_rows[0])
    wrong = int(batch.next_rows[batch.negative_next[0]])
    assert touched == {own, following, wrong}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 14), min_size=2, max_size=40), st.integers(0, 2**31))
def test_negatives_are_never_the_truth(actions: list[int], seed: int) -> None:
    b = len(actions)
    batch = given_batch(b, actions=torch.tensor(actions))
    drawn = draw_negatives(batch, None, generator(seed, "n"), 15)
    assert (drawn.negative_next != torch.arange(b)).all()
    assert ((drawn.negative_next >= 0) & (drawn.negative_next < b)).all()
    wrong = drawn.negative_actions.tolist()
    assert all(w != a for w, a in zip(wrong, actions, strict=True))
    if len(set(actions)) > 1:  # wrong actions occur in the minibatch
        assert set(wrong) <= set(actions)
    else:
        assert all(0 <= w < 15 for w in wrong)


def test_negatives_follow_the_histogram_and_the_other_states_uniformly() -> None:
    actions = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    batch = given_batch(1000, actions=actions)
    counts, offsets = torch.zeros(3, 3), torch.zeros(1000)
    for seed in range(40):
        drawn = draw_negatives(batch, None, generator(seed, "h"), 15)
        for a in range(3):
            counts[a] += torch.bincount(drawn.negative_actions[actions == a], minlength=3)[:3]
        offsets += torch.bincount((drawn.negative_next - torch.arange(1000)) % 1000, minlength=1000)
    share = counts / counts.sum(1, keepdim=True)
    np.testing.assert_allclose(share, [[0, 0.75, 0.25], [6 / 7, 0, 1 / 7], [2 / 3, 1 / 3, 0]], atol=0.02)
    assert offsets[0] == 0
    assert offsets[1:].min() > 10
    assert offsets[1:].max() < 90  # 40 expected each


def test_one_action_alone_gives_uniform_wrong_actions() -> None:
    batch = given_batch(3000, actions=torch.full((3000,), 4))
    drawn = draw_negatives(batch, None, generator(0, "u"), 15)
    counts = torch.bincount(drawn.negative_actions, minlength=15)
    assert counts[4] == 0
    assert counts[[i for i in range(15) if i != 4]].min() > 150  # 214 expected


@pytest.mark.parametrize("name", METHODS)
def test_chunked_gradients_equal_the_undivided_minibatchs(name: str) -> None:
    method, config = declare(name, N_pi=1)
    gradients = []
    for chunk in (5, 1000):
        network = network_of(method)
        algorithm = bare(method, network, config, chunk=chunk)
        tau = rollout_of(method, network, dead=True)

        algorithm.B.add(0, tau)
        algorithm.remember()
        for line in method.lines:
            step(algorithm, line, whole(algorithm, line, tau))
        gradients.append((algorithm.stepper.sums, {k: p.detach().clone() for k, p in network.named_parameters()}))
    (sums, a), (whole_sums, b) = gradients
    for k in sums:
        np.testing.assert_allclose(sums[k].values, whole_sums[k].values, rtol=1e-4, atol=1e-6)
    for k in a:
        np.testing.assert_allclose(a[k], b[k], rtol=1e-3, atol=2e-5)

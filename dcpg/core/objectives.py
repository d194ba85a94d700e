"""The objectives of the paper: one equation, one function, one value per sample.

Each takes the networks' outputs for a batch and the batch itself, and returns [b]. Only the training loop averages
and weights them. All are written to be minimised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.networks import Discriminator, Outputs


def J_pi(out: Outputs, batch: Batch, clip: float) -> Tensor:
    """The clipped surrogate policy objective, negated.

    Equation: -min(r A, clip(r, 1-eps, 1+eps) A), r = pi(a|s) / pi_old(a|s)
    Source: paper, Section 2.2; Schulman et al. 2017
    """
    log_prob = out.log_policy.gather(1, batch.actions[:, None]).squeeze(1)
    ratio = torch.exp(log_prob - batch.log_probs)
    return -torch.minimum(ratio * batch.advantages, ratio.clamp(1 - clip, 1 + clip) * batch.advantages)


def H(out: Outputs, batch: Batch) -> Tensor:
    """The policy's entropy; its weight is negative, a bonus.

    Equation: -sum_a pi(a|s) log pi(a|s)
    Source: paper, Table 4 (entropy coefficient)
    """
    return -(out.log_policy.exp() * out.log_policy).sum(1)


def J_V(out: Outputs, batch: Batch, head: str = "value") -> Tensor:
    """The value objective.

    Equation: 1/2 (V(s) - R)^2
    Source: paper, Section 2.2
    """
    return 0.5 * (out.value(head) - batch.returns[head]).square()


def J_V_clipped(out: Outputs, batch: Batch, clip: float, head: str = "value") -> Tensor:
    """The value objective of PPO, clipped around the value recorded while acting.

    Equation: 1/2 max((V - R)^2, (V_old + clip(V - V_old, -eps, eps) - R)^2)
    Source: authors' code (the paper does not mention the clipping)
    """
    value, old, returns = out.value(head), batch.old_values[head], batch.returns[head]
    near = old + (value - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((value - returns).square(), (near - returns).square())


def J_aux(out: Outputs, batch: Batch) -> Tensor:
    """PPG's auxiliary value objective: the value targets distilled into the policy's encoder.

    Equation: 1/2 (V_theta(s) - R)^2
    Source: paper, Section 2.3; Cobbe et al. 2021
    """
    return 0.5 * (out.value("aux_value") - batch.returns["value"]).square()


def C_pi(out: Outputs, batch: Batch) -> Tensor:
    """The policy regulariser: keeps the policy unchanged in the auxiliary phase.

    Equation: KL(pi_old(.|s) || pi(.|s))
    Source: paper, Section 2.3
    """
    return (batch.old_log_policy.exp() * (batch.old_log_policy - out.log_policy)).sum(1)


def C_V(out: Outputs, batch: Batch, head: str = "value") -> Tensor:
    """The value regulariser: keeps the value unchanged in the policy phase.

    Equation: 1/2 (V(s) - V_old(s))^2
    Source: paper, Section 4.1
    """
    return 0.5 * (out.value(head) - batch.old_values[head]).square()


def P_V(out: Outputs, batch: Batch, head: str = "value") -> Tensor:
    """The activation penalty of PPG+AR: pulls the value towards zero.

    Equation: 1/2 V(s)^2
    Source: paper, Section 3.2; Amit et al. 2020
    """
    return 0.5 * out.value(head).square()


def J_A(out: Outputs, batch: Batch) -> Tensor:
    """DAAC's advantage objective: the policy's encoder learns the normalised advantages instead of the value.

    Equation: (A_theta(s,a) - A)^2
    Source: Raileanu and Fergus 2021; authors' code (no 1/2, and A as in J_pi)
    """
    head = out.network.get_submodule("advantage")
    features = out.features("theta")
    one_hot = F.one_hot(batch.actions, out.log_policy.shape[1]).to(features.dtype)
    predicted: Tensor = head(torch.cat([features, one_hot], dim=1))
    return (predicted.float().squeeze(1) - batch.advantages).square()


def J_D(out: Outputs, batch: Batch) -> Tensor:
    """The order classifier's objective: which of two states of a level is earlier, from features held fixed.

    Equation: -y log D(s, s2) - (1-y) log(1 - D(s, s2)), y = 1 if s2 is earlier in its episode than s
    Source: Raileanu and Fergus 2021 (IDAAC)
    """
    with torch.no_grad():  # not `out.features`, which is shared with terms that need its gradient
        pair = torch.cat([out.network.encode("theta", f, out.chunk) for f in (batch.frames, batch.other_frames)], dim=1)
    log_order = F.log_softmax(out.network.get_submodule("order")(pair).float(), dim=1)
    earlier = batch.other_is_earlier
    return -(earlier * log_order[:, 0] + (1 - earlier) * log_order[:, 1])


def J_order(out: Outputs, batch: Batch) -> Tensor:
    """IDAAC's adversarial objective: features that do not tell the order; the classifier is held fixed.

    Equation: -1/2 log D(s, s2) - 1/2 log(1 - D(s, s2))
    Source: Raileanu and Fergus 2021 (IDAAC)
    """
    head = out.network.get_submodule("order")
    fixed = {name: p.detach() for name, p in head.named_parameters()}
    pair = torch.cat([out.features("theta"), out.other.features("theta")], dim=1)
    logits: Tensor = torch.func.functional_call(head, fixed, pair)
    return -0.5 * F.log_softmax(logits.float(), dim=1).sum(1)


def G_pi(out: Outputs, batch: Batch) -> Tensor:
    """DrAC's policy regulariser: the same policy under an augmentation g; the clean policy is held fixed.

    Equation: -sum_a pi(a|s) log pi(a|g(s))
    Source: Raileanu et al. 2021 (their one-sample estimate has this expectation)
    """
    return -(out.log_policy.detach().exp() * out.augmented.log_policy).sum(1)


def G_V(out: Outputs, batch: Batch, head: str) -> Tensor:
    """DrAC's value regulariser: the same value under an augmentation g; the clean value is held fixed.

    Equation: 1/2 (V(g(s)) - V(s))^2
    Source: Raileanu et al. 2021
    """
    return 0.5 * (out.augmented.value(head) - out.value(head).detach()).square()


def J_f(out: Outputs, batch: Batch, eta: float, mask_boundaries: bool) -> Tensor:
    """The dynamics objective: one discriminator learns forward and inverse dynamics at once.

    Equation: -log f(s,a,s') - log(1 - f(s,a,wrong s')) - eta log(1 - f(s,wrong a,s'))
    Source: paper, Section 4.3
    """
    f = Transitions(out, batch, "discriminator", mask_boundaries)
    return f.true() + f.wrong_next() + eta * f.wrong_action()


def J_F(out: Outputs, batch: Batch, mask_boundaries: bool, head: str = "discriminator") -> Tensor:
    """The forward dynamics objective alone.

    Equation: -log f(s,a,s') - log(1 - f(s,a,wrong s'))
    Source: paper, Appendix F.2 (DCPG+F)
    """
    f = Transitions(out, batch, head, mask_boundaries)
    return f.true() + f.wrong_next()


def J_I(out: Outputs, batch: Batch, mask_boundaries: bool, head: str = "discriminator") -> Tensor:
    """The inverse dynamics objective alone.

    Equation: -log f(s,a,s') - log(1 - f(s,wrong a,s'))
    Source: paper, Appendix F.2 (DCPG+I)
    """
    f = Transitions(out, batch, head, mask_boundaries)
    return f.true() + f.wrong_action()


class Transitions:
    """A discriminator's three losses on the batch's true and wrong transitions, [b] each."""

    def __init__(self, out: Outputs, batch: Batch, head: str, mask_boundaries: bool) -> None:
        f = out.network.get_submodule(head)
        assert isinstance(f, Discriminator)
        self.f, self.batch, self.out = f, batch, out
        self.now = out.features("theta")
        # index_select: its backward adds in a fixed order, so that two runs agree to the last bit
        self.following = out.all_features("theta").index_select(0, batch.next_rows)
        self.weight: Tensor | float = 1 - batch.crosses if mask_boundaries else 1.0

    # -log sigmoid(x) = softplus(-x), -log(1 - sigmoid(x)) = softplus(x)

    def true(self) -> Tensor:
        """-log f(s, a, s')."""
        return self.weight * F.softplus(-self.f.logit(self.now, self.batch.actions, self.following))

    def wrong_next(self) -> Tensor:
        """-log(1 - f(s, a, wrong s'))."""
        wrong = (
            self.out.other.features("theta")
            if self.batch.other_frames.numel()
            else self.following.index_select(0, self.batch.negative_next)
        )
        return self.weight * F.softplus(self.f.logit(self.now, self.batch.actions, wrong))

    def wrong_action(self) -> Tensor:
        """-log(1 - f(s, wrong a, s'))."""
        return self.weight * F.softplus(self.f.logit(self.now, self.batch.negative_actions, self.following))

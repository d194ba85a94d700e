"""The objectives of the paper: one equation, one function, one value per sample.

Each takes what the networks say about a batch and the batch itself, and returns [b]. The training loop alone
averages and weighs. All are written to be minimised.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpg.batch import Batch
from dcpg.networks import Discriminator, Outputs


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
    """The policy regulariser: keeps the policy still in the auxiliary phase.

    Equation: KL(pi_old(.|s) || pi(.|s))
    Source: paper, Section 2.3
    """
    return (batch.old_log_policy.exp() * (batch.old_log_policy - out.log_policy)).sum(1)


def C_V(out: Outputs, batch: Batch, head: str = "value") -> Tensor:
    """The value regulariser: keeps the value still in the policy phase.

    Equation: 1/2 (V(s) - V_old(s))^2
    Source: paper, Section 4.1
    """
    return 0.5 * (out.value(head) - batch.old_values[head]).square()


def J_f(out: Outputs, batch: Batch, eta: float, mask_boundaries: bool) -> Tensor:
    """The dynamics objective: one discriminator learns forward and inverse dynamics at once.

    Equation: -log f(s,a,s') - log(1 - f(s,a,wrong s')) - eta log(1 - f(s,wrong a,s'))
    Source: paper, Section 4.3
    """
    f = out.network.get_submodule("discriminator")
    assert isinstance(f, Discriminator)
    now = out.features("theta")
    # index_select: its backward adds in a fixed order, so that two runs agree to the last bit
    following = out.all_features("theta").index_select(0, batch.next_rows)
    wrong = following.index_select(0, batch.negative_next)
    softplus = F.softplus  # -log sigmoid(x) = softplus(-x), -log(1 - sigmoid(x)) = softplus(x)
    loss = (
        softplus(-f.logit(now, batch.actions, following))
        + softplus(f.logit(now, batch.actions, wrong))
        + eta * softplus(f.logit(now, batch.negative_actions, following))
    )
    return loss * (1 - batch.crosses) if mask_boundaries else loss


def draw_negatives(batch: Batch, generator: torch.Generator, actions: int) -> Batch:
    """Wrong next states and wrong actions, drawn within the minibatch as the authors' code does.

    A wrong next state is that of any other sample, uniformly. A wrong action follows the minibatch's histogram of
    actions without the true one; if no other action occurs, it is uniform over the others.
    """
    b, device = len(batch), batch.actions.device
    offset = torch.randint(1, b, (b,), generator=generator) if b > 1 else torch.zeros(1, dtype=torch.int64)
    negative_next = (torch.arange(b) + offset) % b
    uniform = torch.rand(b, generator=generator, dtype=torch.float64)

    true = batch.actions.cpu()
    counts = torch.bincount(true[batch.valid.cpu() > 0], minlength=actions)
    weights = counts.expand(b, actions).clone()
    weights[torch.arange(b), true] = 0
    alone = weights.sum(1) == 0
    weights[alone] = 1
    weights[torch.arange(b), true] = 0
    cumulative = weights.cumsum(1)
    rank = (uniform * cumulative[:, -1]).long()  # a whole number in [0, total)
    negative_actions = (cumulative <= rank[:, None]).sum(1)
    return replace(batch, negative_next=negative_next.to(device), negative_actions=negative_actions.to(device))

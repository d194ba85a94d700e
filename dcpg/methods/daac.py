"""DAAC and IDAAC (Raileanu and Fergus 2021): the policy's encoder learns advantages, another one the value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from dcpg.core.draws import draw_pairs
from dcpg.core.method import Common, Method, Optimise, Target, Tau
from dcpg.core.networks import advantage_head, order_head, policy_head, value_head
from dcpg.core.objectives import J_A, J_D, H, J_order, J_pi, J_V_clipped
from dcpg.methods.table import method
from dcpg.settings import setting


@dataclass(frozen=True)
class DAAC(Common):
    """Settings of DAAC: epochs of the policy and of the value, and the weight of the advantage objective."""

    E_pi: int = setting(1, "paper, Appendix D", low=1)
    E_V: int = setting(9, "paper, Appendix D", low=1)
    alpha_a: float = setting(0.25, "paper, Appendix D", low=0)


@dataclass(frozen=True)
class IDAAC(DAAC):
    """Settings of IDAAC: those of DAAC, and the weight of the adversarial objective."""

    alpha_i: float = setting(0.001, "paper, Appendix D", low=0)


@method("daac", DAAC)
def daac(h: DAAC) -> Method:
    """Separate encoders; the policy's also learns advantages, the value's has nine epochs on each rollout."""
    return Method(
        networks={"theta": {"policy": policy_head, "advantage": advantage_head}, "phi": {"value": value_head}},
        targets={"value": Target(h.gamma, h.lam)},
        advantages="value",
        policy_phase=(
            Optimise(
                "policy",
                Tau(h.minibatches),
                {"J_pi": (1.0, partial(J_pi, clip=h.clip)), "J_A": (h.alpha_a, J_A), "H": (-h.entropy, H)},
                epochs=h.E_pi,
            ),
            Optimise("value", Tau(h.minibatches), {"J_V": (1.0, partial(J_V_clipped, clip=h.clip))}, epochs=h.E_V),
        ),
    )


@method("idaac", IDAAC)
def idaac(h: IDAAC) -> Method:
    """DAAC whose policy features must not tell which of two states of a level comes earlier."""
    base = daac(h)
    policy, value = base.policy_phase
    adversarial = replace(
        policy,
        terms={**policy.terms, "J_order": (h.alpha_i, J_order)},
        draw=draw_pairs,
        before={"order": {"J_D": (1.0, J_D)}},
    )
    return replace(
        base,
        networks={**base.networks, "theta": {**base.networks["theta"], "order": order_head}},
        policy_phase=(adversarial, value),
        needs_levels=True,
    )

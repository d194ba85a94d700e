"""Phasic Policy Gradient (Cobbe et al. 2021; the paper's Algorithm 2), regularised and dynamics-aware forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from dcpg.core.method import B, Method, Optimise, Phasic, Target, Tau
from dcpg.core.networks import policy_head, value_head
from dcpg.core.objectives import J_V, P_V, C_pi, H, J_aux, J_pi
from dcpg.methods.dynamics import Joint, with_joint_dynamics
from dcpg.methods.table import method
from dcpg.settings import setting


@dataclass(frozen=True)
class DiscountRegularised(Phasic):
    """Settings of PPG+DR: those of PPG, with a smaller discount, of the value or also of the advantages."""

    gamma: float = setting(0.995, "paper, Section 3.2 (gamma')", low=0, high=1)
    advantage_gamma: float | None = setting(
        None, "authors' code: one gamma for targets and advantages (0.999: gamma' for the value alone)", low=0, high=1
    )


@dataclass(frozen=True)
class ActivationRegularised(Phasic):
    """Settings of PPG+AR: those of PPG, and the weight of the activation penalty."""

    alpha: float = setting(0.05, "paper, Section 3.2", low=0)


@dataclass(frozen=True)
class DPPG(Joint, Phasic):
    """Settings of DPPG: those of PPG and of the joint discriminator."""


@method("ppg", Phasic)
def ppg(h: Phasic) -> Method:
    """Separate policy and value encoders; the value is distilled into the policy's encoder now and then."""
    return Method(
        networks={"theta": {"policy": policy_head, "aux_value": value_head}, "phi": {"value": value_head}},
        targets={"value": Target(h.gamma, h.lam)},
        advantages="value",
        policy_phase=(
            Optimise(
                "policy",
                Tau(h.minibatches),
                {"J_pi": (1.0, partial(J_pi, clip=h.clip)), "J_V": (1.0, J_V), "H": (-h.entropy, H)},
                epochs=h.E_pi,
            ),
        ),
        auxiliary_phase=(
            Optimise(
                "auxiliary",
                B(h.segments),
                {"J_V": (1.0, J_V), "J_aux": (1.0, J_aux), "C_pi": (h.beta_pi, C_pi)},
                epochs=h.E_aux,
            ),
        ),
        N_pi=h.schedule(),
        keep=("s", "R"),
    )


@method("ppg+dr", DiscountRegularised)
def ppg_dr(h: DiscountRegularised) -> Method:
    """PPG with a smaller discount, a regulariser of the value."""
    return replace(ppg(h), advantage_gamma=h.advantage_gamma)


@method("ppg+ar", ActivationRegularised)
def ppg_ar(h: ActivationRegularised) -> Method:
    """PPG whose value is pulled towards zero wherever it learns."""
    base = ppg(h)
    policy, auxiliary = (
        tuple(replace(line, terms={**line.terms, "P_V": (h.alpha, P_V)}) for line in lines)
        for lines in (base.policy_phase, base.auxiliary_phase)
    )
    return replace(base, policy_phase=policy, auxiliary_phase=auxiliary)


@method("dppg", DPPG)
def dppg(h: DPPG) -> Method:
    """PPG, and DDCPG's discriminator on the policy's encoder in the auxiliary phase."""
    return with_joint_dynamics(ppg(h), h)

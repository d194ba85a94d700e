"""Delayed-Critic Policy Gradient, its dynamics-aware form (the paper's Algorithm 1) and their ablations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dcpg.core.draws import draw_wrong_actions_from_B
from dcpg.core.method import B, Method, Optimise, Phasic, Target, Tau, Terms
from dcpg.core.networks import discriminator, policy_head, value_head
from dcpg.core.objectives import C_V, J_F, J_I, J_V, C_pi, H, J_pi
from dcpg.methods.dynamics import Dynamics, Joint, with_dynamics, with_joint_dynamics
from dcpg.methods.table import method
from dcpg.settings import setting


@dataclass(frozen=True)
class DCPG(Phasic):
    """Settings of DCPG: those of a phasic method, and the weight of the value regulariser."""

    beta_V: float = setting(1.0, "paper, Appendix D", low=0)


@dataclass(frozen=True)
class SeparateDCPG(DCPG):
    """Settings of Separate DCPG: those of DCPG, and how many steps a minibatch takes."""

    two_steps: bool = setting(False, "ours: one step on the sum (true: one for theta, one for phi, as Algorithm 3)")


@dataclass(frozen=True)
class OneSided(Dynamics, DCPG):
    """Settings of DCPG+F and DCPG+I."""


@dataclass(frozen=True)
class TwoHeaded(Dynamics, DCPG):
    """Settings of DCPG+FI: those of DCPG+F and DCPG+I, and the weight of the inverse dynamics."""

    eta: float = setting(1.0, "paper, Appendix F.2 (chosen from 0.5 and 1)", low=0)


@dataclass(frozen=True)
class DDCPG(Joint, DCPG):
    """Settings of DDCPG: those of DCPG and of the joint discriminator."""


@method("dcpg", DCPG)
def dcpg(h: DCPG) -> Method:
    """One shared encoder; the value learns only every N_pi rollouts, from all of them."""
    return Method(
        networks={"theta": {"policy": policy_head, "value": value_head}},
        targets={"value": Target(h.gamma, h.lam)},
        advantages="value",
        policy_phase=(
            Optimise(
                "policy",
                Tau(h.minibatches),
                {"J_pi": (1.0, partial(J_pi, clip=h.clip)), "C_V": (h.beta_V, C_V), "H": (-h.entropy, H)},
                epochs=h.E_pi,
            ),
        ),
        auxiliary_phase=(
            Optimise("auxiliary", B(h.segments), {"J_V": (1.0, J_V), "C_pi": (h.beta_pi, C_pi)}, epochs=h.E_aux),
        ),
        N_pi=h.schedule(),
        keep=("s", "R"),
    )


@method("separate-dcpg", SeparateDCPG)
def separate_dcpg(h: DCPG) -> Method:
    """DCPG whose delayed value only shapes the encoder; another value, with its own encoder, gives the advantages."""
    target = Target(h.gamma, h.lam)
    phi: Terms = {"J_V_phi": (1.0, partial(J_V, head="value"))}
    two_steps = isinstance(h, SeparateDCPG) and h.two_steps  # a method of your own may have DCPG's settings

    def lines(name: str, other: str, data: Tau | B, theta: Terms, epochs: int) -> tuple[Optimise, ...]:
        if not two_steps:
            return (Optimise(name, data, {**theta, **phi}, epochs),)
        return Optimise(name, data, theta, epochs), Optimise(other, data, phi, epochs)

    return Method(
        networks={
            "theta": {"policy": policy_head, "delayed_value": value_head},
            "phi": {"value": value_head},
        },
        targets={"delayed_value": target, "value": target},
        advantages="value",
        policy_phase=lines(
            "policy",
            "value",
            Tau(h.minibatches),
            {
                "J_pi": (1.0, partial(J_pi, clip=h.clip)),
                "C_V": (h.beta_V, partial(C_V, head="delayed_value")),
                "H": (-h.entropy, H),
            },
            h.E_pi,
        ),
        auxiliary_phase=lines(
            "auxiliary",
            "auxiliary_value",
            B(h.segments),
            {"J_V_theta": (1.0, partial(J_V, head="delayed_value")), "C_pi": (h.beta_pi, C_pi)},
            h.E_aux,
        ),
        N_pi=h.schedule(),
        keep=("s", "R_theta", "R_phi"),
    )


@method("dcpg+f", OneSided)
def dcpg_f(h: OneSided) -> Method:
    """DCPG, and a discriminator f(s, a, s') that learns forward dynamics alone."""
    term = partial(J_F, mask_boundaries=h.mask_boundaries)
    return with_dynamics(dcpg(h), h, {"discriminator": discriminator}, {"J_F": (h.beta_f, term)})


@method("dcpg+i", OneSided)
def dcpg_i(h: OneSided) -> Method:
    """DCPG, and a discriminator f(s, a, s') that learns inverse dynamics alone."""
    term = partial(J_I, mask_boundaries=h.mask_boundaries)
    terms: Terms = {"J_I": (h.beta_f, term)}
    return with_dynamics(dcpg(h), h, {"discriminator": discriminator}, terms, draw_wrong_actions_from_B)


@method("dcpg+fi", TwoHeaded)
def dcpg_fi(h: TwoHeaded) -> Method:
    """DCPG, and two discriminators: one learns forward dynamics, the other inverse dynamics."""
    forward = partial(J_F, mask_boundaries=h.mask_boundaries, head="discriminator")
    inverse = partial(J_I, mask_boundaries=h.mask_boundaries, head="inverse_discriminator")
    return with_dynamics(
        dcpg(h),
        h,
        {"discriminator": discriminator, "inverse_discriminator": discriminator},
        {"J_F": (h.beta_f, forward), "J_I": (h.beta_f * h.eta, inverse)},
    )


@method("ddcpg", DDCPG)
def ddcpg(h: DDCPG) -> Method:
    """DCPG, and a discriminator f(s, a, s') that learns forward and inverse dynamics beside the value."""
    return with_joint_dynamics(dcpg(h), h)

"""Delayed-Critic Policy Gradient and its dynamics-aware form (the paper's Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from dcpg.methods.base import B, Method, Optimise, Phasic, Target, Tau, method
from dcpg.networks import discriminator, policy_head, value_head
from dcpg.objectives import C_V, J_V, C_pi, H, J_f, J_pi, draw_negatives
from dcpg.settings import setting


@dataclass(frozen=True)
class DCPG(Phasic):
    """Settings of DCPG."""

    beta_V: float = setting(1.0, "paper, Appendix D", low=0)


@dataclass(frozen=True)
class DDCPG(DCPG):
    """Settings of DDCPG."""

    beta_f: float = setting(1.0, "paper, Appendix D", low=0)
    eta: float = setting(0.5, "paper, Appendix D", low=0)
    mask_boundaries: bool = setting(False, "authors' code: pairs across an episode's end count as transitions")


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
        N_pi=h.N_pi,
        keep=("s", "R"),
    )


@method("ddcpg", DDCPG)
def ddcpg(h: DDCPG) -> Method:
    """DCPG, and a discriminator f(s, a, s') that learns forward and inverse dynamics beside the value."""
    base = dcpg(h)
    (line,) = base.auxiliary_phase
    dynamics = partial(J_f, eta=h.eta, mask_boundaries=h.mask_boundaries)
    return replace(
        base,
        networks={"theta": {**base.networks["theta"], "discriminator": discriminator}},
        auxiliary_phase=(
            replace(line, terms={**line.terms, "J_f": (h.beta_f, dynamics)}, draw=draw_negatives, couples=True),
        ),
        keep=("s", "a", "R", "done") if h.mask_boundaries else ("s", "a", "R"),
    )

"""Phasic Policy Gradient (Cobbe et al. 2021; the paper's Algorithm 2)."""

from __future__ import annotations

from functools import partial

from dcpg.methods.base import B, Method, Optimise, Phasic, Target, Tau, method
from dcpg.networks import policy_head, value_head
from dcpg.objectives import J_V, C_pi, H, J_aux, J_pi


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
        N_pi=h.N_pi,
        keep=("s", "R"),
    )

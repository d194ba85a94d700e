"""PPO (Schulman et al. 2017) with the paper's Procgen settings, and the two methods that are PPO with an addition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dcpg.core.method import Common, Method, Optimise, Target, Tau
from dcpg.core.networks import policy_head, value_head
from dcpg.core.objectives import H, J_pi, J_V_clipped
from dcpg.methods.table import method
from dcpg.settings import setting


@dataclass(frozen=True)
class PPO(Common):
    """Settings of PPO: epochs over each rollout, and the weight of the value objective."""

    E_pi: int = setting(3, "paper, Table 4", low=1)
    value_weight: float = setting(0.5, "authors' code", low=0)


@method("ppo", PPO)
def ppo(h: PPO) -> Method:
    """Policy and value learn together on one shared encoder."""
    return Method(
        networks={"theta": {"policy": policy_head, "value": value_head}},
        targets={"value": Target(h.gamma, h.lam)},
        advantages="value",
        policy_phase=(
            Optimise(
                "policy",
                Tau(h.minibatches),
                {
                    "J_pi": (1.0, partial(J_pi, clip=h.clip)),
                    "J_V": (h.value_weight, partial(J_V_clipped, clip=h.clip)),
                    "H": (-h.entropy, H),
                },
                epochs=h.E_pi,
            ),
        ),
    )


@method("ucb-drac", PPO, {"augment": "ucb"})
def ucb_drac(h: PPO) -> Method:
    """PPO whose policy and value must not change under an augmentation, which a bandit chooses."""
    return ppo(h)


@method("plr", PPO, {"levels.sampler": "prioritised"})
def plr(h: PPO) -> Method:
    """PPO on levels chosen by prioritised replay: those whose value errs most, and those not seen for long."""
    return ppo(h)

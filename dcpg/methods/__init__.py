"""The table of methods, and everything that a new method or encoder imports. Importing this package fills the table.

A method is data: networks, targets and "Optimise" lines. It is a function from its settings to a `Method`, entered into
the table with `@method(NAME, SETTINGS)`; an encoder is a class, entered with `@encoder(NAME)`. Both can be in a file of
your own, which `--plugin FILE.py` loads.
"""

# isort: off
# what a method needs comes first: a method's file may import from this package while it is being filled
from dcpg.core.batch import Batch
from dcpg.core.draws import (
    draw_augmentation,
    draw_negatives,
    draw_negatives_from_B,
    draw_pairs,
    draw_wrong_actions_from_B,
)
from dcpg.core.encoders import ENCODERS, Encoder, Flat, Impala, Impoola, Net, encoder, orthogonal, scaled, xavier
from dcpg.core.method import B, Common, Draw, Method, Optimise, Phasic, Target, Tau, Term, Terms
from dcpg.core.networks import (
    Head, LinearHead, Outputs, advantage_head, discriminator, order_head, policy_head, value_head,
)  # fmt: skip
from dcpg.core.objectives import (
    C_V, C_pi, G_V, G_pi, H, J_A, J_D, J_F, J_I, J_V, J_V_clipped, J_aux, J_f, J_order, J_pi, P_V,
)  # fmt: skip
from dcpg.settings import Section, setting
from dcpg.methods.table import METHODS, Spec, declare, method
from dcpg.methods import ppo, daac, ppg, dcpg
from dcpg.methods.daac import DAAC, IDAAC
from dcpg.methods.dcpg import DCPG, DDCPG
from dcpg.methods.drac import DrAC, with_drac
from dcpg.methods.dynamics import Dynamics, Joint, with_dynamics, with_joint_dynamics
from dcpg.methods.ppg import DPPG
from dcpg.methods.ppo import PPO
# isort: on

METHODS.close()
ENCODERS.close()

__all__ = [
    "C_V",
    "DAAC",
    "DCPG",
    "DDCPG",
    "DPPG",
    "ENCODERS",
    "G_V",
    "IDAAC",
    "J_A",
    "J_D",
    "J_F",
    "J_I",
    "J_V",
    "METHODS",
    "PPO",
    "P_V",
    "B",
    "Batch",
    "C_pi",
    "Common",
    "DrAC",
    "Draw",
    "Dynamics",
    "Encoder",
    "Flat",
    "G_pi",
    "H",
    "Head",
    "Impala",
    "Impoola",
    "J_V_clipped",
    "J_aux",
    "J_f",
    "J_order",
    "J_pi",
    "Joint",
    "LinearHead",
    "Method",
    "Net",
    "Optimise",
    "Outputs",
    "Phasic",
    "Section",
    "Spec",
    "Target",
    "Tau",
    "Term",
    "Terms",
    "advantage_head",
    "daac",
    "dcpg",
    "declare",
    "discriminator",
    "draw_augmentation",
    "draw_negatives",
    "draw_negatives_from_B",
    "draw_pairs",
    "draw_wrong_actions_from_B",
    "encoder",
    "method",
    "order_head",
    "orthogonal",
    "policy_head",
    "ppg",
    "ppo",
    "scaled",
    "setting",
    "value_head",
    "with_drac",
    "with_dynamics",
    "with_joint_dynamics",
    "xavier",
]  # fmt: skip

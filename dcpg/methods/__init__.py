"""The table of methods. Importing this package fills it, in the paper's order."""

# isort: off
from dcpg.methods import ppo, daac, ppg, dcpg
# isort: on

from dcpg.methods.base import METHODS, B, Common, Method, Optimise, Phasic, Spec, Target, Tau, method

__all__ = [
    "METHODS", "B", "Common", "Method", "Optimise", "Phasic", "Spec", "Target", "Tau", "daac", "dcpg", "method", "ppg",
    "ppo",
]  # fmt: skip

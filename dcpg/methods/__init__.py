"""The table of methods. Importing this package fills it, in the paper's order."""

# isort: off
# base comes first: a method's file may import from this package while it is being filled
from dcpg.methods.base import METHODS, B, Common, Method, Optimise, Phasic, Spec, Target, Tau, method
from dcpg.methods import ppo, daac, ppg, dcpg
# isort: on

__all__ = [
    "METHODS", "B", "Common", "Method", "Optimise", "Phasic", "Spec", "Target", "Tau", "daac", "dcpg", "method", "ppg",
    "ppo",
]  # fmt: skip

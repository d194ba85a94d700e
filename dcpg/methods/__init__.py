"""The table of methods. Importing this package fills it, in the paper's order."""

# isort: off
# the table comes first: a method's file may import from this package while it is being filled
from dcpg.core.method import B, Common, Method, Optimise, Phasic, Target, Tau
from dcpg.methods.table import METHODS, Spec, method
from dcpg.methods import ppo, daac, ppg, dcpg
# isort: on

__all__ = [
    "METHODS", "B", "Common", "Method", "Optimise", "Phasic", "Spec", "Target", "Tau", "daac", "dcpg", "method", "ppg",
    "ppo",
]  # fmt: skip

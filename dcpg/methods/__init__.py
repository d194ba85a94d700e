"""The table of methods, and everything that a new one imports. Importing this package fills the table, in order."""

# isort: off
# what a method needs comes first: a method's file may import from this package while it is being filled
from dcpg.core.batch import Batch
from dcpg.core.method import B, Common, Draw, Method, Optimise, Phasic, Target, Tau, Term, Terms
from dcpg.core.networks import Head, Outputs
from dcpg.settings import Section, setting
from dcpg.methods.table import METHODS, Spec, method
from dcpg.methods import ppo, daac, ppg, dcpg
# isort: on

__all__ = [
    "METHODS", "B", "Batch", "Common", "Draw", "Head", "Method", "Optimise", "Outputs", "Phasic", "Section", "Spec",
    "Target", "Tau", "Term", "Terms", "daac", "dcpg", "method", "ppg", "ppo", "setting",
]  # fmt: skip

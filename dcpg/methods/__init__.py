"""The table of methods. Importing this package fills it."""

from dcpg.methods import dcpg, ppg, ppo
from dcpg.methods.base import METHODS, Common, Method, Optimise, Phasic, Spec, Target, method

__all__ = ["METHODS", "Common", "Method", "Optimise", "Phasic", "Spec", "Target", "dcpg", "method", "ppg", "ppo"]

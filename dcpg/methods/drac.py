"""DrAC (Raileanu et al. 2021): policy and value must not change under an augmentation, on any method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.draws import draw_augmentation
from dcpg.core.method import Method, Terms
from dcpg.core.objectives import G_V, G_pi
from dcpg.errors import BadInput
from dcpg.settings import Section, setting

CHOICES = ("none", "ucb", *AUGMENTATIONS)


@dataclass(frozen=True)
class DrAC(Section):
    """Settings of DrAC, in use if `augment` is not none."""

    alpha_r: float = setting(0.1, "paper, Appendix D (UCB-DrAC)", low=0)
    c: float = setting(0.1, "paper, Appendix D (UCB-DrAC): the bandit's exploration", low=0)
    window: int = setting(10, "paper, Appendix D (UCB-DrAC): rewards that the bandit averages", low=1)


def with_drac(base: Method, h: DrAC, augment: str) -> Method:
    """A method whose policy phase, where it has J_pi, also has DrAC's two regularisers."""
    pair: Terms = {"G_pi": (h.alpha_r, G_pi), "G_V": (h.alpha_r, partial(G_V, head=base.advantages))}
    if not any("J_pi" in line.terms for line in base.policy_phase):
        raise BadInput(f"augment={augment} needs a line with the term J_pi in the policy phase; this method has none.")
    lines = tuple(
        replace(line, terms={**line.terms, **pair}, draw=draw_augmentation(line.draw)) if "J_pi" in line.terms else line
        for line in base.policy_phase
    )
    return replace(base, policy_phase=lines, augmented=True)

"""Dynamics learning: a discriminator f(s, a, s') on the policy's encoder, in any method's auxiliary phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from dcpg.core.draws import draw_negatives, draw_negatives_from_B
from dcpg.core.method import Draw, Method, Terms
from dcpg.core.networks import Head, discriminator
from dcpg.core.objectives import J_f
from dcpg.settings import Section, setting


@dataclass(frozen=True)
class Dynamics(Section):
    """Settings of dynamics learning: its weight, what counts as a transition, and where wrong ones are drawn."""

    beta_f: float = setting(1.0, "paper, Appendices D and F.2", low=0)
    mask_boundaries: bool = setting(False, "authors' code: pairs across an episode's end count as transitions")
    negatives: str = setting(
        "minibatch", "authors' code (B: from all of B, as in the paper)", choices=("minibatch", "B")
    )


@dataclass(frozen=True)
class Joint(Dynamics):
    """Settings of one discriminator for forward and inverse dynamics."""

    eta: float = setting(0.5, "paper, Appendix D (DDCPG)", low=0)


def with_dynamics(
    base: Method, h: Dynamics, heads: Mapping[str, Head], terms: Terms, from_B: Draw = draw_negatives_from_B
) -> Method:
    """A phasic method whose auxiliary phase also has these discriminators and, in its first line, their terms.

    `from_B` draws what the terms need if `negatives` is B.
    """
    line, *others = base.auxiliary_phase
    draw = draw_negatives if h.negatives == "minibatch" else from_B
    kept = ("s", "a", *(name for name in base.keep if name != "s"))
    return replace(
        base,
        networks={**base.networks, "theta": {**base.networks["theta"], **heads}},
        auxiliary_phase=(replace(line, terms={**line.terms, **terms}, draw=draw, couples=True), *others),
        keep=(*kept, "done") if h.mask_boundaries else kept,
    )


def with_joint_dynamics(base: Method, h: Joint) -> Method:
    """A phasic method with one discriminator that learns forward and inverse dynamics at once."""
    term = partial(J_f, eta=h.eta, mask_boundaries=h.mask_boundaries)
    return with_dynamics(base, h, {"discriminator": discriminator}, {"J_f": (h.beta_f, term)})

"""What a method is: networks, targets and "Optimise" lines, declared as data.

A method is a function from its settings to a `Method`. One "Optimise ... with ..." line of the paper's pseudocode
is one `Optimise` here, a weighted sum of named terms. The training loop (`dcpg/core/algorithm.py`) knows no method by
name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.networks import Head, Outputs
from dcpg.errors import BadInput
from dcpg.settings import Section, setting

Term = Callable[[Outputs, Batch], Tensor]
"""An objective: from the networks' outputs and a minibatch to one value per sample, [b]."""

Terms = Mapping[str, tuple[float, Term]]
"""The terms of a line: name -> (weight, term)."""

Draw = Callable[[Batch, Any, torch.Generator, int], Batch]
"""Adds random inputs to a minibatch: (batch, the rollout or B that it comes from, generator, number of actions)."""


@dataclass(frozen=True)
class Target:
    """A value target: GAE's lambda-return with one value head and one discount."""

    gamma: float
    lam: float


@dataclass(frozen=True)
class Tau:
    """ "with tau": the valid transitions of the newest rollout, shuffled and split into minibatches."""

    minibatches: int  # per epoch

    def minibatches_of(self, size: int) -> int:
        """The number of minibatches per epoch, whatever the size of the rollout."""
        return self.minibatches


@dataclass(frozen=True)
class B:
    """ "with B": minibatches of whole segments."""

    segments: int  # per minibatch

    def minibatches_of(self, size: int) -> int:
        """The number of minibatches per epoch, for a B of `size` segments."""
        return size // self.segments


@dataclass(frozen=True)
class Optimise:
    """One "Optimise ... with tau" or "... with B" line."""

    name: str  # names the line's Adam and its metrics
    data: Tau | B
    terms: Terms
    epochs: int
    draw: Draw | None = None  # adds the random inputs of terms to a minibatch
    couples: bool = False  # a term mixes samples, so the minibatch's graph is kept whole
    before: Mapping[str, Terms] = field(default_factory=dict)  # Adam -> terms of an earlier step on each minibatch

    @property
    def adams(self) -> dict[str, Terms]:
        """The Adams that step on each minibatch, in order, and the terms that each minimises."""
        return {**self.before, self.name: self.terms}


@dataclass(frozen=True)
class Method:
    """What Algorithm 1 needs to know of a method: pure data."""

    networks: Mapping[str, Mapping[str, Head]]  # encoder -> the heads on it
    targets: Mapping[str, Target]  # value head -> how its target is computed
    advantages: str  # the value head that gives the advantages, with its target's lambda
    policy_phase: tuple[Optimise, ...]
    auxiliary_phase: tuple[Optimise, ...] = ()
    # rollouts of a phase, before its auxiliary phase: a number, or a function of the phase's number, from 0
    N_pi: int | Callable[[int], int] = 1
    keep: tuple[str, ...] = ()  # what a minibatch of B carries: s, R, and a, done for the dynamics
    advantage_gamma: float | None = None  # the discount of the advantages, if it is not that of their head's target
    needs_levels: bool = False  # a draw needs the level of each state
    augmented: bool = False  # terms compare each frame with an augmented view of it

    def length_of(self, phase: int) -> int:
        """The rollouts of a phase, whose number counts from 0."""
        length = self.N_pi if isinstance(self.N_pi, int) else self.N_pi(phase)
        if not isinstance(length, int) or length < 1:
            raise BadInput(f"N_pi of phase {phase} is {length!r}; a phase has a whole number of rollouts, 1 or more.")
        return length

    def lengths(self, rollouts: int) -> set[int]:
        """The lengths of all phases that begin before `rollouts` rollouts are done."""
        return {self.N_pi} if isinstance(self.N_pi, int) else set(self._phases(rollouts))

    def ends_phase(self, rollouts: int) -> bool:
        """Whether a phase ends after so many rollouts."""
        if isinstance(self.N_pi, int):
            return rollouts % self.N_pi == 0
        return sum(self._phases(rollouts)) == rollouts

    def in_whole_phases(self, rollouts: int) -> int:
        """How many of the first rollouts are in phases that end within them."""
        if isinstance(self.N_pi, int):
            return rollouts - rollouts % self.N_pi
        *whole, last = self._phases(rollouts) if rollouts else (0,)
        return sum(whole) + (last if sum(whole) + last <= rollouts else 0)

    def _phases(self, rollouts: int) -> Iterator[int]:
        done = 0
        for phase in itertools.count():
            if done >= rollouts:
                return
            yield (length := self.length_of(phase))
            done += length

    def encoder_of(self, head: str) -> str:
        return next(encoder for encoder, heads in self.networks.items() if head in heads)

    @property
    def lines(self) -> tuple[Optimise, ...]:
        """Every line, in the order in which a phase runs them."""
        return self.policy_phase + self.auxiliary_phase

    @property
    def adams(self) -> dict[str, Terms]:
        """Every Adam and the terms that it minimises."""
        return {name: terms for line in self.lines for name, terms in line.adams.items()}


@dataclass(frozen=True)
class Common(Section):
    """Settings that all methods of the paper share."""

    gamma: float = setting(0.999, "paper, Table 4", low=0, high=1)
    lam: float = setting(0.95, "paper, Table 4 (GAE lambda)", low=0, high=1)
    clip: float = setting(0.2, "paper, Table 4", above=0)
    entropy: float = setting(0.01, "paper, Table 4", low=0)
    learning_rate: float = setting(5e-4, "paper, Table 4", above=0)
    adam_eps: float = setting(1e-5, "authors' code", above=0)
    max_grad_norm: float = setting(0.5, "authors' code", above=0)
    minibatches: int = setting(8, "paper, Table 4", low=1)
    E_pi: int = setting(1, "paper, Table 5", low=1)


@dataclass(frozen=True)
class Phasic(Common):
    """Settings of methods with an auxiliary phase."""

    N_pi: int = setting(32, "paper, Table 5", low=1)
    N_pi_first: tuple[int, ...] = setting((), "ours: N_pi of the first phases, one value per phase; then N_pi", low=1)
    E_aux: int = setting(6, "paper, Table 5", low=1)
    segments: int = setting(4, "paper, Table 5 (16 minibatches per N_pi of 64 segments)", low=1)
    beta_pi: float = setting(1.0, "paper, Table 5", low=0)

    def schedule(self) -> int | Callable[[int], int]:
        """N_pi of each phase: that of the list, and then N_pi."""
        first, last = self.N_pi_first, self.N_pi
        return (lambda phase: first[phase] if phase < len(first) else last) if first else last

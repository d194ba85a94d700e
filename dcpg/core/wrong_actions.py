"""Wrong actions that a discriminator believes (paper, Appendix F.2, Table 10).

A discriminator that has learnt inverse dynamics recognises the action that led from s to s'; one that has learnt
forward dynamics alone believes any. For each true transition we count the wrong actions a' with
sigmoid(f(s, a', s')) > 1/2, among Procgen's nine moves. Where special actions do nothing, as in BigFish, they count as
the no-op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dcpg.core.networks import Discriminator, Network
from dcpg.core.rollout import Rollout

MOVES = 9  # Procgen's actions 0-8: eight directions and the no-op


NO_OP = 4


# games in which the special actions 9-14 do something (a test checks this against Procgen)
SPECIAL_ACTIONS = frozenset({"bossfight", "caveflyer", "dodgeball", "fruitbot", "ninja", "plunder", "starpilot"})


HEAD = "discriminator"  # f; the forward one where there are two


@dataclass(frozen=True)
class Counts:
    """How many transitions have 0, 1, 2, ... wrong actions that the discriminator believes."""

    transitions: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.transitions)

    @property
    def mean(self) -> float:
        """The mean number of wrong actions per transition."""
        return sum(k * n for k, n in enumerate(self.transitions)) / max(self.total, 1)

    @property
    def std(self) -> float:
        """The standard deviation over transitions."""
        squares = sum(n * (k - self.mean) ** 2 for k, n in enumerate(self.transitions))
        return float((squares / max(self.total - 1, 1)) ** 0.5)

    @classmethod
    def of(cls, wrong: Tensor, most: int) -> Counts:
        """Counts from the number of wrong actions of each transition."""
        return cls(tuple(torch.bincount(wrong, minlength=most + 1).tolist()))

    def __add__(self, other: Counts) -> Counts:
        return Counts(tuple(a + b for a, b in zip(self.transitions, other.transitions, strict=True)))


@dataclass(frozen=True)
class BelievedActions:
    """Which actions a discriminator believes, over true transitions within episodes."""

    counts: Counts  # true actions by what they do; a special action that does something is left out
    raw: Counts  # true actions by their number: a special action that does nothing makes the no-op wrong
    true_believed: int  # true transitions that are believed

    def __add__(self, other: BelievedActions) -> BelievedActions:
        return BelievedActions(
            self.counts + other.counts, self.raw + other.raw, self.true_believed + other.true_believed
        )

    def row(self) -> dict[str, float]:
        """The columns of metrics.jsonl."""
        if not self.counts.total:
            return {}
        return {
            "ood_actions": self.counts.mean,
            "ood_actions_std": self.counts.std,
            "ood_actions_raw": self.raw.mean,
            "ood_actions_raw_std": self.raw.std,
            "ood_actions_true_believed": self.true_believed / self.raw.total,
            "ood_actions_transitions": self.counts.total,
        }


def believed_actions(
    network: Network,
    tau: Rollout,
    game: str,
    actions: int,
    chunk: int,
    between_chunks: Callable[[], None] = lambda: None,
) -> BelievedActions:
    """Count believed actions over the transitions of a rollout that do not cross an episode's end."""
    f = network.get_submodule(HEAD)
    assert isinstance(f, Discriminator)
    usable = (tau.valid & ~tau.crosses & ~tau.dones).flatten()
    taken = tau.actions.flatten()[usable]
    now, following = _features(network, tau, usable, chunk, between_chunks)
    candidates = MOVES if _is_procgen(game) else actions
    with torch.no_grad():
        believed = torch.stack(
            [f.logit(now, torch.full_like(taken, a, device=now.device), following) > 0 for a in range(candidates)], 1
        ).cpu()
        true = f.logit(now, taken.to(now.device), following) > 0
    does, known = _what_it_does(taken, game)
    wrong, raw = _wrong(believed, does)[known], _wrong(believed, taken)
    return BelievedActions(Counts.of(wrong, candidates), Counts.of(raw, candidates), int(true.sum()))


def _is_procgen(game: str) -> bool:
    return ":" not in game


def _what_it_does(taken: Tensor, game: str) -> tuple[Tensor, Tensor]:
    """The move that each action amounts to, and whether it amounts to one."""
    special = taken >= MOVES if _is_procgen(game) else torch.zeros_like(taken, dtype=torch.bool)
    return torch.where(special, NO_OP, taken), ~special if game in SPECIAL_ACTIONS else torch.ones_like(special)


def _wrong(believed: Tensor, true: Tensor) -> Tensor:
    """How many actions are believed besides the true one, [n]."""
    numbers = torch.arange(believed.shape[1])
    return (believed & (numbers != true[:, None])).sum(1)


def _features(
    network: Network, tau: Rollout, usable: Tensor, chunk: int, between_chunks: Callable[[], None]
) -> tuple[Tensor, Tensor]:
    """Features of s and of s' of the usable transitions; each frame goes through the encoder once."""
    encoder = network.encoder_of[HEAD]
    device = next(network.parameters()).device
    parts = []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(tau) + tau.actions.shape[1]), chunk):
            between_chunks()
            parts.append(network.encode(encoder, tau.states(rows).to(device), chunk))
    features = torch.cat(parts)
    envs, now = tau.actions.shape[1], usable.nonzero().squeeze(1).to(device)
    return features[now], features[now + envs]

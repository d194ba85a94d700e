"""Scores over games and seeds: normalisation, aggregates, and intervals by stratified bootstrap, as rliable has them.

Scores are a mapping from game to the final returns of its seeds; games may have different numbers of seeds, and
nothing is filled in. Every resampling is one array operation, and its indices come from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Scores = Mapping[str, Array]  # game -> [..., seeds]; leading axes are resamplings
Metric = Callable[[Scores], Array]  # -> [...]

RESAMPLES = 50_000
LEVEL = 0.95
# (lowest, highest) return of each game in easy mode: rliable's constants, which the paper's Figures 15 and 16 use
RANGES: dict[str, tuple[float, float]] = {
    "bigfish": (1, 40), "bossfight": (0.5, 13), "caveflyer": (3.5, 12), "chaser": (0.5, 13), "climber": (2, 12.6),
    "coinrun": (5, 10), "dodgeball": (1.5, 19), "fruitbot": (-1.5, 32.4), "heist": (3.5, 10), "jumper": (1, 10),
    "leaper": (1.5, 10), "maze": (5, 10), "miner": (1.5, 13), "ninja": (3.5, 10), "plunder": (4.5, 30),
    "starpilot": (2.5, 64),
}  # fmt: skip
# the same as the Procgen paper prints them
PROCGEN_RANGES = {**RANGES, "jumper": (3.0, 10.0), "leaper": (3.0, 10.0)}


def min_max(scores: Scores, ranges: Mapping[str, tuple[float, float]] = RANGES) -> dict[str, Array]:
    """(return - lowest) / (highest - lowest) of each game, not clipped."""
    return {
        game: (np.asarray(s, float) - ranges[game][0]) / (ranges[game][1] - ranges[game][0])
        for game, s in scores.items()
    }


def ppo_normalised(scores: Scores, ppo: Scores) -> dict[str, Array]:
    """Percent of PPO's mean return on the same game."""
    return {game: 100 * np.asarray(s, float) / np.mean(ppo[game]) for game, s in scores.items()}


def mean(scores: Scores) -> Array:
    """Of the games' means."""
    return np.mean(_game_means(scores), axis=0)  # type: ignore[no-any-return]


def median(scores: Scores) -> Array:
    """Of the games' means."""
    return np.median(_game_means(scores), axis=0)  # type: ignore[no-any-return]


def iqm(scores: Scores) -> Array:
    """The mean of the middle half of all seeds of all games."""
    everything = np.sort(_all(scores), axis=-1)
    cut = int(0.25 * everything.shape[-1])
    return everything[..., cut : everything.shape[-1] - cut].mean(-1)  # type: ignore[no-any-return]


def optimality_gap(scores: Scores, best: float = 1.0) -> Array:
    """How far all seeds of all games fall short of `best`, on average."""
    return best - np.minimum(_all(scores), best).mean(-1)  # type: ignore[no-any-return]


METRICS: dict[str, Metric] = {"mean": mean, "median": median, "iqm": iqm, "optimality_gap": optimality_gap}


def probability_of_improvement(x: Scores, y: Scores) -> Array:
    """The chance that a seed of x beats one of y on the same game (a tie counts half), averaged over games."""
    games = [game for game in x if game in y]
    chances = []
    for game in games:
        difference = np.asarray(x[game], float)[..., :, None] - np.asarray(y[game], float)[..., None, :]
        chances.append(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))
    return np.mean(chances, axis=0)  # type: ignore[no-any-return]


def profile(scores: Scores, thresholds: Sequence[float] | Array) -> Array:
    """The share of all seeds of all games above each threshold, [..., thresholds]."""
    return (_all(scores)[..., :, None] > np.asarray(thresholds)).mean(-2)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Interval:
    """A figure and the interval that its resamplings span."""

    value: float
    low: float
    high: float


def resampled_indices(scores: Scores, resamples: int, seed: int) -> dict[str, Array]:
    """For each game, which seeds each resampling takes: [resamples, seeds], drawn with replacement."""
    rng = np.random.default_rng(seed)
    return {game: rng.integers(0, np.shape(s)[-1], (resamples, np.shape(s)[-1])) for game, s in scores.items()}


def resampled(scores: Scores, indices: Mapping[str, Array]) -> dict[str, Array]:
    """Every resampling at once: game -> [resamples, seeds]."""
    return {game: np.asarray(s, float)[indices[game]] for game, s in scores.items()}


def interval(metric: Metric, scores: Scores, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """A metric with its percentile interval by stratified bootstrap: each game's seeds are resampled by themselves."""
    drawn = metric(resampled(scores, resampled_indices(scores, resamples, seed)))
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(metric(scores)), float(low), float(high))


def improvement_interval(x: Scores, y: Scores, resamples: int = 2_000, seed: int = 0) -> Interval:
    """The probability of improvement with its interval; both sides are resampled."""
    drawn = probability_of_improvement(
        resampled(x, resampled_indices(x, resamples, seed)), resampled(y, resampled_indices(y, resamples, seed + 1))
    )
    low, high = np.percentile(drawn, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Interval(float(probability_of_improvement(x, y)), float(low), float(high))


def _game_means(scores: Scores) -> Array:
    return np.stack([np.asarray(s, float).mean(-1) for s in scores.values()])


def _all(scores: Scores) -> Array:
    return np.concatenate([np.asarray(s, float) for s in scores.values()], axis=-1)

"""Scores over games and seeds: normalisation, aggregates, and intervals by stratified bootstrap, as in rliable.

Scores are a mapping from game to the final returns of its seeds; games may have different numbers of seeds, and
nothing is filled in. Axes before that of the seeds are kept: returns at several points of training are
game -> [points, seeds], and every metric then gives one number per point. Resampling is a few array operations, in
pieces that bound its memory, and its indices come from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.errors import BadInput, unknown

Array = NDArray[Any]
Scores = Mapping[str, Array]  # game -> [..., seeds]; leading axes are resamplings, then points of training
Metric = Callable[[Scores], Array]  # -> [...]
RESAMPLES = 50_000  # of a single number, as in rliable's notebook
BAND_RESAMPLES = 2_000  # of curves, profiles and probabilities of improvement, rliable's default for profiles
CELLS = 2**22  # about how many values are resampled at a time
LEVEL = 0.95
SMALLEST = 1e-30  # return of PPO that others are divided by: one that is not positive, or hardly, makes no ratio

# (lowest, highest) return of each game in easy mode: rliable's constants, which the paper's Figures 15 and 16 use
RANGES: dict[str, tuple[float, float]] = {
    "bigfish": (1, 40), "bossfight": (0.5, 13), "caveflyer": (3.5, 12), "chaser": (0.5, 13), "climber": (2, 12.6),
    "coinrun": (5, 10), "dodgeball": (1.5, 19), "fruitbot": (-1.5, 32.4), "heist": (3.5, 10), "jumper": (1, 10),
    "leaper": (1.5, 10), "maze": (5, 10), "miner": (1.5, 13), "ninja": (3.5, 10), "plunder": (4.5, 30),
    "starpilot": (2.5, 64),
}  # fmt: skip
# the same as the Procgen paper prints them
PROCGEN_RANGES = {**RANGES, "jumper": (3.0, 10.0), "leaper": (3.0, 10.0)}
# hard mode, as the Procgen paper prints them
HARD_RANGES: dict[str, tuple[float, float]] = {
    "bigfish": (0, 40), "bossfight": (0.5, 13), "caveflyer": (2, 13.4), "chaser": (0.5, 14.2), "climber": (1, 12.6),
    "coinrun": (5, 10), "dodgeball": (1.5, 19), "fruitbot": (-0.5, 27.2), "heist": (2, 10), "jumper": (1, 10),
    "leaper": (1.5, 10), "maze": (4, 10), "miner": (1.5, 20), "ninja": (2, 10), "plunder": (3, 30),
    "starpilot": (1.5, 35),
}  # fmt: skip


# -- normalisation
def min_max(scores: Scores, ranges: Mapping[str, tuple[float, float]] = RANGES) -> dict[str, Array]:
    """(return - lowest) / (highest - lowest) of each game, not clipped."""
    scores = checked(scores)
    for game in scores:
        if game not in ranges:
            raise unknown("game", game, ranges)
    return {game: (s - ranges[game][0]) / (ranges[game][1] - ranges[game][0]) for game, s in scores.items()}


def ppo_normalised(scores: Scores, ppo: Scores) -> dict[str, Array]:
    """Percent of PPO's mean return on the same game; `ppo` has one final return per seed."""
    scores, means = checked(scores), _denominators(scores, ppo)
    return {game: 100 * s / means[game] for game, s in scores.items()}


# -- metrics
def mean(scores: Scores) -> Array:
    """The mean of the games' means."""
    found: Array = np.mean(_game_means(scores), axis=0)
    return found


def median(scores: Scores) -> Array:
    """The median of the games' means."""
    found: Array = np.median(_game_means(scores), axis=0)
    return found


def iqm(scores: Scores) -> Array:
    """The mean of the middle half of all seeds of all games."""
    everything = np.sort(_all(scores), axis=-1)
    cut = int(0.25 * everything.shape[-1])
    found: Array = everything[..., cut : everything.shape[-1] - cut].mean(-1)
    return found


def optimality_gap(scores: Scores, best: float = 1.0) -> Array:
    """How far all seeds of all games fall short of `best`, on average."""
    found: Array = best - np.minimum(_all(scores), best).mean(-1)
    return found


METRICS: dict[str, Metric] = {"mean": mean, "median": median, "iqm": iqm, "optimality_gap": optimality_gap}


def probability_of_improvement(x: Scores, y: Scores) -> Array:
    """The chance that a seed of x beats one of y on the same game (a tie counts half), averaged over their games.

    Games that only one of them has are left out.
    """
    x, y = checked(x), checked(y)
    games = [game for game in x if game in y]
    if not games:
        raise BadInput(f"The two sides have no game in common: {', '.join(x)} against {', '.join(y)}.")
    chances = []
    for game in games:
        difference = x[game][..., :, None] - y[game][..., None, :]
        chances.append(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))
    found: Array = np.mean(chances, axis=0)
    return found


def profile(scores: Scores, thresholds: Sequence[float] | Array) -> Array:
    """The share of all seeds of all games above each threshold, [..., thresholds]."""
    found: Array = (_all(scores)[..., :, None] > _numbers("The thresholds", thresholds)).mean(-2)
    return found


# -- intervals
@dataclass(frozen=True)
class Interval:
    """A number and the interval that its resamplings span."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Band:
    """A number at each point or threshold, and the interval that its resamplings span there."""

    value: Array
    low: Array
    high: Array


def resampled_indices(scores: Scores, resamples: int, seed: int) -> dict[str, Array]:
    """For each game, which seeds each resampling takes: [resamples, seeds], drawn with replacement."""
    if resamples < 1:
        raise BadInput(f"An interval needs at least one resampling, not {resamples}.")
    rng = np.random.default_rng(seed)
    return {game: rng.integers(0, s.shape[-1], (resamples, s.shape[-1])) for game, s in checked(scores).items()}


def resampled(scores: Scores, indices: Mapping[str, Array]) -> dict[str, Array]:
    """Every resampling at once: game -> [resamples, ..., seeds]; a seed is taken with all its points."""
    return {game: np.moveaxis(s[..., indices[game]], -2, 0) for game, s in checked(scores).items()}


def interval(metric: Metric, scores: Scores, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """A metric with its percentile interval by stratified bootstrap: each game's seeds are resampled separately."""
    return _interval(curve(metric, finals(scores), resamples, seed))


def curve(metric: Metric, scores: Scores, resamples: int = BAND_RESAMPLES, seed: int = 0) -> Band:
    """A metric with its interval at each point of training, of game -> [points, seeds]: sample efficiency.

    A resampling takes the same seeds at every point.
    """
    return _band(metric, [(checked(scores), seed)], resamples, sum(np.size(s) for s in scores.values()))


def profile_band(
    scores: Scores, thresholds: Sequence[float] | Array, resamples: int = BAND_RESAMPLES, seed: int = 0
) -> Band:
    """The performance profile with its interval at each threshold."""
    scores, thresholds = finals(scores), _numbers("The thresholds", thresholds)
    cells = thresholds.size * sum(s.size for s in scores.values())
    return _band(lambda s: profile(s, thresholds), [(scores, seed)], resamples, cells)


def improvement_interval(x: Scores, y: Scores, resamples: int = BAND_RESAMPLES, seed: int = 0) -> Interval:
    """The probability of improvement with its interval; both sides are resampled separately."""
    x, y = finals(x), finals(y)
    cells = max(s.size for s in x.values()) * max(s.size for s in y.values()) + sum(s.size for s in x.values())
    return _interval(_band(probability_of_improvement, [(x, seed), (y, seed + 1)], resamples, cells))


def difference_interval(
    metric: Metric, x: Scores, y: Scores, resamples: int = BAND_RESAMPLES, seed: int = 0
) -> Interval:
    """By how much a metric of x exceeds that of y; both sides are resampled separately."""
    x, y = finals(x), finals(y)
    cells = sum(s.size for side in (x, y) for s in side.values())
    return _interval(_band(lambda a, b: metric(a) - metric(b), [(x, seed), (y, seed + 1)], resamples, cells))


def contrast(parts: Sequence[tuple[float, Array]]) -> Interval:
    """The sum of weight x mean over seeds, with Welch's t interval: parts have variances of their own.

    A part with a single seed has no variance, so the interval says nothing then; callers must know how many there are.
    """
    means = [(w * m, w * w * variance / len(v), len(v)) for w, v in parts for m, variance in [_mean_and_variance(v)]]
    value, variance = sum(m for m, _, _ in means), sum(v for _, v, _ in means)
    if variance == 0:
        return Interval(value, value, value)
    freedom = 1 / sum((v / variance) ** 2 / (n - 1) for _, v, n in means if n > 1)  # no square of a large number
    half = t_quantile(freedom) * math.sqrt(variance)
    return Interval(value, value - half, value + half)


def _mean_and_variance(values: Array) -> tuple[float, float]:
    """Those of equal values are exact: a rounding error is no difference."""
    if np.all(values == values[0]):
        return float(values[0]), 0.0
    return float(np.mean(values)), float(np.var(values, ddof=1))


@cache
def t_quantile(freedom: float) -> float:
    """How many standard errors the 95% interval of Student's t has on each side."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def inside(t: float) -> float:
        x = np.linspace(0, math.asinh(t), 401)  # sinh spreads the points over long tails
        density = scale * (1 + np.sinh(x) ** 2 / freedom) ** (-(freedom + 1) / 2) * np.cosh(x)
        simpson = density[0] + 4 * density[1::2].sum() + 2 * density[2:-1:2].sum() + density[-1]
        return 2 * float(simpson * x[1]) / 3

    low, high = 0.0, 1e3
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < LEVEL else (low, middle)
    return high


# -- the paper's score
@dataclass(frozen=True)
class NormalisedScore(Interval):
    """A PPO-normalised score, its interval, and its standard deviation over seeds where that is defined."""

    std: float | None


def ppo_normalised_score(scores: Scores, ppo: Scores, resamples: int = RESAMPLES, seed: int = 0) -> NormalisedScore:
    """100 times the mean over games of (mean return over seeds / PPO's mean return), as in the paper's Table 1.

    PPO's means are taken as fixed, in the interval and in the deviation alike. The score of seed k is the same mean
    over games of its returns alone, and `std` is the deviation of these, with the number of seeds less one below. It is
    None with a single seed and where games have different numbers of seeds; elsewhere the k-th return of every game
    must be of the same seed.
    """
    percent = ppo_normalised(finals(scores), ppo)
    found = interval(mean, percent, resamples, seed)
    sizes = {s.size for s in percent.values()}
    std = None
    if len(sizes) == 1 and sizes != {1}:
        std = float(np.std(np.mean(list(percent.values()), axis=0), ddof=1))
    return NormalisedScore(found.value, found.low, found.high, std)


def rounding_bounds(scores: Scores, ppo: Scores, half: float = 0.05) -> tuple[float, float]:
    """The lowest and the highest PPO-normalised score that are consistent with a table of rounded numbers.

    Each game's mean return, PPO's too, may be off by `half`, half a unit of the last digit, and so may the score. PPO's
    own score is 100 whatever its returns are, so this is for other methods.
    """
    scores = finals(scores)
    low = _denominators(scores, {game: s - half for game, s in finals(ppo).items()})
    quotients = []
    for game, s in scores.items():
        corners = np.array([s.mean() - half, s.mean() + half])[:, None] / np.array([low[game], low[game] + 2 * half])
        quotients.append((corners.min(), corners.max()))
    bottom, top = 100 * np.mean(quotients, axis=0)
    return float(bottom - half), float(top + half)


# -- what scores must be
def checked(scores: Scores) -> dict[str, Array]:
    """The scores as floats; refused unless every game has seeds, finite numbers, and the other games' points."""
    if not scores:
        raise BadInput("There are no scores: not one game is given.")
    found = {game: _numbers(f"The scores of {game!r}", s) for game, s in scores.items()}
    first, *others = found
    for game, s in found.items():
        if s.ndim == 0 or s.shape[-1] == 0:
            raise BadInput(f"There is no seed of {game!r}: every game needs at least one.")
    for game in others:
        if found[game].shape[:-1] != found[first].shape[:-1]:
            raise BadInput(f"{game!r} and {first!r} have scores at different numbers of points.")
    return found


def finals(scores: Scores) -> dict[str, Array]:
    """The scores as floats; refused unless there is one per seed, as at the end of training."""
    found = checked(scores)
    for game, s in found.items():
        if s.ndim != 1:
            raise BadInput(
                f"One score per seed is expected here, but {game!r} has {s.ndim} axes; take one point of them."
            )
    return found


def _numbers(what: str, values: Any) -> Array:
    try:
        found = np.asarray(values)
    except ValueError:
        raise BadInput(f"{what} are not an array: their rows differ in length.") from None
    if found.size and found.dtype.kind not in "fiu":
        raise BadInput(f"{what} are not numbers.")
    if not np.isfinite(found := found.astype(float, copy=False)).all():
        raise BadInput(f"{what} are not all finite.")
    return found


def _denominators(scores: Scores, ppo: Scores) -> dict[str, float]:
    ppo = finals(ppo)
    for game in scores:
        if game not in ppo:
            raise BadInput(f"There are no returns of PPO on {game!r} to divide by.")
    means = {game: float(ppo[game].mean()) for game in scores}
    for game, m in means.items():
        if m < SMALLEST:
            raise BadInput(f"PPO's mean return on {game!r} is {m:g}; a ratio to it says nothing unless it is positive.")
    return means


def _band(metric: Callable[..., Array], sides: list[tuple[dict[str, Array], int]], resamples: int, cells: int) -> Band:
    """A metric of one or more sides, each with its seed; a resampling takes about `cells` values in memory."""
    indices = [resampled_indices(scores, resamples, seed) for scores, seed in sides]
    step = max(1, CELLS // max(1, cells))
    drawn = []
    for start in range(0, resamples, step):
        parts = [{game: i[start : start + step] for game, i in side.items()} for side in indices]
        drawn.append(metric(*(resampled(scores, part) for (scores, _), part in zip(sides, parts, strict=True))))
    low, high = np.percentile(np.concatenate(drawn), [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=0)
    return Band(metric(*(scores for scores, _ in sides)), low, high)


def _interval(band: Band) -> Interval:
    return Interval(float(band.value), float(band.low), float(band.high))


def _game_means(scores: Scores) -> Array:
    return np.stack([s.mean(-1) for s in checked(scores).values()])


def _all(scores: Scores) -> Array:
    return np.concatenate(list(checked(scores).values()), axis=-1)

"""Scores over games and seeds, shared by tables, figures and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.envs.procgen import GAMES
from dcpg.errors import BadInput
from dcpg.report import paper
from dcpg.report.comparison import Comparison, Fair
from dcpg.report.paper import Printed, game_title, method_title
from dcpg.report.statistics import (
    METRICS,
    Band,
    Interval,
    NormalisedScore,
    Scores,
    curve,
    improvement_interval,
    interval,
    iqm,
    min_max,
    ppo_normalised_score,
    profile_band,
)
from dcpg.storage.rows import SPLITS

SCORE = "PPO-normalised score"


TWO_SEEDS = "An interval over two seeds is hardly more than the range of two runs: it ranks no methods."


@dataclass(frozen=True)
class Score:
    """A number over games, and its 95% interval where it has one."""

    value: float
    low: float | None
    high: float | None
    std: float | None = None  # over seeds, where it is defined


@dataclass(frozen=True)
class ScoreBand:
    """A number at each point or threshold, and its 95% interval there where it has one."""

    value: NDArray[Any]
    low: NDArray[Any] | None
    high: NDArray[Any] | None


def has_interval(*sides: Scores) -> bool:
    """Whether scores over these games have an interval: a game with one seed adds no variance, and none says how much.

    Without it, an interval would be too narrow. Tables, figures, the page and report.json all follow this.
    """
    return all(np.shape(seeds)[-1] > 1 for scores in sides for seeds in scores.values())


def scored(found: Interval, *sides: Scores) -> Score:
    """A score from the resamplings of these scores, without an interval if it has none."""
    std = found.std if isinstance(found, NormalisedScore) else None
    low, high = (found.low, found.high) if has_interval(*sides) else (None, None)
    return Score(found.value, low, high, std)


def _banded(found: Band, scores: Scores) -> ScoreBand:
    return ScoreBand(found.value, *((found.low, found.high) if has_interval(scores) else (None, None)))


@dataclass(frozen=True)
class Denominators:
    """PPO's mean returns, and where they come from."""

    ppo: Scores
    source: str


@dataclass(frozen=True)
class Normalised:
    """PPO-normalised scores over one set of games, with the notes that belong below them."""

    scores: dict[str, Score]
    games: list[str]
    notes: list[str]


def denominators(comparison: Comparison, split: str) -> Denominators | None:
    """PPO's returns in this comparison; without any, the paper's, if the runs are as the paper's."""
    own = comparison.scores("ppo", split)
    if own:
        return Denominators(own, "these PPO runs")
    if comparison.is_papers:
        return Denominators(paper.paper_results(split, "ppo"), "the paper's PPO")
    return None


def normalised_scores(comparison: Comparison, labels: list[str], split: str) -> Normalised:
    """Each method's score, over every game on which one of them or PPO has finished."""
    found = denominators(comparison, split)
    if found is None:
        return Normalised({}, [], [f"No {SCORE}: there is no finished PPO run of the same setting to divide by."])
    fair = comparison.fair(list(dict.fromkeys([*labels, "ppo"])), split, comparison.games)
    without = [game for game in fair.games if game not in found.ppo]
    if without:
        return Normalised({}, [], [f"No {SCORE}: PPO has no finished run on {named(without)} to divide by."])
    scores, games = {}, fair.games
    try:
        for label in fair.methods:
            if label in labels:
                own = comparison.scores(label, split, games)
                compute = partial(ppo_normalised_score, own, found.ppo)
                score = scored(comparison.once(("normalised", label, split, *games), compute), own)
                scores[label] = score if _same_seeds(comparison, label, games) else replace(score, std=None)
    except BadInput as error:
        return Normalised({}, [], [f"No {SCORE}: {error}"])
    notes = [f"{SCORE} over {named(games)}, divided by {found.source} ({SPLITS[split]})."]
    fewest = min((len(s) for label in scores for s in comparison.scores(label, split, games).values()), default=0)
    return Normalised(scores, games, [*notes, *([TWO_SEEDS] if fewest == 2 else []), *lacking(fair)])


def lacking(fair: Fair) -> list[str]:
    """A sentence about the methods that get no score, if there are any."""
    if not fair.lacking:
        return []
    each = [f"{method_title(label)} ({named(games)})" for label, games in fair.lacking.items()]
    return [f"Without a score, because a finished run is missing: {', '.join(each)}."]


def named(games: list[str]) -> str:
    """The names of games for a sentence."""
    return "all 16 games" if set(games) == set(GAMES) else ", ".join(map(game_title, games))


def _same_seeds(comparison: Comparison, label: str, games: list[str]) -> bool:
    sets = {tuple(r.config.seed for r in comparison.runs(label, game) if r.finished) for game in games}
    return len(sets) == 1


def papers_score(comparison: Comparison, split: str, label: str, games: list[str]) -> Printed | None:
    """The paper's score: as printed for all games, or from the mean returns that it prints for some of them.

    None if these runs are not like the paper's.
    """
    if not comparison.like_paper:
        return None
    if set(games) == set(GAMES):
        return paper.printed().get((split, "ppo_normalised_score", "all", label))
    own, ppo = _printed_means(split, label, games), _printed_means(split, "ppo", games)
    return Printed(100 * float(np.mean([own[g] / ppo[g] for g in games])), None) if own and ppo else None


def _printed_means(split: str, label: str, games: list[str]) -> Scores:
    """The mean returns that the paper prints, if it prints one for every game."""
    found = {g: p.mean for g in games if (p := paper.printed().get((split, "return", g, label)))}
    return {g: np.array([m]) for g, m in found.items()} if len(found) == len(games) else {}


def aggregates(comparison: Comparison, labels: list[str]) -> tuple[dict[str, dict[str, Score]], Fair]:
    """Metrics of min-max normalised returns on unseen levels by method, and what they cover."""
    fair = min_max_fair(comparison, labels)

    def compute(label: str) -> dict[str, Score]:
        scores = min_max(comparison.scores(label, "test", fair.games), comparison.ranges)
        return {name: scored(interval(metric, scores), scores) for name, metric in METRICS.items()}

    return {
        label: comparison.once(("aggregates", label, *fair.games), partial(compute, label)) for label in fair.methods
    }, fair


def min_max_fair(comparison: Comparison, labels: list[str]) -> Fair:
    """The methods and games of min-max scores: games without a range, such as your own, have none."""
    return comparison.fair(labels, "test", [g for g in comparison.games if g in comparison.ranges])


def papers_aggregate(comparison: Comparison, label: str, metric: str, games: list[str]) -> float | None:
    """From the mean returns that the paper prints; None if these runs are not like the paper's.

    The paper prints no single runs: IQM and optimality gap are those of the means of its games.
    """
    means = _printed_means("test", label, games) if comparison.like_paper else {}
    if not means:
        return None
    return float(METRICS[metric](min_max(means, comparison.ranges)))


def wrong_actions(comparison: Comparison, label: str, game: str) -> list[dict[str, Any]]:
    """The analyses of wrong actions at the end of finished runs, one per seed."""
    runs = [r for r in comparison.runs(label, game) if r.finished and "ood-actions" in r.analyses]
    return [r.analyses["ood-actions"] for r in runs if r.analyses["ood-actions"]["steps"] >= r.setting.steps]


def improvement(comparison: Comparison, label: str, over: str, among: Sequence[str] | None = None) -> Score | None:
    """The probability of improvement over every game that one of the two has finished; None if one lacks a game.

    `among` restricts the games, such as to Procgen's.
    """
    fair = comparison.fair([label, over], "test", comparison.games if among is None else list(among))
    games = fair.games
    if len(fair.methods) < 2:
        return None

    def compute() -> Score:
        sides = comparison.scores(label, "test", games), comparison.scores(over, "test", games)
        return scored(improvement_interval(*sides), *sides)

    return comparison.once(("improvement", label, over, *games), compute)


def profiles(comparison: Comparison, labels: list[str]) -> tuple[NDArray[Any], dict[str, ScoreBand]]:
    """Thresholds of the min-max normalised return, and the share of each method's runs above them.

    Empty with fewer than two different returns: there is nothing to see then.
    """
    fair = min_max_fair(comparison, labels)
    kept, games = fair.methods, fair.games
    scores = {label: min_max(comparison.scores(label, "test", games), comparison.ranges) for label in kept}
    every = np.concatenate([np.empty(0), *(s for of_label in scores.values() for s in of_label.values())])
    if len(set(every)) < 2:
        return np.empty(0), {}
    taus = np.linspace(every.min(), every.max(), 51)
    return taus, {
        label: _banded(
            comparison.once(("profile", label, *kept, *games), partial(profile_band, scores[label], taus)),
            scores[label],
        )
        for label in kept
    }


def sample_efficiency(comparison: Comparison, labels: list[str]) -> dict[str, tuple[NDArray[Any], ScoreBand]]:
    """Method -> steps at which every finished run was evaluated, and IQM of min-max normalised returns there.

    Methods with fewer than two such places are left out.
    """
    fair, found = min_max_fair(comparison, labels), {}
    games = fair.games
    for label in fair.methods:
        runs = {game: [r for r in comparison.runs(label, game) if r.finished] for game in games}
        rows = {game: [{e.steps: e.splits["test"].mean for e in r.evaluations} for r in runs[game]] for game in games}
        steps = sorted(set.intersection(*(set(by_step) for game in games for by_step in rows[game])))
        if len(steps) < 2:
            continue
        scores = {game: np.array([[by_step[s] for by_step in rows[game]] for s in steps], float) for game in games}
        compute = partial(curve, iqm, min_max(scores, comparison.ranges))
        found[label] = (np.array(steps), _banded(comparison.once(("efficiency", label, *games), compute), scores))
    return found

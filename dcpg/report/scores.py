"""Scores over games and seeds that tables, figures and the page share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.errors import BadInput
from dcpg.report import paper
from dcpg.report.comparison import Board
from dcpg.report.paper import GAMES, Printed, game_title, method_title
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
    mean,
    median,
    min_max,
    ppo_normalised_score,
    profile_band,
)

SCORE = "PPO-normalised score"


LEVELS = {"train": "training levels", "test": "unseen levels"}


@dataclass(frozen=True)
class Denominators:
    """PPO's mean returns, and whose they are."""

    ppo: Scores
    whose: str


@dataclass(frozen=True)
class Normalised:
    """PPO-normalised scores over one set of games, and what is to be said about them."""

    scores: dict[str, NormalisedScore]
    games: list[str]
    notes: list[str]


def denominators(board: Board, split: str) -> Denominators | None:
    """The user's own PPO runs of the same setting; without any, the paper's, if the runs are of the paper's size."""
    own = board.scores("ppo", split)
    if own:
        return Denominators(own, "these PPO runs")
    if board.setting.is_paper_size:
        return Denominators({g: np.array([m]) for g, m in paper.returns(split, "ppo").items()}, "the paper's PPO")
    return None


def normalised_scores(board: Board, labels: list[str], split: str) -> Normalised:
    """Each method's score over the games of a fair comparison that PPO has as well."""
    found = denominators(board, split)
    if found is None:
        return Normalised({}, [], [f"No {SCORE}: there is no finished PPO run of the same setting to divide by."])
    kept, games, left = board.fair(labels, split, [game for game in board.games if game in found.ppo])
    if not games:
        return Normalised({}, [], [f"No {SCORE}: there is no game on which PPO and these methods have finished."])
    scores = {}
    try:
        for label in kept:
            compute = partial(ppo_normalised_score, board.scores(label, split, games), found.ppo)
            score = board.once(("normalised", label, split, *games), compute)
            scores[label] = score if _same_seeds(board, label, games) else replace(score, std=None)
    except BadInput as error:
        return Normalised({}, [], [f"No {SCORE}: {error}"])
    notes = [f"{SCORE} over {named(games)}, divided by {found.whose} ({LEVELS[split]})."]
    if left:
        notes.append(f"Without a finished run on all of these games: {', '.join(map(method_title, left))}.")
    return Normalised(scores, games, notes)


def named(games: list[str]) -> str:
    """A set of games for people."""
    return "all 16 games" if set(games) == set(GAMES) else ", ".join(map(game_title, games))


def _same_seeds(board: Board, label: str, games: list[str]) -> bool:
    sets = {tuple(r.config.seed for r in board.runs(label, game) if r.finished) for game in games}
    return len(sets) == 1


def papers_score(split: str, label: str, games: list[str]) -> Printed | None:
    """As the paper prints it for all games; for some of them, from the mean returns that it prints."""
    if set(games) == set(GAMES):
        return paper.printed().get((split, "ppo_normalised_score", "all", label))
    own, ppo = paper.returns(split, label), paper.returns(split, "ppo")
    if not games or not set(games) <= set(own):
        return None
    return Printed(100 * float(np.mean([own[g] / ppo[g] for g in games])), None)


def aggregates(board: Board, labels: list[str]) -> tuple[dict[str, dict[str, Interval]], list[str], list[str]]:
    """Each method's metrics of min-max normalised returns on unseen levels; the games; who lacks some of them."""
    kept, games, left = board.fair(labels, "test", [g for g in board.games if g in GAMES])

    def compute(label: str) -> dict[str, Interval]:
        scores = min_max(board.scores(label, "test", games), board.ranges)
        return {name: interval(metric, scores) for name, metric in METRICS.items()}

    found = {label: board.once(("aggregates", label, *games), partial(compute, label)) for label in kept}
    return found, games, left


def papers_aggregate(board: Board, label: str, metric: str, games: list[str]) -> float | None:
    """Of the game means that the paper prints; IQM and gap need its single runs, which are not printed."""
    means = paper.returns("test", label)
    if metric not in ("mean", "median") or not set(games) <= set(means):
        return None
    printed = {g: np.array([means[g]]) for g in games}
    return float({"mean": mean, "median": median}[metric](min_max(printed, board.ranges)))


def improvement(board: Board, label: str, over: str) -> Interval | None:
    """The probability of improvement over the games that both have finished."""
    games = [g for g in board.games if len(board.finals(label, g, "test")) and len(board.finals(over, g, "test"))]
    if not games:
        return None

    def compute() -> Interval:
        return improvement_interval(board.scores(label, "test", games), board.scores(over, "test", games))

    return board.once(("improvement", label, over), compute)


def profiles(board: Board, labels: list[str]) -> tuple[NDArray[Any], dict[str, Band]]:
    """Some min-max normalised returns, and the share of each method's runs above them."""
    kept, games, _ = board.fair(labels, "test", [g for g in board.games if g in GAMES])
    if not kept:
        return np.empty(0), {}
    scores = {label: min_max(board.scores(label, "test", games), board.ranges) for label in kept}
    every = np.concatenate([s for of_label in scores.values() for s in of_label.values()])
    taus = np.linspace(every.min(), every.max(), 51)
    return taus, {
        label: board.once(("profile", label, *kept, *games), partial(profile_band, scores[label], taus))
        for label in kept
    }


def sample_efficiency(board: Board, labels: list[str]) -> dict[str, tuple[NDArray[Any], Band]]:
    """Method -> steps and IQM of min-max normalised returns on unseen levels, where every finished run has a point."""
    kept, games, _ = board.fair(labels, "test", [g for g in board.games if g in GAMES])
    found = {}
    for label in kept:
        runs = {game: [r for r in board.runs(label, game) if r.finished] for game in games}
        rows = {
            game: [{row["steps"]: row["test_return"] for row in r.evaluations} for r in runs[game]] for game in games
        }
        steps = sorted(set.intersection(*(set(by_step) for game in games for by_step in rows[game])))
        scores = {game: np.array([[by_step[s] for by_step in rows[game]] for s in steps], float) for game in games}
        compute = partial(curve, iqm, min_max(scores, board.ranges))
        found[label] = (np.array(steps), board.once(("efficiency", label, *games), compute))
    return found

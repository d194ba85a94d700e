"""How runs answer a statement of the paper: each measure is a difference that the paper says is positive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dcpg.envs.procgen import GAMES
from dcpg.report.comparison import Comparison, StiffnessRuns
from dcpg.report.paper import game_title, method_title
from dcpg.report.scores import denominators, improvement, named, wrong_actions
from dcpg.report.statistics import METRICS, SMALLEST, Array, Interval, Scores, contrast, difference_interval, min_max
from dcpg.runs.records import Record

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
EARLY, LATE = 0.2, 0.8  # the first and the last fifth of training
LEVEL_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)  # paper, Appendix A
STIFFER_GAMES = 12  # of 16, paper, Appendix A
Parts = list[tuple[float, Array]]  # weights and one value per seed; the difference is the sum of weight x mean


@dataclass(frozen=True)
class Found:
    """The stated difference in these runs."""

    difference: Interval
    here: str  # in the words of the claim
    seeds: int  # the fewest of one method on one game
    over: str  # the games
    verdict: str = ""  # where it does not follow from the interval


@dataclass(frozen=True)
class Needed:
    """What is missing for an answer."""

    what: str


def verdict_of(difference: Interval) -> str:
    """Whether an interval lies wholly above zero, wholly below, or neither."""
    if difference.low > 0:
        return HOLDS
    return FAILS if difference.high < 0 else OPEN


def lead(
    comparison: Comparison,
    _: StiffnessRuns,
    *,
    plus: tuple[str, ...],
    minus: tuple[str, ...],
    splits: tuple[str, ...] = ("test",),
) -> Found | Needed:
    """The difference of PPO-normalised scores, in points; with two splits, how much larger it is on the first."""
    methods, ppo = list(dict.fromkeys([*plus, *minus])), {}
    for split in splits:
        found = denominators(comparison, split)
        if found is None:
            return Needed("PPO runs of the same setting")
        ppo[split] = found.ppo
    games = _covered(comparison, [*methods, "ppo"], splits)
    lacking = _lacking(comparison, methods, games, splits)
    without = [g for g in games if any(g not in ppo[split] for split in splits)]
    if without:
        lacking = [*lacking, f"PPO on {named(without)}"]
    if lacking or not games:
        return Needed(_listed(lacking) or f"finished runs of {_listed(map(method_title, methods))}")
    parts: Parts = []
    for game in games:
        means = {split: float(np.mean(ppo[split][game])) for split in splits}
        if min(means.values()) < SMALLEST:
            return Needed(f"a positive return of PPO on {game_title(game)}")
        for sign, label in [*((1, m) for m in plus), *((-1, m) for m in minus)]:
            first, *second = (comparison.finals(label, game, split) / means[split] for split in splits)
            parts.append((sign * 100 / len(games), first - second[0] if second else first))
    difference = contrast(parts)
    return _found(difference, parts, f"Over {named(games)}", 1, " points")


def steps_to_reach(comparison: Comparison, _: StiffnessRuns, *, label: str, game: str, share: float) -> Found | Needed:
    """How much earlier than at the stated share of the steps PPG's final return on unseen levels is reached."""
    target, runs = comparison.finals("ppg", game, "test"), _finished(comparison, label, game)
    lacking = [method_title(m) for m, have in (("ppg", len(target)), (label, len(runs))) if not have]
    if lacking:
        return Needed(f"finished runs of {_listed(lacking)} on {game_title(game)}")
    reached = [_first_at(record, float(target.mean())) for record in runs]
    shares = np.array(
        [1.0 if at is None else at / record.setting.steps for at, record in zip(reached, runs, strict=True)]
    )
    found = contrast([(-1.0, shares)])
    difference = Interval(found.value + share, found.low + share, found.high + share)
    late = sum(at is None for at in reached)
    interval = f" ({max(-found.high, 0):.0%} to {min(-found.low, 1):.0%})" if len(runs) > 1 else ""
    here = f"{-found.value:.0%} of the steps{interval}"
    here += f", not reached by {late} of {len(runs)}, counted as 100%" if late else ""
    return Found(difference, here, min(len(runs), len(target)), f"On {game_title(game)}")


def _first_at(record: Record, target: float) -> int | None:
    """The steps of the first evaluation with at least this return on unseen levels."""
    return next((e.steps for e in record.evaluations if e.splits["test"].mean >= target), None)


def bias(
    comparison: Comparison, _: StiffnessRuns, *, label: str, less: str | None = None, late: bool = False
) -> Found | Needed:
    """By how much predictions lie below true values on training levels: early or late, against another method's."""
    methods = [label, *([less] if less else [])]
    values = {m: _by_game(comparison, m, partial(_below, late=late)) for m in methods}
    games = [g for g in GAMES if any(g in values[m] for m in methods)]
    lacking = {m: [g for g in games if g not in values[m]] for m in methods}
    if not games or any(lacking.values()):
        each = [f"{method_title(m)} on {named(without)}" for m, without in lacking.items() if without]
        return Needed(_listed(each) or f"finished runs of {_listed(map(method_title, methods))}")
    signs = zip(methods, (1, -1), strict=False)
    parts = [(sign / len(games), values[m][g]) for m, sign in signs for g in games]
    difference = contrast(parts)
    return _found(difference, parts, f"Over {named(games)}")


def recovers(comparison: Comparison, _: StiffnessRuns, *, label: str) -> Found | Needed:
    """By how much the distance between predicted and true values shrinks from early to late training."""

    def shrinks(record: Record) -> float | None:
        early, late = _below(record, late=False), _below(record, late=True)
        return None if early is None or late is None else abs(early) - abs(late)

    values = _by_game(comparison, label, shrinks)
    if not values:
        return Needed(f"finished runs of {method_title(label)}")
    parts = [(1 / len(values), v) for v in values.values()]
    difference = contrast(parts)
    return _found(difference, parts, f"Over {named(list(values))}")


def _below(record: Record, late: bool) -> float | None:
    """True less predicted value on training levels, mean over the evaluations of the first or the last fifth."""
    end = record.setting.steps
    chosen = [
        e.splits["train"] for e in record.evaluations if (e.steps >= LATE * end if late else e.steps <= EARLY * end)
    ]
    return float(np.mean([s.true_value - s.predicted_value for s in chosen])) if chosen else None


def _by_game(comparison: Comparison, label: str, of: Callable[[Record], float | None]) -> dict[str, Array]:
    found = {g: [of(record) for record in _finished(comparison, label, g)] for g in comparison.games if g in GAMES}
    return {g: np.array(values, float) for g, values in found.items() if values and None not in values}


def falls(_: Comparison, measured: StiffnessRuns, *, label: str) -> Found | Needed:
    """How much stiffer values are with the fewest training levels than with the most."""
    cells = _stiffness(measured)
    parts: Parts = []
    games = []
    for game in GAMES:
        counts = sorted(n for m, g, n in cells if (m, g) == (label, game))
        if len(counts) > 1:
            games.append(game)
            parts += [(1.0, cells[label, game, counts[0]]), (-1.0, cells[label, game, counts[-1]])]
    if not games:
        return Needed(f"stiffness of {method_title(label)} with two numbers of training levels")
    parts = [(weight / len(games), values) for weight, values in parts]
    difference = contrast(parts)
    return _found(difference, parts, f"Over {named(games)}")


def stiffer(_: Comparison, measured: StiffnessRuns) -> Found | Needed:
    """In how many games DCPG is stiffer than PPG for every number of training levels, less the paper's twelve."""
    cells = _stiffness(measured)
    counts = {g: [n for n in LEVEL_COUNTS if ("ppg", g, n) in cells and ("dcpg", g, n) in cells] for g in GAMES}
    if any(counts[g] != list(LEVEL_COUNTS) for g in GAMES):
        return Needed("stiffness of PPG and DCPG on all 16 games with 1, 2, 5, 10, 20, 50, 100 and 200 levels")
    sure, denied, every = 0, 0, list[Array]()
    for game in GAMES:
        pairs = [(cells["dcpg", game, n], cells["ppg", game, n]) for n in LEVEL_COUNTS]
        every += [values for pair in pairs for values in pair]
        verdicts = [verdict_of(contrast([(1.0, dcpg), (-1.0, ppg)])) for dcpg, ppg in pairs]
        sure, denied = sure + (set(verdicts) == {HOLDS}), denied + (FAILS in verdicts)
    total = HOLDS if sure >= STIFFER_GAMES else FAILS if len(GAMES) - denied < STIFFER_GAMES else OPEN
    bounds = Interval(sure - STIFFER_GAMES, sure - STIFFER_GAMES, len(GAMES) - denied - STIFFER_GAMES)
    here = f"between {sure} and {len(GAMES) - denied} games"
    return Found(bounds, here, min(map(len, every)), "All 16 games", total)


def stiffer_on_average(_: Comparison, measured: StiffnessRuns) -> Found | Needed:
    """DCPG's stiffness less PPG's, over all games and numbers of levels that both have."""
    cells = _stiffness(measured)
    shared = [(g, n) for m, g, n in cells if m == "dcpg" and ("ppg", g, n) in cells]
    if not shared:
        return Needed("stiffness of PPG and DCPG on one game with the same number of training levels")
    parts = [(sign / len(shared), cells[m, g, n]) for g, n in shared for m, sign in (("dcpg", 1), ("ppg", -1))]
    difference = contrast(parts)
    games = [g for g in GAMES if any(g == game for game, _ in shared)]
    return _found(difference, parts, f"Over {named(games)}")


def _stiffness(measured: StiffnessRuns) -> dict[tuple[str, str, int], Array]:
    """(method, game, number of levels) -> the mean stiffness of each seed's run."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for record in measured.records:
        mean = float(np.mean([one.stiffness for one in record.stiffness]))
        found.setdefault((record.label, record.game, record.setting.level_count), []).append(mean)
    return {cell: np.array(values) for cell, values in found.items()}


def believed(comparison: Comparison, _: StiffnessRuns, *, more: str, game: str = "bigfish") -> Found | Needed:
    """How many more wrong actions another discriminator believes than DDCPG's."""
    labels = (more, "ddcpg")
    found = {m: np.array([a["mean"] for a in wrong_actions(comparison, m, game)], float) for m in labels}
    lacking = [method_title(m) for m in labels if not len(found[m])]
    if lacking:
        return Needed(f"`dcpg analyse ood-actions` of finished runs of {_listed(lacking)} on {game_title(game)}")
    parts = [(1.0, found[more]), (-1.0, found["ddcpg"])]
    difference = contrast(parts)
    return _found(difference, parts, f"On {game_title(game)}")


def min_max_lead(comparison: Comparison, _: StiffnessRuns, *, metric: str, label: str, over: str) -> Found | Needed:
    """The difference of an aggregate of min-max normalised returns on unseen levels."""
    sides = _min_max_sides(comparison, label, over)
    if isinstance(sides, Needed):
        return sides
    x, y = (min_max(side, comparison.ranges) for side in sides)
    key = ("min-max lead", metric, label, over)
    difference = comparison.once(key, lambda: difference_interval(METRICS[metric], x, y))
    return _found(difference, [(1.0, v) for side in sides for v in side.values()], f"Over {named(list(x))}")


def likely_better(comparison: Comparison, _: StiffnessRuns, *, label: str, over: str) -> Found | Needed:
    """By how much the probability of improvement exceeds one half."""
    sides = _min_max_sides(comparison, label, over)
    if isinstance(sides, Needed):
        return sides
    chance = improvement(comparison, label, over, list(sides[0]))
    if chance is None:
        return Needed("finished runs of both methods")
    low, high, told = 0.0, 1.0, False  # without an interval it may be anything
    if chance.low is not None and chance.high is not None:
        low, high, told = chance.low, chance.high, True
    difference = Interval(chance.value - 0.5, low - 0.5, high - 0.5)
    seeds = min(len(v) for side in sides for v in side.values())
    interval = f" ({low:.2f} to {high:.2f})" if told else ""
    return Found(difference, f"probability {chance.value:.2f}{interval}", seeds, f"Over {named(list(sides[0]))}")


def _min_max_sides(comparison: Comparison, label: str, over: str) -> tuple[Scores, Scores] | Needed:
    """The final returns of both methods, on every game that one of them has."""
    games = _covered(comparison, (label, over), ("test",))
    lacking = _lacking(comparison, [label, over], games, ("test",))
    if lacking or not games:
        return Needed(_listed(lacking) or f"finished runs of {method_title(label)} and {method_title(over)}")
    return comparison.scores(label, "test", games), comparison.scores(over, "test", games)


# -- what measures share


def _finished(comparison: Comparison, label: str, game: str) -> list[Record]:
    return [record for record in comparison.runs(label, game) if record.finished]


def _covered(comparison: Comparison, methods: Iterable[str], splits: tuple[str, ...]) -> list[str]:
    """Every game of Procgen on which one of the methods has finished."""
    return [
        g for g in comparison.games
        if g in GAMES and any(len(comparison.finals(m, g, split)) for m in methods for split in splits)
    ]  # fmt: skip


def _lacking(comparison: Comparison, methods: list[str], games: list[str], splits: tuple[str, ...]) -> list[str]:
    found = {m: [g for g in games if not all(len(comparison.finals(m, g, s)) for s in splits)] for m in methods}
    return [f"{method_title(m)} on {named(without)}" for m, without in found.items() if without]


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _found(difference: Interval, parts: Parts, over: str, digits: int = 2, unit: str = "") -> Found:
    seeds = min(len(values) for _, values in parts)
    return Found(difference, _shown(difference, seeds, digits, unit), seeds, over)


def _shown(found: Interval, seeds: int, digits: int = 2, unit: str = "") -> str:
    """A number with its interval; a single seed has none."""
    interval = f" ({found.low:+.{digits}f} to {found.high:+.{digits}f})" if seeds > 1 else ""
    return f"{found.value:+.{digits}f}{unit}{interval}"

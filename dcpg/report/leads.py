"""By how much each method's final return exceeds PPO's, game by game."""

from __future__ import annotations

from dcpg.report.claims import SEEDS
from dcpg.report.comparison import Array, Comparison
from dcpg.report.measures import FAILS, HOLDS, OPEN, verdict_of
from dcpg.report.paper import game_title, method_title
from dcpg.report.statistics import contrast
from dcpg.report.text_table import TextTable
from dcpg.storage.rows import SPLITS

LEADS = "leads"
OVER = "ppo"
GAP = "gap"
LEVELS = SPLITS | {GAP: "gap: training less unseen"}
VERDICTS = {HOLDS: "higher", FAILS: "lower", OPEN: "not decided"}
HEAD = ("levels", "game", "method", "return", "PPO's", "difference from PPO (95% interval)", "seeds", "verdict")
NOTE = (
    "Mean final returns over seeds, and their difference from PPO's with a 95% interval by Welch's t. Higher and lower "
    "mean that the interval lies on one side of zero; not decided, that it does not, or that there are fewer than "
    f"{SEEDS} seeds of either method."
)


def leads_table(comparison: Comparison) -> TextTable | None:
    """Every method that has finished beside PPO on a game; None if there is none."""
    rows = [
        row
        for levels in ("test", "train", GAP)
        for game in comparison.games
        for label in comparison.labels
        if label != OVER and (row := _row(comparison, levels, game, label))
    ]
    note = " ".join(filter(None, (NOTE, f"{comparison.sentence()}.", comparison.caption)))
    return TextTable(LEADS, "Leads over PPO", note, HEAD, rows) if rows else None


def _row(comparison: Comparison, levels: str, game: str, label: str) -> tuple[str, ...] | None:
    own, ppo = _finals(comparison, levels, game, label), _finals(comparison, levels, game, OVER)
    seeds = min(len(own), len(ppo))
    if not seeds:
        return None
    found = contrast([(1.0, own), (-1.0, ppo)])
    difference = _signed(found.value) + (f" ({_signed(found.low)} to {_signed(found.high)})" if seeds > 1 else "")
    verdict = VERDICTS[verdict_of(found) if seeds >= SEEDS else OPEN]
    counts = f"{len(own)}" if len(own) == len(ppo) else f"{len(own)} and {len(ppo)}"
    means = (f"{values.mean():.2f}" for values in (own, ppo))
    return LEVELS[levels], game_title(game), method_title(label), *means, difference, counts, verdict


def _signed(number: float) -> str:
    return f"{round(number, 2) + 0.0:+.2f}"  # never -0.00


def _finals(comparison: Comparison, levels: str, game: str, label: str) -> Array:
    """A method's final returns, or gaps, on a game, [seeds]."""
    return comparison.gaps(label, game) if levels == GAP else comparison.finals(label, game, levels)

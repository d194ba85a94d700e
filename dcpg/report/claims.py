"""The statements of the paper that runs can answer: what it says, what these runs have, and whether it holds.

Every statement is a difference that the paper says is positive. It holds if the 95% interval of the difference lies
above zero, and does not hold if the interval lies below. Otherwise, and with fewer than three seeds, these runs cannot
tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dcpg.envs.procgen import GAMES
from dcpg.report import paper
from dcpg.report.comparison import Comparison, StiffnessRuns
from dcpg.report.measures import (
    OPEN,
    STIFFER_GAMES,
    Found,
    Needed,
    believed,
    bias,
    falls,
    lead,
    likely_better,
    min_max_lead,
    recovers,
    steps_to_reach,
    stiffer,
    stiffer_on_average,
    verdict_of,
)
from dcpg.report.paper import game_title, method_title
from dcpg.report.text_table import TextTable
from dcpg.storage.rows import SPLITS

SEEDS = 3  # fewer have no interval worth the name


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and how runs answer it."""

    name: str
    where: str
    says: str
    paper: str  # its own figure
    measure: Callable[[Comparison, StiffnessRuns], Found | Needed]


@dataclass(frozen=True)
class Answer:
    """A claim with what these runs say about it."""

    claim: Claim
    verdict: str
    here: str
    seeds: int
    note: str  # the games, or what would be needed


def answers(comparison: Comparison, measured: StiffnessRuns) -> list[Answer]:
    """What these runs say about every claim, in the order of the paper."""
    return [answer(claim, comparison, measured) for claim in CLAIMS]


def answer(claim: Claim, comparison: Comparison, measured: StiffnessRuns) -> Answer:
    """What these runs say about one claim."""
    found = claim.measure(comparison, measured)
    if isinstance(found, Needed):
        return Answer(claim, OPEN, "-", 0, f"Needs {found.what}.")
    if found.seeds < SEEDS:
        return Answer(claim, OPEN, found.here, found.seeds, f"{found.over}. Needs {SEEDS} seeds.")
    verdict = found.verdict or verdict_of(found.difference)
    more = " Needs more seeds: the interval includes both answers." if verdict == OPEN and not found.verdict else ""
    return Answer(claim, verdict, found.here, found.seeds, f"{found.over}.{more}")


# -- the statements


def _papers_lead(plus: tuple[str, ...], minus: tuple[str, ...], splits: tuple[str, ...]) -> str:
    def score(method: str) -> float:
        first, *second = (paper.printed()[split, "ppo_normalised_score", "all", method].mean for split in splits)
        return first - second[0] if second else first

    return f"{sum(map(score, plus)) - sum(map(score, minus)):+.1f} points"


def _over(where: str, one: str, other: str, split: str = "test") -> Claim:
    says = f"{method_title(one)} has a higher PPO-normalised score than {method_title(other)} on {SPLITS[split]}"
    printed = _papers_lead((one,), (other,), (split,))
    measure = partial(lead, plus=(one,), minus=(other,), splits=(split,))
    return Claim(f"{one}-over-{other}-{split}", where, says, printed, measure)


def _sooner(label: str, game: str, share: float) -> Claim:
    says = f"{method_title(label)} reaches PPG's final return on unseen levels of {game_title(game)} early"
    measure = partial(steps_to_reach, label=label, game=game, share=share)
    return Claim(f"{label}-reaches-ppg-{game}", "Section 5.1", says, f"{share:.0%} of the steps", measure)


def _papers_believed(more: str) -> str:
    one, other = (paper.printed()["train", "ood_actions", "bigfish", m].mean for m in (more, "ddcpg"))
    return f"{one - other:+.2f} ({one:.2f} against {other:.2f})"


CLAIMS: tuple[Claim, ...] = (
    Claim("ppg-stiffness-falls", "Section 3.1, Figures 2 and 7", "With more training levels, PPG's value is less stiff",
          "falls in most games", partial(falls, label="ppg")),
    Claim("dcpg-stiffer", "Section 4.2, Figures 2 and 7", "DCPG's value is stiffer than PPG's", "higher",
          stiffer_on_average),
    Claim("dcpg-stiffer-everywhere", "Appendix A",
          "DCPG is stiffer than PPG for every number of levels in 12 of 16 games",
          f"{STIFFER_GAMES} of {len(GAMES)} games", stiffer),
    _over("Section 3.2, Table 3", "ppg+dr", "ppg", "train"), _over("Section 3.2, Table 3", "ppg+dr", "ppg"),
    _over("Section 3.2, Table 3", "ppg+ar", "ppg", "train"), _over("Section 3.2, Table 3", "ppg+ar", "ppg"),
    Claim("ppg+dr-stays-low", "Section 3.2, Figures 3 and 9",
          "At the end of training, PPG+DR predicts less than the true value", "below",
          partial(bias, label="ppg+dr", late=True)),
    Claim("ppg+ar-stays-low", "Section 3.2, Figures 3 and 10",
          "At the end of training, PPG+AR predicts less than the true value", "below",
          partial(bias, label="ppg+ar", late=True)),
    Claim("dcpg-starts-low", "Section 4.2, Figures 4 and 8",
          "Early in training, DCPG predicts less than the true value", "below", partial(bias, label="dcpg")),
    Claim("dcpg-starts-lower", "Section 4.2", "Early in training, DCPG underestimates more than PPG does", "lower",
          partial(bias, label="dcpg", less="ppg")),
    Claim("dcpg-recovers", "Section 4.2, Figures 4 and 8",
          "DCPG's predictions come closer to the true value during training", "closer in most games",
          partial(recovers, label="dcpg")),
    *(_over("Section 5.1, Table 1", "dcpg", other) for other in ("ppo", "ucb-drac", "plr", "daac", "ppg")),
    *(_over("Section 5.1, Table 1", "ddcpg", other) for other in ("ppo", "ucb-drac", "plr", "daac", "ppg", "dcpg")),
    *(_over("Appendix E, Table 7", one, other, "train") for one in ("dcpg", "ddcpg") for other in ("ppo", "ppg")),
    Claim("dcpg-generalises", "Tables 1 and 7", "DCPG's lead over PPG is larger on unseen than on training levels",
          _papers_lead(("dcpg",), ("ppg",), ("test", "train")),
          partial(lead, plus=("dcpg",), minus=("ppg",), splits=("test", "train"))),
    Claim("ddcpg-generalises", "Tables 1 and 7", "DDCPG's lead over PPG is larger on unseen than on training levels",
          _papers_lead(("ddcpg",), ("ppg",), ("test", "train")),
          partial(lead, plus=("ddcpg",), minus=("ppg",), splits=("test", "train"))),
    *(_sooner(label, game, share)
      for game, share in (("bigfish", 0.2), ("climber", 0.2), ("dodgeball", 0.1), ("miner", 0.1))
      for label in ("dcpg", "ddcpg")),
    _over("Section 5.2, Table 8", "separate-dcpg", "ppg"),
    _over("Appendix F, Table 8", "separate-dcpg", "ppg", "train"),
    _over("Appendix F, Table 8", "dcpg", "separate-dcpg"),
    *(_over("Section 5.3, Table 2", "ddcpg", other) for other in ("dcpg+f", "dcpg+i", "dcpg+fi")),
    _over("Appendix F, Table 11", "dppg", "ppg"), _over("Appendix F, Table 11", "ddcpg", "dppg"),
    Claim("dynamics-help-dcpg-more", "Appendix F, Table 11", "Learning dynamics adds more to DCPG than to PPG",
          _papers_lead(("ddcpg", "ppg"), ("dcpg", "dppg"), ("test",)),
          partial(lead, plus=("ddcpg", "ppg"), minus=("dcpg", "dppg"))),
    *(Claim(f"{more}-believes-more", "Appendix F, Table 10",
            f"{method_title(more)} believes more wrong actions than DDCPG does", _papers_believed(more),
            partial(believed, more=more)) for more in ("dcpg+f", "dcpg+fi")),
    *(Claim(f"{label}-{metric}", "Appendix G, Figure 15",
            f"{method_title(label)} has a higher {name} of min-max scores than PPG", "higher",
            partial(min_max_lead, metric=metric, label=label, over="ppg"))
      for label in ("dcpg", "ddcpg") for metric, name in (("median", "median"), ("iqm", "IQM"), ("mean", "mean"))),
    *(Claim(f"{label}-improves", "Appendix G, Figure 16", f"A run of {method_title(label)} likely beats one of PPG",
            "more likely than not", partial(likely_better, label=label, over="ppg")) for label in ("dcpg", "ddcpg")),
    _over("Appendix D, Table 6", "daac", "idaac"), _over("Appendix D, Table 6", "daac", "idaac", "train"),
)  # fmt: skip


# -- as files


HEAD = ("claim", "where", "the paper", "these runs (95% interval)", "seeds", "verdict", "games, or what is needed")
NOTE = (
    "Holds: the 95% interval of the difference (Welch's t over seeds; for Appendix G a stratified bootstrap, as there) "
    "lies wholly on the paper's side. Does not hold: wholly on the other. Everything else, and fewer than "
    f"{SEEDS} seeds: cannot be told."
)


CLAIMS_TABLE = "claims"


def claims_table(told: list[Answer], caption: str) -> TextTable:
    """The answers as a table of text; `caption` says what sets the runs apart from the paper's."""
    rows = [(a.claim.says, a.claim.where, a.claim.paper, a.here, str(a.seeds or "-"), a.verdict, a.note) for a in told]
    note = " ".join(filter(None, (NOTE, caption)))
    return TextTable(CLAIMS_TABLE, "Claims of the paper", note, HEAD, rows, [a.claim.name for a in told])

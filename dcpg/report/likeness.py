"""What sets runs apart from the paper's, so that nothing of theirs is taken for a result of the paper's setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from dcpg.config.command import written as as_text
from dcpg.config.schema import OWN
from dcpg.envs.library import known_pictures
from dcpg.methods import METHODS
from dcpg.report import paper
from dcpg.runs.comparable import PAPERS_PRECISION, PRECISION, papers_setting
from dcpg.runs.records import Record
from dcpg.settings import dotted
from dcpg.text import printable

STEPS, PICTURES = "steps", "pictures"
PAPERS_STIFFNESS_STEPS = 8_000_000  # Appendix A
PAPERS_ROLLOUT = 64 * 256  # steps
PAPERS_LIBRARY, DRAWN_BY = "OpenAI's procgen", "procgen-gym 0.1.1"  # the second draws what the first does


@dataclass(frozen=True)
class Difference:
    """A setting that is not the paper's."""

    name: str
    here: str
    paper: str
    runs: int  # that have it
    of: int  # those whose method has the setting

    def __str__(self) -> str:
        some = f" in {self.runs} of {self.of} runs" if self.runs < self.of else ""
        return f"{self.name}={self.here} instead of {self.paper}{some}"


def differences(records: Iterable[Record], steps: int = paper.STEPS) -> list[Difference]:
    """Every setting in which runs on Procgen differ from the paper's, variants of methods aside: their names say it.

    `steps` are those of the paper's runs, which were floored to whole rollouts as runs here are.
    """
    procgen = [record for record in records if not record.config.game.startswith(OWN)]
    counts: Counter[tuple[str, str, str]] = Counter()
    having: Counter[str] = Counter()
    for record in procgen:
        counts.update(_of(record, steps))
        having.update(list(_of_the_method(record.config.method)))  # a mapping would add its values
    return [Difference(*what, runs, having.get(what[0], len(procgen))) for what, runs in counts.items()]


def _of(record: Record, steps: int) -> list[tuple[str, str, str]]:
    """(setting, its value, the paper's) of one run."""
    usual, mine = papers_setting(), record.setting
    papers = dict((*usual.levels, *usual.rest)) | _of_the_method(record.config.method)
    whole = steps // PAPERS_ROLLOUT * PAPERS_ROLLOUT
    found = [(STEPS, f"{mine.steps:,}", f"{steps:,}")] if mine.steps != whole else []
    own = {name: value for name, value, _ in dotted(record.config)}
    for name, value in (*mine.levels, *mine.rest):
        if own.get(name, value) != value:  # not what the preset says: the name of the variant has it
            continue
        if name in papers and papers[name] != value:
            found.append((name, printable(as_text(value)), as_text(papers[name])))
    precision = record.config.machine.precision
    if precision != PAPERS_PRECISION and record.usual_precision in ("", precision):  # else the variant's name has it
        found.append((PRECISION, precision, PAPERS_PRECISION))
    drawn = known_pictures()[DRAWN_BY].get(f"{record.config.game} {record.config.env.mode}")
    for library in record.written.libraries:
        if library["pictures"] != drawn:
            found.append((PICTURES, printable(library["library"]), PAPERS_LIBRARY))
            break
    return found


@cache
def _of_the_method(name: str) -> dict[str, Any]:
    """The paper's values of the settings that a preset may change in a method; none for a plugin's."""
    values = dotted(METHODS[name].settings()) if name in METHODS else []
    return {f"algorithm.{setting}": value for setting, value, _ in values}

"""One analysis of many runs: what is there already is not made again, and a run that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dcpg.analysis.analyse import DoesNotApply, analyse, kept_result, options_of
from dcpg.config.environments import EnvMaker
from dcpg.errors import DcpgError


@dataclass(frozen=True)
class Analysed:
    """What became of one run."""

    run: Path
    state: Literal["analysed", "there", "left out", "failed"]  # "left out": the analysis is not for such runs
    result: dict[str, Any] | None = None  # of an analysis that was made, or was there
    error: Exception | None = None  # why there is none

    @property
    def reason(self) -> str:
        return str(self.error) if self.error is not None else ""

    @property
    def failed(self) -> bool:
        return self.state == "failed"

    def to_json(self) -> dict[str, Any]:
        more = {"result": self.result} if self.result is not None else {"reason": self.reason}
        return {"run": str(self.run), "state": self.state, **more}


def analyse_each(
    runs: Sequence[Path],
    analysis: str,
    given: Mapping[str, int | None],
    maker_of: Callable[[Path], EnvMaker | None],
    at: int | None = None,
    again: bool = False,
) -> Iterator[Analysed]:
    """Analyse one run after the other; with `again`, also those that have the same analysis of the same weights."""
    options_of(analysis, given, at)  # what is wrong for all is refused here
    for run in runs:
        try:
            found = None if again else kept_result(run, analysis, given, at)
            if found is not None:
                yield Analysed(run, "there", found)
            else:
                yield Analysed(run, "analysed", analyse(run, analysis, given, at, maker_of(run)))
        except DoesNotApply as error:
            yield Analysed(run, "left out", error=error)
        except (DcpgError, OSError) as error:
            yield Analysed(run, "failed", error=error)

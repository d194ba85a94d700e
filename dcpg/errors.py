"""The errors of the package: each has a one-sentence message for the user and an exit code."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from dcpg.text import one_line, printable

MOST_CAUSES = 20  # of an error that are looked at


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the error that it came of, and so on."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def short(error: BaseException) -> str:
    """What went wrong in somebody's code, and where, on one line."""
    *_, last = traceback.extract_tb(error.__traceback__) or [None]
    where = f" ({Path(last.filename).name}, line {last.lineno})" if last is not None else ""
    return f"{type(error).__name__}: {printable(error)}{where}"


class DcpgError(Exception):
    """A failure that is explained in one sentence and ends the command with `exit_code`.

    The sentence may quote files that are anybody's; whoever prints it, Python itself too, prints one line of text.
    """

    exit_code = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


class SweepIncomplete(DcpgError):
    """Some runs of a sweep failed; the others are done."""


class BadInput(DcpgError):
    """The user's input is wrong; nothing was started."""

    exit_code = 2


class Unavailable(BadInput):
    """A file cannot be read now, which says nothing about what it holds: the storage may be away for a moment."""


class InUse(BadInput):
    """Another process is using the directory."""


class NumericalFailure(DcpgError):
    """A reward, loss or gradient was not finite; the optimiser's step was not taken."""

    exit_code = 3


class NoValidCheckpoint(DcpgError):
    """The run has no checkpoint that passes verification."""

    exit_code = 4


class EnvironmentHung(DcpgError):
    """The environment did not answer in time."""

    exit_code = 5


class StorageFailed(DcpgError):
    """Writing to the disk failed repeatedly."""

    exit_code = 6


class OutOfMemory(DcpgError):
    """There was no memory left; a second attempt without more memory would fail too."""

    exit_code = 7


class RankLost(DcpgError):
    """Another process of the run is gone; this one ends without saving."""

    exit_code = 8


class Stopped(DcpgError):
    """A signal asked the run to stop; it was saved and can be resumed."""

    exit_code = 75


class Notice(UserWarning):
    """A sentence for the user about something that stops nothing; commands print it without a place in the code."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for an unknown name, which suggests the closest known one."""
    name = printable(name)  # comparing a long one takes time
    names = sorted(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    by_suffix = [n for n in names if n.rsplit(".", 1)[-1] == name]
    guess = by_suffix[0] if by_suffix else lowered[close[0]] if close else None
    hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(names[:20])}."
    return BadInput(f"Unknown {kind} {name!r}; {hint}")

"""Text for messages: numbers, names from files, and whether to name commands or Python calls."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import sys
from collections.abc import Iterable
from typing import TextIO

LONGEST = 300  # characters of a name, or of a value from a file in a sentence
LONGEST_SOURCE = 2_000_000  # of where code was written: a path, or a function with the values that it was given
LONGEST_DRAWN = 100  # of a name in a figure

_typed_a_command = False


def speak_to_the_command_line() -> None:
    """Let messages name commands and options instead of Python calls, from now on in this process.

    An output whose encoding lacks a character gets its number instead.
    """
    global _typed_a_command  # noqa: PLW0603
    _typed_a_command = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def for_audience(command: str, python: str) -> str:
    """One of two ways to say the same: with commands and options, or with Python calls."""
    return command if _typed_a_command else python


def given(name: str, value: object) -> str:
    """How a setting is given: `--set NAME=VALUE`, or in Python's `settings`."""
    return for_audience(f"--set {name}={value}", f"settings={{{name!r}: {value!r}}}")


def option(name: str) -> str:
    """How an option is named: `--NAME`, or `NAME=` in Python."""
    return for_audience(f"--{name}", f"{name.replace('-', '_')}=")


def resume_call(directory: object) -> str:
    """What resumes a run in one process."""
    return for_audience(f"`dcpg resume {directory}`", f"dcpg.resume({str(directory)!r})")


def duration(seconds: float) -> str:
    """A duration in seconds, minutes, hours or days, whichever fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def counted(number: int, noun: str) -> str:
    """A number and what it counts, in the singular for one: 1 run, 12,000 runs, 2 processes, 3 analyses."""
    many = f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"
    plural = f"{noun[:-2]}es" if noun.endswith("sis") else many
    return f"{number:,} {noun if number == 1 else plural}"


def gigabytes(size: float) -> str:
    """Bytes in GB, with two decimals below one."""
    return f"{size / 1e9:.2f} GB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def one_line(text: object) -> str:
    """Text that may hold anybody's words, without what steers a terminal or forges a line.

    Control characters, line ends, characters that turn text around or have no width, and halves of characters become
    question marks.
    """
    found = str(text)
    return found if found.isprintable() else "".join(c if c.isprintable() else "?" for c in found)


def printable(text: object, longest: int = LONGEST) -> str:
    """A name or a value from a file that may be anybody's, for a sentence: on one line, and cut if it is long."""
    found = str(text)
    return one_line(found if len(found) <= longest else f"{found[: longest - 3]}...")


def is_name(value: object) -> bool:
    """Whether a value from a file that may be anybody's can be a name: text of some length, and of whole characters."""
    return isinstance(value, str) and len(value) <= LONGEST and not any("\ud800" <= c <= "\udfff" for c in value)


def say(*lines: object, to: TextIO | None = None, flush: bool = False) -> None:
    """Print lines for people, to standard output if no other is given. All that commands print goes through here."""
    print("\n".join(map(one_line, lines)), file=to or sys.stdout, flush=flush)


def say_last(*lines: object) -> None:
    """Say how work ended that is done: it has not failed because nobody can read this."""
    with contextlib.suppress(OSError):
        say(*lines)


_TEX = str.maketrans(
    {"\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "_": "\\_", "#": "\\#", "$": "\\$", "{": "\\{", "}": "\\}",
     "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$",
     "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}
)  # fmt: skip


def tex(text: str) -> str:
    """One line of text with LaTeX's special characters escaped."""
    return one_line(text).translate(_TEX)


def drawn(text: object, longest: int = LONGEST_DRAWN) -> str:
    """One line of text for a figure, without its middle if it is long: that takes time and room.

    Long names often differ at their ends. matplotlib takes what is between two $ for mathematics.
    """
    found = str(text)
    if len(found) > longest:
        end = (longest - 3) // 2
        found = f"{found[: longest - 3 - end]}...{found[-end:]}"
    return one_line(found).replace("$", "\\$")


# what a spreadsheet takes for a formula, also behind a semicolon: it separates cells where the comma is a decimal one
_FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d+)?(e[+-]?\d+)?)?")  # or the sign alone, where there is none


def csv_cell(value: object) -> str:
    """One line of text that a spreadsheet shows as it is: an apostrophe stands before what it would compute.

    Numbers stay numbers.
    """
    found = one_line(value)
    return found if _NUMBER.fullmatch(found) else _FORMULA.sub(r"\1'", found)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows of cells as the contents of a CSV file. All such files are made here."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([csv_cell(value) for value in row] for row in rows)
    return out.getvalue()


# with numbers where a backslash does not do: tags would still look like tags, and addresses still become links
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_[]|~#$"} | {c: f"&#{ord(c)};" for c in "<>&@"})


def markdown(text: object) -> str:
    """One line of text that Markdown shows as it is, within a line or in the cell of a table."""
    return one_line(text).translate(_MARKDOWN).replace("://", "&#58;//").replace("www.", "www&#46;")


def markdown_code(text: object) -> str:
    """One line as code in Markdown; as mere text if it holds what ends code, a cell or a tag."""
    found = one_line(text)
    return markdown(found) if not found.strip() or set(found) & set("`<>&|") else f"`{found}`"


def markdown_block(language: str, text: str) -> str:
    """Lines of code in Markdown. The fence is longer than any within the text, so that nothing in it ends the block."""
    lines = [one_line(line) for line in text.split("\n")]
    fence = "`" * max(3, 1 + max(len(run) for run in re.findall("`*", text)))
    return "\n".join([f"{fence}{language}", *lines, fence])

"""The command `dcpg report`, and what it prints."""

from __future__ import annotations

import difflib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcpg.cli.options import app
from dcpg.errors import BadInput, unknown
from dcpg.text import counted, say

if TYPE_CHECKING:
    from dcpg.report.write import Report


class Ranges(StrEnum):
    """Sources of the lowest and highest returns for min-max normalised scores."""

    rliable = "rliable"
    procgen = "procgen"


@app.command()
def report(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... [NAME...]",
            help="Runs or folders of runs, then names such as table1, figure4, leads, grid or claims.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write the report to.")] = Path("report"),
    ranges: Annotated[
        Ranges,
        typer.Option(help="Lowest and highest returns: of rliable, or of the Procgen paper (jumper, leaper)."),
    ] = Ranges.rliable,
    bands: Annotated[
        bool, typer.Option("--bands", help="Show deviations over seeds in the figures of values too.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on 127.0.0.1 and refresh it while runs are training.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port for --watch; 0 chooses a free one.", min=0, max=65_535)] = 8750,
) -> None:
    """Make the paper's tables and figures, and a web page, from finished and unfinished runs.

    Writes report.html (one file, works offline), tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and report.json.
    If tables or figures are named, only these are written, and report.json lists them.

    Example:  dcpg report runs table1 figure4 --out paper
    """
    from dcpg import api
    from dcpg.report.write import NAMES

    names = [word for word in given if word in NAMES and not Path(word).is_dir()]
    directories = [Path(word) for word in given if word not in names]
    for word in map(str, directories):
        resembled = "/" not in word and difflib.get_close_matches(word.lower(), NAMES, n=1, cutoff=0.7)
        if resembled and not Path(word).exists():  # any other word is a directory that does not exist
            raise unknown("run, table or figure", word, NAMES)
    if not directories:
        raise BadInput("Name at least one run or folder of runs, for example: dcpg report runs table1")
    if not watch:
        print_report(_made(directories, out=out, names=names, ranges=ranges.value, bands=bands), out)
        return
    if names:
        raise BadInput("--watch shows the whole page; leave the names out.")
    api.watch_report(*directories, out=out, ranges=ranges.value, port=port)


def _made(directories: list[Path], **options: Any) -> Report:
    from dcpg import api
    from dcpg.cli.report_display import ReportDisplay
    from dcpg.training.display import Screen

    display = ReportDisplay(Screen(stderr=True))
    display.open(f"Report on {', '.join(map(str, directories))}")
    try:
        made = api.report(*directories, **options, tell=display.tell)
        display.tell("done", 1, 1)
        return made
    finally:
        display.close()


def print_report(made: Report, out: Path) -> None:
    """Print what was written, what was left out and why, and what is missing."""
    runs, finished = made.comparison.records, sum(record.finished for record in made.comparison.records)
    counts = f"{finished} finished, {len(runs) - finished} unfinished"
    say(f"{counted(len(runs), 'run')} ({made.comparison.sentence()}): {counts}.")
    if made.comparison.caption:
        say(made.comparison.caption)
    if made.tables:
        say(f"Tables: {', '.join(made.tables)}")
    if made.figures:
        say(f"Figures: {', '.join(made.figures)}")
    for name, other in made.same.items():
        say(f"note: {name} is left out: with these runs it is the same picture as {other}")
    for problem in made.problems:
        say(f"note: {problem.path}: {problem.text}")
    if made.version:
        commands = sum(len(entry.commands) + entry.more for entry in made.missing)
        if commands:
            things = counted(len(made.missing), "thing")
            them = "it" if len(made.missing) == 1 else "them"
            say(f"Missing: {things}; the page lists the {counted(commands, 'command')} that would make {them}.")
        say(f"Page: {out / 'report.html'}")
    else:
        say(f"In: {out}")

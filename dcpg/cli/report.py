"""`dcpg report`."""

from __future__ import annotations

import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcpg.cli.options import app
from dcpg.errors import BadInput, unknown

if TYPE_CHECKING:
    from dcpg.report.write import Report


class Ranges(StrEnum):
    """Whose lowest and highest returns min-max normalised scores use."""

    rliable = "rliable"
    procgen = "procgen"


@app.command()
def report(
    given: Annotated[
        list[str],
        typer.Argument(metavar="DIR... [NAME...]", help="Runs or folders of runs; then names such as table1, figure4."),
    ],
    out: Annotated[Path, typer.Option(help="Where the report is written.")] = Path("report"),
    ranges: Annotated[
        Ranges, typer.Option(help="Lowest and highest returns: rliable's, or the Procgen paper's (jumper, leaper).")
    ] = Ranges.rliable,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on 127.0.0.1 and refresh it while runs go on.")
    ] = False,
    port: Annotated[int, typer.Option(help="--watch: the port; 0 takes a free one.", min=0, max=65_535)] = 8750,
) -> None:
    """Make the paper's tables and figures, and a page, from runs: finished or still going on.

    Writes report.html (one file, no network), tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and report.json.
    Names make single ones and leave the page out.

    Example:  dcpg report runs table1 figure4 --out paper
    """
    from dcpg.report.statistics import PROCGEN_RANGES, RANGES
    from dcpg.report.write import NAMES, make

    names = [word for word in given if word in NAMES and not Path(word).is_dir()]
    directories = [Path(word) for word in given if word not in names]
    for word in map(str, directories):
        if not Path(word).exists() and "/" not in word:
            raise unknown("run, table or figure", word, NAMES)
    if not directories:
        raise BadInput("Name at least one run or folder of runs, for example: dcpg report runs table1")
    chosen = RANGES if ranges is Ranges.rliable else PROCGEN_RANGES
    if not watch:
        tell(make(directories, out, names, chosen), out)
        return
    if names:
        raise BadInput("--watch shows the whole page; leave the names out.")
    from dcpg.report.serve import watch as serve
    from dcpg.runs.records import Cache

    cache: Cache = {}

    def again(pictures: bool) -> Report:
        return make(directories, out, (), chosen, pictures, cache)

    serve(directories, out, port, 3.0, again, print, threading.Event())


def tell(made: Report, out: Path) -> None:
    """What was made, what was left out and why, and what is missing."""
    runs = made.board.records
    finished = sum(record.finished for record in runs)
    print(
        f"{len(runs)} runs ({made.board.setting.sentence()}): {finished} finished, {len(runs) - finished} unfinished."
    )
    if made.tables:
        print(f"Tables: {', '.join(made.tables)}")
    if made.figures:
        print(f"Figures: {', '.join(made.figures)}")
    for problem in made.problems:
        print(f"note: {problem.path}: {problem.text}")
    if made.version:
        lacking = sum(len(entry.commands) for entry in made.missing)
        if lacking:
            print(f"Missing: {len(made.missing)} things; the page lists the {lacking} commands that would make them.")
        print(f"Page: {out / 'report.html'}")
    else:
        print(f"In: {out}")

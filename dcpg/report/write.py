"""`dcpg report`: reads runs and writes tables, figures and the page."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dcpg.envs.procgen import GAMES
from dcpg.errors import BadInput, DcpgError, StorageFailed, unknown
from dcpg.extras import need
from dcpg.report.claims import CLAIMS_TABLE, Answer, answers, claims_table
from dcpg.report.comparison import (
    Comparison,
    StiffnessRuns,
    compare,
    note_other_pictures,
    note_other_plugins,
    note_other_starts,
    usual_setting,
)
from dcpg.report.figures import FIGURES, STIFFNESS_FIGURES, VALUE_FIGURES, same_pictures, style
from dcpg.report.grids import GRID, Grid, GridTable
from dcpg.report.leads import LEADS, leads_table
from dcpg.report.level_map import frames_missing
from dcpg.report.missing import Missing, missing
from dcpg.report.page import page, version_of
from dcpg.report.page_data import page_data
from dcpg.report.statistics import RANGES
from dcpg.report.tables import TABLES, Table
from dcpg.report.text_table import TextTable
from dcpg.runs.collection import Cache, read
from dcpg.runs.folders import Problem
from dcpg.storage.files import UnreadableNow, dump, own_folder, read_json, write_atomic
from dcpg.text import counted, option

ENDINGS = {"tables": ("csv", "md", "tex"), "figures": ("png", "pdf")}  # of the files in each folder
IN_TABLES = (*TABLES, GRID, LEADS, CLAIMS_TABLE)
NAMES = (*IN_TABLES, *STIFFNESS_FIGURES, *FIGURES)
LISTED = "files"  # the key of report.json that names the tables and figures of the report, and of reports by name
PAGE = "report.html"
OF_A_PAGE = {"setting", "list", "problems"}  # keys of report.json when the page was written, by any release
MOST_JSON = 2**28  # bytes of a report.json
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Report:
    """The files that were written, and what was found on the way."""

    comparison: Comparison
    files: list[Path]
    tables: list[str]
    figures: list[str]
    same: dict[str, str]  # figures that were not drawn, and the one that shows the same
    missing: list[Missing]  # for the page; empty without one
    problems: list[Problem]
    version: str  # of the page; empty without one


def write_report(
    directories: Sequence[Path],
    out: Path,
    names: Sequence[str] = (),
    ranges: Mapping[str, tuple[float, float]] = RANGES,
    pictures: bool = True,
    cache: Cache | None = None,
    bands: bool = False,
    tell: Tell = lambda *_: None,
) -> Report:
    """Write everything that the runs allow, or only the named tables and figures.

    A figure that would be the same picture as another one is drawn only if it is named. `bands` adds the deviation
    over seeds to the figures of values. `tell` hears what is being made, and how much of how much is done.
    """
    _check_out(out)
    for name in names:
        if name not in NAMES:
            raise unknown("table or figure", name, NAMES)
    if not names:
        need("report", "The page")
    elif any(name not in IN_TABLES for name in names):
        need("report", "A figure", "matplotlib")
    records, problems = read(directories, cache, partial(tell, "reading runs"))
    if not records:
        raise BadInput("No run can be used: " + "; ".join(f"{p.path}: {p.text}" for p in problems[:3]))
    measured = StiffnessRuns(records, problems)
    grid = Grid(records, usual_setting(records), ranges)
    comparison = compare(records, problems, ranges, measured.shown, grid.records)
    compared = {id(record): record for record in (*comparison.records, *measured.records, *grid.records)}
    for note in (note_other_pictures, note_other_plugins, note_other_starts):
        note(compared.values(), problems)
    if not comparison.records:
        out_of_it = [f"{p.path}: {p.text}" for p in problems if p.text.startswith("left out")]
        others = f" {'; '.join(out_of_it[:3])}." if out_of_it else ""
        raise BadInput(f"No evaluation yet in {counted(len(records), 'run')}; come back when there is one.{others}")
    tell("tables", 0, 1)
    same = {} if names else same_pictures(comparison)
    figures = _figures(comparison, measured, names, same, bands, partial(tell, "drawing figures")) if pictures else {}
    tell("claims", 0, 1)
    told = answers(comparison, measured) if not names or CLAIMS_TABLE in names else []
    tables = _tables(comparison, grid, told, names)
    will = _checked_files(out, names, [t.name for t in tables], figures)
    absent = [] if names else missing(comparison, measured)
    version = ""
    try:
        out.mkdir(parents=True, exist_ok=True)
        _claim(out, will)
        files = _write_tables(tables, out)
        files += _write_figures(figures, out, partial(tell, "writing figures"))
        if not names:
            tell("the page", 0, 1)
            listed = _remove_stale(out, files, pictures)
            no_frames = frames_missing() if any(game in GAMES for game in comparison.games) else None
            if no_frames is not None:
                problems.append(Problem(out, f"the page shows no first frames of levels: {no_frames}"))
            drawn = [name for name in NAMES if f"figures/{name}.pdf" in listed]
            data = page_data(records, comparison, measured, tables, drawn, same, told, absent, problems)
            version = version_of(data)
            files += [
                _write(out / "report.json", dump(_without_pictures(data) | {LISTED: listed})),
                _write(out / "report.html", page(data).encode()),
            ]
    except OSError as error:
        raise StorageFailed(f"{out} cannot be written to ({error}).") from None
    names_of_tables = [t.name for t in tables]
    return Report(comparison, files, names_of_tables, list(figures), same, absent, problems, version)


def _tables(
    comparison: Comparison, grid: Grid, told: list[Answer], names: Sequence[str]
) -> list[Table | GridTable | TextTable]:
    """All tables that the runs allow, or the named ones, in the order of the page."""
    makers: dict[str, Callable[[], Table | GridTable | TextTable | None]] = {
        **{name: partial(make, comparison) for name, make in TABLES.items()},
        GRID: lambda: GridTable(grid) if grid.rows else None,
        LEADS: lambda: leads_table(comparison),
        CLAIMS_TABLE: lambda: claims_table(told, comparison.caption),
    }
    return [t for name, make in makers.items() if not names or name in names if (t := make())]


def _checked_files(out: Path, names: Sequence[str], tables: list[str], figures: Mapping[str, Any]) -> list[str]:
    """The names of the tables' and figures' files, if all that was asked for is there and may be written."""
    found = [f"tables/{name}.{ending}" for name in tables for ending in ENDINGS["tables"]]
    found += [f"figures/{name}.{ending}" for name in figures for ending in ENDINGS["figures"]]
    try:
        _check_all_made(names, {*tables, *figures})
        found += [] if names else [PAGE]
        _check_own(out, found)
    except DcpgError:
        _close(figures)
        raise
    return found


def _check_all_made(names: Sequence[str], made: set[str]) -> None:
    absent = [name for name in names if name not in made]
    if absent:
        needed = "grid needs finished runs of one method with two values of a setting; " if GRID in absent else ""
        needed += "leads needs finished runs of PPO and of another method on one game; " if LEADS in absent else ""
        raise BadInput(
            f"These runs do not allow {', '.join(absent)}; {needed}`dcpg report` without names says what is missing."
        )


def _close(figures: Mapping[str, Any]) -> None:
    if figures:
        import matplotlib.pyplot as plt

        for figure in figures.values():
            plt.close(figure)


def _figures(
    comparison: Comparison,
    measured: StiffnessRuns,
    names: Sequence[str],
    same: Mapping[str, str],
    bands: bool,
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    if names and all(name in IN_TABLES for name in names):
        return {}
    import matplotlib

    matplotlib.use("Agg")
    chosen = [n for n in (*STIFFNESS_FIGURES, *FIGURES) if n in names or (not names and n not in same)]
    found: dict[str, Any] = {}
    with style():
        for number, name in enumerate(chosen):
            tell(number, len(chosen))
            if name in STIFFNESS_FIGURES:
                found[name] = STIFFNESS_FIGURES[name](measured)
            else:
                found[name] = FIGURES[name](comparison, **({"bands": bands} if name in VALUE_FIGURES else {}))
    return {name: figure for name, figure in found.items() if figure is not None}


def _write_tables(tables: Sequence[Table | GridTable | TextTable], out: Path) -> list[Path]:
    files = []
    for table in tables:
        texts = (table.csv(), table.markdown(), table.latex())
        for ending, text in zip(ENDINGS["tables"], texts, strict=True):
            files.append(_write(out / "tables" / f"{table.name}.{ending}", text.encode()))
    return files


def _write_figures(figures: Mapping[str, Any], out: Path, tell: Callable[[int, int], None]) -> list[Path]:
    if not figures:
        return []
    import matplotlib.pyplot as plt

    files = []
    for number, (name, figure) in enumerate(figures.items()):
        tell(number, len(figures))
        figure.get_layout_engine().execute(figure)  # once for both files
        figure.set_layout_engine(None)
        for ending in ENDINGS["figures"]:
            data = io.BytesIO()
            figure.savefig(data, format=ending, dpi=120)
            files.append(_write(out / "figures" / f"{name}.{ending}", data.getvalue()))
        plt.close(figure)
    return files


def _without_pictures(data: dict[str, Any]) -> dict[str, Any]:
    """The data of report.json: videos and first frames are only in the page."""
    levels = {game: {k: v for k, v in found.items() if k != "sheet"} for game, found in data["levels"].items()}
    videos = [{k: v for k, v in video.items() if k != "source"} for video in data["videos"]]
    return data | {"levels": levels, "videos": videos}


def _write(path: Path, data: bytes) -> Path:
    own_folder(path.parent)
    write_atomic(path, data)
    return path


def _check_out(out: Path) -> None:
    """Refuse links in place of the report's folders: they could lead to files of somebody else's choice."""
    for folder in (out, *(out / name for name in ENDINGS)):
        if folder.is_symlink():
            raise BadInput(f"{folder} is a link; give the folder that it points to as {option('out')}, or another one.")


def _check_own(out: Path, will: Sequence[str]) -> None:
    """Refuse to replace a file that no report has written.

    A report of an older release has no list of its files: what has the name of a table or a figure there is its own.
    """
    before = _before(out)
    is_page = before.keys() >= OF_A_PAGE
    if before and not is_page and not isinstance(before.get(LISTED), list):
        raise _not_ours(out / "report.json")
    listed = _listed(before) if LISTED in before or not before else set(will)
    for name in will:
        if name not in (listed | {PAGE} if is_page else listed) and os.path.lexists(out / name):
            raise _not_ours(out / name)


def _not_ours(path: Path) -> BadInput:
    return BadInput(
        f"{path} would be replaced, but no report has written it, as far as can be told; move it away, or choose "
        f"another {option('out')}."
    )


def _claim(out: Path, will: Sequence[str]) -> None:
    """List the files of this report before they are written: if it is killed meanwhile, the next one knows them."""
    before = _before(out)
    if (LISTED in before or not before) and not _listed(before).issuperset(will):
        _write(out / "report.json", dump(before | {LISTED: sorted(_listed(before).union(will))}))


def _remove_stale(out: Path, files: list[Path], pictures: bool) -> list[str]:
    """Remove tables and figures of the report before that these runs no longer allow, and nothing else.

    Returns the names of this report's tables and figures. Without `pictures`, figures of the one before are among them.
    """
    written = {path.relative_to(out).as_posix() for path in files}
    kept = set[str]()
    for name in _listed(_before(out)) - written - {PAGE}:
        if name.startswith("figures/") and not pictures:
            kept |= {name} if (out / name).is_file() else set()
        else:
            (out / name).unlink(missing_ok=True)
    return sorted(written | kept)


def _before(out: Path) -> dict[str, Any]:
    """The report.json of a report before; empty if there is none."""
    try:
        found = read_json(out / "report.json", MOST_JSON)
    except FileNotFoundError:
        return {}
    except UnreadableNow as error:
        raise StorageFailed(f"{out / 'report.json'} cannot be read now ({error}); try again when it can be.") from None
    except ValueError:
        raise _not_ours(out / "report.json") from None
    return found if isinstance(found, dict) and found else {"": found}


def _listed(before: Mapping[str, Any]) -> set[str]:
    """The tables and figures that reports before have written, and the page of one that was killed meanwhile.

    The file may be anybody's: no other names than these are taken from it.
    """
    possible = {PAGE} | {f"tables/{name}.{ending}" for name in IN_TABLES for ending in ENDINGS["tables"]}
    possible |= {f"figures/{name}.{ending}" for name in (*STIFFNESS_FIGURES, *FIGURES) for ending in ENDINGS["figures"]}
    found = before.get(LISTED)
    return possible & {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()

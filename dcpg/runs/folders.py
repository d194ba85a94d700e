"""Finds runs below directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dcpg.errors import BadInput

LONGEST_PROBLEM = 2000  # characters of a note: it may quote a value of megabytes
LEFT_OVER = (".tmp-", ".old-")  # how the names of folders begin that an export makes, and leaves when it is killed
ROWS = {"eval.jsonl", "metrics.jsonl", "timing.jsonl", "summary.json"}
SIGNS = {*ROWS, "checkpoints"}  # of a run, beside config.json
OWN_FOLDERS = ("checkpoints", "milestones", "tb", "analysis", "wandb")  # of a run: no other run lies in them


@dataclass(frozen=True)
class Problem:
    """Something wrong with the files of a run, and what was done about it."""

    path: Path
    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST_PROBLEM:
            object.__setattr__(self, "text", f"{self.text[: LONGEST_PROBLEM - 3]}...")


def run_directories(directories: Iterable[Path]) -> tuple[list[Path], list[Problem]]:
    """Every run at or below the directories, each once, and the folders that cannot be opened."""
    paths, problems, seen, links = list[Path](), list[Problem](), set[Path](), list[Path]()
    for top in directories:
        if not top.is_dir():
            raise BadInput(f"There is no directory {top}.")
        found = sorted(_run_directories(top, problems, links))
        if not found:
            raise BadInput(f"{top} holds no run: no config.json at or below it.")
        for path in found:
            if path.resolve() not in seen:
                seen.add(path.resolve())
                paths.append(path)
    for link in links:
        if link.resolve() not in seen:
            problems.append(Problem(link, "left out: a link, which is not followed; name the folder that it points to"))
    return paths, problems


def _run_directories(top: Path, problems: list[Problem], links: list[Path]) -> Iterable[Path]:
    """Runs at or below a folder, also those that lie below another run; links to such are collected.

    Inside a run, a folder needs rows or checkpoints to be one: an export has a config.json too.
    """

    def note(error: OSError) -> None:
        problems.append(Problem(Path(error.filename), f"left out: it cannot be opened ({error.strerror})"))

    inside = {str(top): False}  # folder -> whether it lies in a run
    for folder, below, files in walk(top, note):
        within = inside.pop(folder)
        for name in [name for name in below if name.startswith(LEFT_OVER)]:
            below.remove(name)
            problems.append(Problem(Path(folder, name), "left out: by its name, an export that has not ended"))
        links += [path for name in below if (path := Path(folder, name)).is_symlink() and _leads_to_a_run(path)]
        is_run = "config.json" in files and bool({*files, *below} & SIGNS)
        # another program's config.json may lie above the runs; a lone one may be a run that has lost the rest
        is_run = is_run or ("config.json" in files and not {*below} - {*OWN_FOLDERS} and not within)
        if not is_run and {"eval.jsonl", "metrics.jsonl"} <= {*files}:
            problems.append(Problem(Path(folder), "left out: it has the rows of a run, but no config.json"))
        if is_run:
            if ROWS & {*files}:  # without them, it may be another program's folder of checkpoints, with runs in it
                below[:] = [name for name in below if name not in OWN_FOLDERS]
            yield Path(folder)
        inside |= {os.path.join(folder, name): within or is_run for name in below}


def _leads_to_a_run(link: Path) -> bool:
    return os.path.isfile(link / "config.json") and any(os.path.exists(link / name) for name in SIGNS)


def walk(
    top: Path, onerror: Callable[[OSError], None] = lambda error: None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, which is recursive before Python 3.12 and fails in a thousand nested folders.

    Each folder with the names of the folders in it, which the caller may shorten, and of all else. Links to folders are
    among the former, and are not followed.
    """
    left = [str(top)]
    while left:
        folder, below, files, links = left.pop(), list[str](), list[str](), set[str]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (below if _is_folder(entry) else files).append(entry.name)
                    links |= {entry.name} if entry.is_symlink() else set()
        except OSError as error:
            onerror(error)
            continue
        yield folder, below, files
        left += [os.path.join(folder, name) for name in reversed(below) if name not in links]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False

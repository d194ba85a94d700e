"""The rows of finished runs as a folder to publish: small enough for a repository, and all that a report reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dcpg.config.identity import anonymous
from dcpg.config.schema import SCHEMA
from dcpg.config.written import Written, parse_written
from dcpg.errors import BadInput, StorageFailed
from dcpg.runs.export import check_replaceable, public_config, replacing_folder
from dcpg.runs.folders import run_directories
from dcpg.runs.records import (
    MOST_ANALYSIS,
    MOST_NOTES,
    PUBLISHED,
    STIFFNESS,
    metrics_of,
    most_bytes,
    read_run,
    timing_of,
)
from dcpg.storage.files import dump, parse_json, read_json, read_regular, write_durable
from dcpg.storage.rows import Metrics, Summary, Timing, first_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.text import printable

ROWS = 50  # of metrics.jsonl and of timing.jsonl that are kept by default
# copied as they are, but for hashes in the first
WHOLE = ("summary.json", "analysis/levels.json", "analysis/ood-actions.json")
FILES = {PUBLISHED, "config.json", "eval.jsonl", "metrics.jsonl", "timing.jsonl", "analysis", *WHOLE}


@dataclass(frozen=True)
class Published:
    """What was written, and which runs were left out."""

    folder: Path
    runs: list[Path]  # as they lie in the folder
    left_out: dict[Path, str] = field(default_factory=dict)  # run -> why
    notes: dict[Path, list[str]] = field(default_factory=dict)  # run -> what is wrong with its files


def publish(
    directories: Sequence[Path], out: Path, rows: int = ROWS, show: Callable[[str], None] = lambda text: None
) -> Published:
    """Copy the rows of every finished run at or below the directories; each run appears when it is whole.

    Evaluations and analyses are copied as they are, and summaries but for hashes. Of metrics.jsonl about `rows` rows
    are kept, and those with measurements; as many rows of timing.jsonl have the sums of the others. No weights are
    copied.
    """
    if rows < 1:
        raise BadInput(f"At least one row must be kept of each run, not {rows}.")
    paths, problems = run_directories(directories)
    inside = out.resolve()
    paths = [path for path in paths if inside not in path.resolve().parents]  # what an earlier call has published
    names: dict[str, Path] = {}
    for path in paths:
        name = path.resolve().name
        if name in names:
            raise BadInput(f"{names[name]} and {path} have the same name; rename one, or publish them to two folders.")
        names[name] = path
        check_replaceable(out / name, FILES, _is_published, "published rows")
        _check_own(out / name, path)
    found = Published(out, [], {problem.path: problem.text for problem in problems})
    for name, path in names.items():  # one at a time: all together may have no room in memory
        try:
            files, notes = _contents(path, rows)
        except BadInput as error:
            found.left_out[path] = str(error)
            continue
        show(f"{name}: {sum(map(len, files.values())) / 1e3:,.0f} kB")
        try:
            out.mkdir(parents=True, exist_ok=True)
            _write(out / name, files)
        except OSError as error:
            raise StorageFailed(f"{out} cannot be written ({error.strerror or error}).") from None
        found.runs.append(out / name)
        if notes:
            found.notes[path] = notes
    if not found.runs:
        reasons = "; ".join(f"{path}: {why}" for path, why in found.left_out.items())
        raise BadInput(f"There is nothing to publish outside of {out}. {reasons}".rstrip())
    return found


def _check_own(target: Path, path: Path) -> None:
    """Refuse to replace rows of another run, as of a sweep whose runs have the same names, or of a longer one."""
    _check_not_newer(target)
    try:
        there, here = (
            parse_written(RunDirectory(folder).read_config(), folder / "config.json", code=False)
            for folder in (target, path)
        )
    except BadInput:  # there is none yet, or it is not whole, or the run is refused by its reader
        return
    if there.fingerprint != here.fingerprint or there.origin != _origin(here):
        about = printable(f"{there.config.method} on {there.config.game}, seed {there.config.seed}")
        raise BadInput(
            f"{target} has the rows of another run ({about}) than {path}; publish to another folder, or rename the run."
        )
    longer, shorter = (one.config.rollouts * one.config.rollout_size for one in (there, here))
    if longer > shorter:
        raise BadInput(
            f"{target} has the rows of {longer:,} steps, {path} those of {shorter:,} only; publish to another folder."
        )


def _check_not_newer(target: Path) -> None:
    """Refuse to replace rows that this program is too old to read."""
    try:
        schema = RunDirectory(target).read_config().get("schema")
    except BadInput:  # there are none yet, or they are not whole
        return
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadInput(f"{target} has rows of a newer release; upgrade dcpg, or publish to another folder.")


def _is_published(folder: Path) -> bool:
    found = read_json(folder / PUBLISHED, MOST_ANALYSIS)
    return isinstance(found, dict) and "kept_rows" in found


def _contents(path: Path, rows: int) -> tuple[dict[str, bytes], list[str]]:
    """The files of a run, checked as a report would check them, and what it would note."""
    run, (record, notes) = RunDirectory(path), read_run(path, every_row=True)
    if not record.finished:
        raise BadInput(f"it has {record.steps:,} of {record.setting.steps:,} steps")
    files: dict[str, bytes] = {}
    for name in WHOLE:
        try:
            files[name] = read_regular(path / name, most_bytes(record.config))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadInput(f"{name} cannot be read ({error.strerror or error})") from None
    files["eval.jsonl"] = first_rows(run.evaluations.path, len(record.evaluations))
    files["metrics.jsonl"] = b"".join(thinned(partial(metrics_of, run, record.config), rows))
    if "summary.json" in files:
        files["summary.json"] = _summary(files["summary.json"], files["metrics.jsonl"], _origin(record.written))
    try:
        files["timing.jsonl"] = b"".join(dump(row.plain()) for row in merged(timing_of(run, record.config), rows))
    except BadInput as error:  # a report needs no times
        notes.append(f"timing.jsonl was passed over ({error})")
    files["config.json"] = dump(public_config(record.written, anonymous), indent=2)
    files[PUBLISHED] = dump({"kept_rows": rows, **({"notes": notes[:MOST_NOTES]} if notes else {})})
    return files, notes


def _origin(written: Written) -> str:
    """What a run began with, as its published configuration has it."""
    return parse_written(public_config(written, anonymous), code=False).origin


def _summary(data: bytes, metrics: bytes, origin: str) -> bytes:
    """A summary that has the hashes of the rows that are kept and of the configuration that is published."""
    try:
        found = Summary.parse(parse_json(data))
    except (ValueError, TypeError):  # which is noted
        return data
    changes: dict[str, Any] = {}
    if found.origin is not UNSET:
        changes["origin"] = origin
    if found.rows is not UNSET and found.rows_sha256 is not UNSET:
        changes["rows"] = {**found.rows, "metrics": metrics.count(b"\n")}
        changes["rows_sha256"] = {**found.rows_sha256, "metrics": hashlib.sha256(metrics).hexdigest()}
    return dump(replace(found, **changes).plain(), indent=2) if changes else data


def thinned(read: Callable[[], Iterable[Metrics]], most: int) -> list[bytes]:
    """Rows at equal distances, the last one among them, and all with measurements; read twice to keep no others."""
    measured, count = set(STIFFNESS.values()), sum(1 for _ in read())
    apart = max(-(-count // most), 1)
    kept = (row for n, row in enumerate(read(), 1) if (count - n) % apart == 0 or measured & set(row.more))
    return [dump(row.plain()) for row in kept]


def merged(rows: Sequence[Timing], most: int) -> list[Timing]:
    """At most so many rows, each the sum of its neighbours, so that no second is lost."""
    apart, before, found = max(-(-len(rows) // most), 1), 0, []
    for start in range(0, len(rows), apart):
        group = rows[start : start + apart]
        names = dict.fromkeys(name for row in group for name in row.seconds)
        seconds = {name: sum(row.seconds.get(name, 0.0) for row in group) for name in names}
        took, steps = sum(seconds.values()), group[-1].steps
        found.append(Timing(steps=steps, steps_per_s=(steps - before) / took if took else 0.0, seconds=seconds))
        before = steps
    return found


def _write(target: Path, files: dict[str, bytes]) -> None:
    with replacing_folder(target) as temporary:
        for name, data in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write_durable(temporary / name, data)

"""All runs below some directories, each of them counted once."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dcpg.config.environments import Environment, in_any_folder
from dcpg.config.identity import anonymous
from dcpg.config.schema import OWN
from dcpg.errors import BadInput
from dcpg.methods import METHODS
from dcpg.runs.comparable import Setting
from dcpg.runs.folders import Problem, run_directories
from dcpg.runs.records import FILES, Record, read_run
from dcpg.text import printable

Cache = dict[Path, tuple[tuple[Any, ...], tuple[Record, list[str]]]]  # run -> its files' sizes and times, what was read


def read(
    directories: Iterable[Path], cache: Cache | None = None, tell: Callable[[int, int], None] = lambda *_: None
) -> tuple[list[Record], list[Problem]]:
    """Every run at or below the directories. Links are not followed, and no run is read twice.

    With a cache, a run is read again only when its files have changed. `tell` hears how many runs of how many are read.
    """
    records = list[Record]()
    paths, problems = run_directories(directories)
    for number, path in enumerate(paths):
        tell(number, len(paths))
        try:
            record, notes = read_run(path) if cache is None else _read_cached(path, cache)
        except BadInput as error:
            problems.append(Problem(path, f"left out: {error}"))
            continue
        problems += [Problem(path, note) for note in notes]
        records.append(record)
    records = with_common_values(records, problems)
    _note_other_options(records, problems)
    apart = told_apart(without_copies(records, problems), problems)
    return without_duplicates(with_usual_precision(apart, problems), problems), problems


def with_common_values(records: list[Record], problems: list[Problem]) -> list[Record]:
    """Runs of a plugin's method whose defaults were changed become variants of what most of its runs have.

    The defaults of a method are those of a preset too, so that each preset has its own.
    """
    alike: dict[Any, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))  # -> values -> each time
    for record in records:
        found = record.written.method_values
        if found and not METHODS.is_own(record.config.method):
            alike[record.config.method, record.setting.rest][repr(sorted(found.items()))].append(found)
    usual = {of: max(groups.values(), key=len)[0] for of, groups in alike.items()}
    named = list[Record]()
    for record in records:
        common = usual.get((record.config.method, record.setting.rest))
        if common is not None and record.written.method_values not in (None, {}, common):
            record = replace(record, written=replace(record.written, method_values=common))
        try:
            record.check_label()
            named.append(record)
        except BadInput as error:
            problems.append(Problem(record.path, f"left out: {error}"))
    return named


def _note_other_options(records: list[Record], problems: list[Problem]) -> None:
    """Name the runs that were analysed with other options than most: a table would average unequal measurements."""
    for name in dict.fromkeys(name for record in records for name in record.analyses):
        options = {record.path: record.analyses[name]["asked"] for record in records if name in record.analyses}
        usual = Counter(options.values()).most_common(1)[0][0]
        for path, asked in options.items():
            if asked != usual:
                text = f"analysis/{name}.json was made with {asked}, most others with {usual}; compared all the same"
                problems.append(Problem(path, text))


def told_apart(records: list[Record], problems: list[Problem]) -> list[Record]:
    """Runs on different environments of the user's own that have one name become runs of different games.

    The same files in another folder, or published without one, are the same environment. Files that were changed
    between two runs are, too, since most changes alter no game; the runs are named.
    """
    kinds = _kinds([record.written.environment for record in records])
    owns: dict[str, dict[Any, Environment | None]] = defaultdict(dict)  # game -> the environments of this name
    first: dict[Any, tuple[str, Path]] = {}  # environment -> the hash of its files in the first run, and that run
    for record, kind in zip(records, kinds, strict=True):
        own, game = record.written.environment, record.config.game
        if game.startswith(OWN):
            owns[game].setdefault(kind, own)
        if own is not None and own.sha256:
            files, path = first.setdefault((game, kind), (own.sha256[0], record.path))
            if own.sha256[0] != files:
                problems.append(Problem(record.path, f"its environment was changed since {path} was trained"))
    names = {game: _names(found) for game, found in owns.items() if len(found) > 1}
    return [
        replace(record, game=f"{game} ({names[game][kind]})") if (game := record.config.game) in names else record
        for record, kind in zip(records, kinds, strict=True)
    ]


def _kinds(environments: list[Environment | None]) -> list[Any]:
    """What tells environments of the user's own apart: neither their place nor their files are the same.

    Nor by way of others: this is a union-find over places and files.
    """
    above: dict[Any, Any] = {}

    def top(key: Any) -> Any:
        while above.setdefault(key, key) != key:
            above[key] = above[above[key]]  # so that ways stay short
            key = above[key]
        return key

    for own in filter(None, environments):
        names = in_any_folder((own.id, own.test_id))
        for file in own.sha256:
            above[top((file, names, own.spaces))] = top(_place(own))
    return [top(_place(own)) if own is not None else None for own in environments]


def _place(own: Environment) -> tuple[Any, ...]:
    return own.id, own.test_id, own.spaces


def _names(environments: dict[Any, Environment | None]) -> dict[Any, str]:
    """A name for each environment, no two the same: its id, what it is tested on, and at last a hash of all that."""
    found = {kind: printable(own.id) if own is not None else "not recorded" for kind, own in environments.items()}
    for more in (_tested, _hash):
        times = Counter(found.values())
        found = {
            kind: name + more(own) if times[name] > 1 and (own := environments[kind]) is not None else name
            for kind, name in found.items()
        }
    return found


def _tested(own: Environment) -> str:
    return f", tested on {printable(own.test_id)}, {own.spaces}"


def _hash(own: Environment) -> str:
    return f", {hashlib.sha256(repr(_place(own)).encode(errors='backslashreplace')).hexdigest()[:12]}"


def with_usual_precision(records: list[Record], problems: list[Problem]) -> list[Record]:
    """Runs that differ in their precision alone are no copies: in their setting, the rarer precision makes variants.

    Finished runs count first. With equally many of both it is bfloat16.
    """
    played = [record for record in records if record.evaluations]
    finished: dict[tuple[tuple[Setting, str, str, int], str], bool] = {}  # each place and precision once
    for record in played:
        key = _place_in_tables(record), record.config.machine.precision
        finished[key] = finished.get(key, False) or record.finished

    def number(of: Setting, precision: str) -> tuple[int, int]:
        """How many runs have finished, and how many there are; copies do not count."""
        found = [done for (place, p), done in finished.items() if (place[0], p) == (of, precision)]
        return sum(found), len(found)

    first: dict[tuple[Setting, str, str, int], Record] = {}
    usual: dict[Setting, str] = {}
    for record in played:
        other, of = first.setdefault(_place_in_tables(record), record), record.setting
        if other.config.machine.precision != record.config.machine.precision and of not in usual:
            usual[of] = "bf16" if number(of, "bf16") > number(of, "fp32") else "fp32"
            text = (
                f"differs from {other.path} in its precision alone: {usual[of]} is the usual one, the other a variant"
            )
            problems.append(Problem(record.path, text))
    return [replace(record, usual_precision=usual.get(record.setting, "")) for record in records]


def without_duplicates(records: list[Record], problems: list[Problem]) -> list[Record]:
    """One run per method, game, seed and setting: the one with the most steps, then the most measurements.

    The machine and the number of evaluations do not make another run of a seed. The others are noted as problems.
    """
    best: dict[tuple[Setting, str, str, int], Record] = {}
    for record in sorted(records, key=lambda r: (-r.steps, -len(r.stiffness), -len(r.analyses))):
        key = _place_in_tables(record)
        if key in best:
            text = f"left out: the same method, game, seed and settings as {best[key].path}"
            problems.append(Problem(record.path, text + _other_start(record, best[key])))
        else:
            best[key] = record
    kept = {id(record) for record in best.values()}
    return [record for record in records if id(record) in kept]


def _place_in_tables(record: Record) -> tuple[Setting, str, str, int]:
    return record.setting, record.label, record.game, record.config.seed


def _other_start(record: Record, kept: Record) -> str:
    """That two runs of a seed began with the weights of different runs, as the end of a sentence."""
    mine, other = record.written.init, kept.written.init
    return "" if mine == other else f", though it began with the weights of {printable(mine)}, not {printable(other)}"


def without_copies(records: list[Record], problems: list[Problem]) -> list[Record]:
    """One of several runs with the same rows, as of a copy whose seed was changed.

    Copies under one seed are left to `without_duplicates`, but for those that are published: the folder of the user's
    own environment is not in them, so that it seems to be another one.

    All columns of all evaluations must be equal. Returns alone may be so by chance: short runs, or deterministic
    environments of the user's own, earn nothing or the same in every episode. The predicted values are those of
    networks whose weights were drawn from the seed, and levels follow from it. As a second guard, a run in which all
    returns and all levels of an evaluation are one number is never taken for a copy.
    """
    first: dict[tuple[Any, ...], Record] = {}
    copies = set[int]()
    for record in sorted(records, key=_is_published):
        means = tuple((e.steps, *(split.mean for split in e.splits.values())) for e in record.evaluations)
        other = first.setdefault((record.setting, record.label, record.game, means), record)
        seeds = other.config.seed != record.config.seed
        is_other = seeds or _is_published(record) != _is_published(other)
        if other is not record and is_other and other.evaluations == record.evaluations and _is_varied(record):
            under = ", under another seed" if seeds else ""
            problems.append(Problem(record.path, f"left out: the same rows as {other.path}{under}"))
            copies.add(id(record))
    return [record for record in records if id(record) not in copies]


def _is_published(record: Record) -> bool:
    own = record.written.environment
    return own is not None and own.id == anonymous(own.id)


def _is_varied(record: Record) -> bool:
    splits = [split for evaluation in record.evaluations for split in evaluation.splits.values()]
    return any(len(set(values)) > 1 for split in splits for values in (split.returns, split.levels) if values)


def _read_cached(path: Path, cache: Cache) -> tuple[Record, list[str]]:
    now = tuple(_state(path / name) for name in FILES)
    if path not in cache or cache[path][0] != now:
        found = read_run(path)
        if found[1]:  # what could not be read may be readable next time, without another size or time
            cache.pop(path, None)
            return found
        cache[path] = (now, found)
    return cache[path][1]


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file; of one that cannot be looked at, the reason."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return (error.errno or 0,)
    return found.st_size, found.st_mtime_ns

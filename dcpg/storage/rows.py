"""Files of JSON lines, and the types of the rows in them.

A row is written with `json.dumps`, so that equal runs write equal bytes. Reading is strict: a row that lacks a column
or has one of another type is refused with a sentence, and a file ends for its reader at the first torn line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dcpg.errors import BadInput
from dcpg.storage.files import dump, fsync_dir, is_modest, open_appending, open_regular, read_regular, write_atomic

LARGEST = 1e100  # a greater number is no return, and its square is not finite
MOST_COUNT = 2_000_000  # rows of a file; each takes memory, whatever is in it
MOST_ROW = 2**25  # bytes of a row
MOST_TABLES = MOST_COLUMNS = 10_000  # in a row; it has a few lists and some hundred columns
MOST_ROWS = 2**29  # bytes of a file of rows; the paper's longest runs have a tenth of that
MOST_WRITTEN = 2**33  # bytes of a run's own file, which is read line by line; of episodes of one step, 300 million
SPLITS = {"train": "training levels", "test": "unseen levels"}  # what an evaluation is played on, and its name
VALUES = ("predicted_value", "true_value", "true_value_own_gamma")

Number = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Scalar = int | float | str | None
Count = Annotated[int, msgspec.Meta(ge=0)]
Steps = Annotated[int, msgspec.Meta(ge=1)]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of one of a run's files, or a small file that is one row."""

    def plain(self) -> dict[str, Any]:
        """The columns that are set, in the order in which they are written."""
        columns = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in columns.items() if value is not UNSET}

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        """A row from its columns; ValueError if they are not those of such a row."""
        return _convert(plain, cls)


class Metrics(Row, frozen=True, kw_only=True):
    """One rollout in metrics.jsonl."""

    rollout: Count
    steps: Steps
    episode_returns: list[Number]  # of the episodes that ended in this rollout
    episode_lengths: list[Count]
    episode_levels: list[int]
    reward_variance: Number
    more: dict[str, Scalar]  # choosers, measurements, and every term as "LINE.TERM" and "LINE.TERM.scaled"

    def plain(self) -> dict[str, Any]:
        columns = super().plain()
        del columns["more"]
        return columns | self.more

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        fixed = {name: plain[name] for name in cls.__struct_fields__ if name in plain and name != "more"}
        rest = {name: value for name, value in plain.items() if name not in fixed}
        row = _convert({**fixed, "more": rest}, cls)
        _check_finite({**fixed, **rest})
        return row


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The episodes of an evaluation on one kind of levels."""

    mean: Number = msgspec.field(name="return")
    returns: list[Number] | None = None  # one per episode; None where a reader has dropped them
    levels: list[int] | None = None
    predicted_value: Number
    true_value: Number
    true_value_own_gamma: Number


class Evaluation(Row, frozen=True, kw_only=True):
    """One evaluation in eval.jsonl: columns such as `test_return` belong to the split `test`."""

    k: Count
    rollout: Count
    steps: Steps
    splits: dict[str, Split]

    def plain(self) -> dict[str, Any]:
        columns: dict[str, Any] = {"k": self.k, "rollout": self.rollout, "steps": self.steps}
        for name, split in self.splits.items():
            for column in ("return", "returns", "levels", *VALUES):
                columns[f"{name}_{column}"] = getattr(split, "mean" if column == "return" else column)
        return columns

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        """Every split that is there must be whole, and its mean that of its episodes."""
        splits: dict[str, dict[str, Any]] = {}
        for column, value in plain.items():
            split, underscore, name = column.partition("_")
            if underscore and split in SPLITS:
                splits.setdefault(split, {})[name] = value
        found = {name: _convert(columns, Split, f"{name}_") for name, columns in splits.items()}
        for name, episodes in found.items():
            _check_split(episodes, name)
        whole = {name: plain[name] for name in ("k", "rollout", "steps") if name in plain}
        return _convert({**whole, "splits": found}, cls)


def _check_split(split: Split, name: str) -> None:
    returns, levels = split.returns, split.levels
    if not returns or levels is None or len(returns) != len(levels):
        raise ValueError(f"{name}_returns and {name}_levels are not lists of equal length")
    _check_finite({f"{name}_{column}": getattr(split, column) for column in split.__struct_fields__})
    mean = sum(returns) / len(returns)
    if not math.isclose(split.mean, mean, rel_tol=1e-6, abs_tol=1e-6):
        raise ValueError(f"{name}_return is {split.mean:g}, but its episodes' mean is {mean:g}")


class Timing(Row, frozen=True, kw_only=True):
    """One rollout in timing.jsonl."""

    steps: Steps
    steps_per_s: Number
    seconds: dict[str, Number]  # where the time went


class Summary(Row, frozen=True, kw_only=True):
    """summary.json: what a run has come to."""

    method: str
    game: str
    seed: int
    steps: Count
    steps_asked: Count
    status: Literal["running", "stopped", "failed", "finished"]
    train_return: Number | None = None
    test_return: Number | None = None
    train_returns: list[Number] | None = None
    test_returns: list[Number] | None = None
    pictures: list[str] | UnsetType = UNSET  # fingerprints of frames; several after a resume with another library
    altered: list[str] | UnsetType = UNSET  # files whose rows were not as the run had written them when it was resumed
    configuration: str | UnsetType = UNSET  # a hash of it, as checkpoints name it
    origin: str | UnsetType = UNSET  # a hash of what the run began with besides: weights, environment, plugins
    rows: dict[str, Count] | UnsetType = UNSET  # how many metrics and evaluations were written by then, as "eval"
    rows_sha256: dict[str, str] | UnsetType = UNSET  # hashes of them


class Event(Row, frozen=True, kw_only=True):
    """Something that happened to a run of a sweep, in the sweep's index.jsonl."""

    run: str
    event: Literal["started", "ended", "finished", "failed", "retry"]
    attempt: Count = 0
    code: int | UnsetType | None = UNSET  # the exit code, negative for a signal; None: the worker was lost
    node: str | UnsetType = UNSET
    place: str | UnsetType = UNSET  # the run's newest checkpoint
    last_lines: str | UnsetType = UNSET
    time: str = ""


S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R", bound=Row)


def _convert(plain: Mapping[str, Any], kind: type[S], prefix: str = "") -> S:
    """A struct from its columns, checked by type and bounds; the message names the column and its value."""
    try:
        return msgspec.convert(dict(plain), kind)
    except msgspec.ValidationError as error:
        if (missing := re.search(r"missing required field `(\w+)`", str(error))) is not None:
            raise ValueError(f"{prefix}{missing[1]} is missing") from None
        found = re.fullmatch(r"(.*) - at `\$\.(\w+)(?:\[(\d+)\])?.*`", str(error))
        if found is None:
            raise ValueError(str(error)) from None
        expected, column, index = found.groups()
        value = plain[column][int(index)] if index is not None else plain[column]
        raise ValueError(f"{prefix}{column} has the value {_shown(value)} ({expected.lower()})") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _check_finite(columns: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        if isinstance(value, list) and value and _all_finite(value):
            continue
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, int | float) and not abs(number) <= LARGEST:
                raise ValueError(f"{name} has the value {_shown(number)}, which is not a number")


def _all_finite(values: list[Any]) -> bool:
    """A quick look at numbers whose bounds are checked already: one that is not finite makes their sum so."""
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):
        return False


# -- files


class Rows:
    """A file of rows that is written to. A row that the disk refuses is kept and tried again with the next one."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.pending, self.count, self.writes = path, list[bytes](), 0, writes
        self._hash = self._before = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """A hash of all rows so far, which a checkpoint names."""
        return self._hash.hexdigest()

    @property
    def sha256_before_last(self) -> str:
        """A hash of all rows but the last."""
        return self._before.hexdigest()

    def append(self, row: Row) -> None:
        """Write one more row, now or with the next one."""
        self.count += 1
        if not self.writes:
            return
        data = dump(row.plain())
        self._add(data)
        self.pending.append(data)
        with contextlib.suppress(OSError):  # `sync` raises if it lasts
            self._flush()

    def _add(self, line: bytes) -> None:
        self._before = self._hash.copy()
        self._hash.update(line)

    def sync(self) -> None:
        """Return when every row is on the disk, or raise."""
        if not self.writes:
            return
        self._flush()
        if self.path.exists():
            with open_regular(self.path) as file:
                os.fsync(file.fileno())
            fsync_dir(self.path.parent)  # the file's name may be new

    def _flush(self) -> None:
        if not self.pending:
            return
        data = b"".join(self.pending)
        with open_appending(self.path) as file:  # a buffer would write a refused row again when it is closed
            start = os.fstat(file.fileno()).st_size
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.truncate(file.fileno(), start)
                raise
        self.pending.clear()

    def truncate(self, count: int) -> None:
        """Drop everything past the first `count` rows: what will come again, and a torn last line."""
        self.count = count
        if not self.writes:
            return
        self._hash = self._before = hashlib.sha256()

        def kept() -> Iterator[bytes]:
            for line in _first(self.path, count):
                self._add(line)
                yield line

        write_atomic(self.path, kept())
        self.pending.clear()


def read(path: Path, kind: type[R]) -> list[R]:
    """The rows of a file up to the first torn line; a row that is not one of its kind is refused."""
    return [parse(plain, kind, f"{path.name}, row {number}") for number, plain in enumerate(read_rows(path), 1)]


def read_last(path: Path, kind: type[R]) -> R | None:
    """The last whole row of a file, whatever is before it; one that cannot be read counts as absent."""
    try:
        data = _bytes(path)
        end = data.rfind(b"\n") + 1
        return kind.parse(parse_rows(data[data.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end])[-1])
    except (IndexError, ValueError, OverflowError, BadInput):
        return None


def parse(plain: Mapping[str, Any], kind: type[R], where: str) -> R:
    """A row, or a sentence that names the place and the column."""
    try:
        return kind.parse(plain)
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{where}: {error}.") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The columns of a file's rows, up to the first line that is torn or not a row; BadInput if it is no plain file."""
    return parse_rows(_bytes(path))


def row_at(path: Path, number: int) -> dict[str, Any] | None:
    """The columns of one row, counted from 0; None if the file has none there, or something else."""
    for line in _lines(path):
        if not number:
            return next(_each([line]), None)
        number -= line.endswith(b"\n")
    return None


def first_rows(path: Path, count: int) -> bytes:
    """The first `count` lines of a file as they are."""
    return b"".join(_first(path, count))


def hash_of_first(path: Path, count: int) -> str:
    """The SHA-256 of the first `count` lines of a file."""
    found = hashlib.sha256()
    for line in _first(path, count):
        found.update(line)
    return found.hexdigest()


def _first(path: Path, count: int) -> Iterator[bytes]:
    for line in _lines(path) if count else ():
        yield line
        count -= line.endswith(b"\n")
        if not count:
            return


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a run's own file one after the other; one that is too long to be a row comes in parts."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MOST_WRITTEN:
                raise OSError(errno.EFBIG, f"it has more than {MOST_WRITTEN:,} bytes")
            while line := file.readline(MOST_ROW + 1):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from None


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path, MOST_ROWS)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}).") from None


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except ValueError:
        return json.loads(line)  # slower; takes NaN and Infinity too, which the types then refuse by name


def parse_rows(data: bytes) -> list[dict[str, Any]]:
    """The columns of JSON lines, up to the first one that is torn or not a row."""
    rows = list(itertools.islice(each_row(data), MOST_COUNT + 1))
    if len(rows) > MOST_COUNT:
        raise BadInput(f"A file of rows has more than {MOST_COUNT:,}, which no run writes.")
    return rows


def count_rows(path: Path) -> int:
    """The number of a file's rows, up to the first line that is torn or not a row; none of them is kept."""
    return sum(1 for _ in rows_of(path))


def count_lines(path: Path) -> int:
    """The number of a file's whole lines, whatever they hold."""
    return sum(line.endswith(b"\n") for line in _lines(path))


def each_row(data: bytes) -> Iterator[dict[str, Any]]:
    """The columns of JSON lines one after the other, up to the first one that is torn or not a row."""
    return _each(io.BytesIO(data))


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The same of a run's own file, none of which is kept."""
    return _each(_lines(path))


def _each(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if len(line) > MOST_ROW or not is_modest(line, MOST_TABLES, MOST_COLUMNS):
            return
        try:
            row = _decoded(line)
        except (ValueError, RecursionError):
            return
        if not line.endswith(b"\n") or not isinstance(row, dict):
            return
        yield row

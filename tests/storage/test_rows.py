"""Typed rows: written as `json.dumps` writes them, read strictly."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from dcpg.errors import BadInput
from dcpg.storage import rows
from dcpg.storage.rows import (
    MOST_ROW,
    Evaluation,
    Event,
    Metrics,
    Rows,
    Split,
    Summary,
    Timing,
    count_lines,
    count_rows,
    parse,
    read,
    read_rows,
)

OLDER = Path(__file__).parents[1] / "data" / "schema-5"
METRICS = {
    "rollout": 1, "steps": 128, "episode_returns": [1.0, 2.5], "episode_lengths": [3, 4], "episode_levels": [7, -1],
    "reward_variance": 0.5, "levels_scored": 3, "levels_top_probability": None, "augmentation": "crop",
    "policy.J_pi": -1e-9, "policy.J_pi.scaled": -1e-9, "policy.gradient_norm": 0.25,
}  # fmt: skip
TEST = {
    "test_return": 1.5, "test_returns": [1.0, 2.0], "test_levels": [5, 9], "test_predicted_value": 0.1,
    "test_true_value": 0.2, "test_true_value_own_gamma": 0.3,
}  # fmt: skip
EVALUATION = {"k": 0, "rollout": 1, "steps": 128, **TEST}
TIMING = {"steps": 128, "steps_per_s": 80.5, "seconds": {"collect": 1.0, "save": 0.0}}
SUMMARY = {
    "method": "dcpg", "game": "maze", "seed": 0, "steps": 128, "steps_asked": 130, "status": "finished",
    "train_return": None, "test_return": 1.5, "train_returns": None, "test_returns": [1.5],
}  # fmt: skip
ENDED = {
    "run": "a", "event": "ended", "attempt": 2, "code": None, "node": "n", "place": "", "last_lines": "x", "time": "t"
}  # fmt: skip
KINDS = [(Metrics, METRICS), (Evaluation, EVALUATION), (Timing, TIMING), (Summary, SUMMARY), (Event, ENDED)]


@pytest.mark.parametrize(("kind", "plain"), KINDS)
def test_a_row_is_written_as_it_was_read(kind: Any, plain: dict[str, Any]) -> None:
    assert json.dumps(kind.parse(plain).plain()) == json.dumps(plain)


def test_columns_that_were_not_given_are_not_written() -> None:
    started = Event(run="a", event="started", attempt=1, time="t")
    assert started.plain() == {"run": "a", "event": "started", "attempt": 1, "time": "t"}


@pytest.mark.parametrize("run", ["dcpg-finished", "ddcpg-expected", "ppo-laptop"])
def test_rows_of_an_older_run_keep_their_bytes(run: str) -> None:
    for name, kind in (("metrics", Metrics), ("eval", Evaluation)):
        data = (OLDER / run / f"{name}.jsonl").read_text()
        written = "".join(json.dumps(row.plain()) + "\n" for row in read(OLDER / run / f"{name}.jsonl", kind))
        assert written == data


@pytest.mark.parametrize(
    ("kind", "plain", "change", "sentence"),
    [
        (Metrics, METRICS, {"steps": 0}, "steps has the value 0 (expected `int` >= 1)"),
        (Metrics, METRICS, {"episode_returns": [1.0, "2"]}, "episode_returns has the value '2'"),
        (Metrics, METRICS, {"reward_variance": math.nan}, "reward_variance has the value nan"),
        (Metrics, METRICS, {"policy.J_pi": math.inf}, "policy.J_pi has the value inf, which is not a number"),
        (Metrics, METRICS, {"policy.J_pi": [1.0]}, "more has the value"),
        (Evaluation, EVALUATION, {"steps": True}, "steps has the value True"),
        (Evaluation, EVALUATION, {"test_return": 1.6}, "test_return is 1.6, but its episodes' mean is 1.5"),
        (Evaluation, EVALUATION, {"test_levels": [5]}, "test_returns and test_levels are not lists of equal length"),
        (Evaluation, EVALUATION, {"test_returns": [], "test_levels": []}, "are not lists of equal length"),
        (Evaluation, EVALUATION, {"test_true_value": 1e101}, "test_true_value has the value 1e+101"),
        (Evaluation, EVALUATION, {"train_return": 1.0}, "train_predicted_value is missing"),
        (Timing, TIMING, {"seconds": {"collect": "long"}}, "seconds has the value"),
        (Summary, SUMMARY, {"status": "well"}, "status has the value 'well'"),
        (Event, ENDED, {"event": "vanished"}, "event has the value 'vanished'"),
        (Event, ENDED, {"code": 1.5}, "code has the value 1.5"),
    ],
)
def test_a_row_that_is_not_one_is_refused_with_its_column(
    kind: Any, plain: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput) as refused:
        parse(plain | change, kind, "file, row 3")
    assert str(refused.value).startswith("file, row 3: ")
    assert sentence in str(refused.value)


@pytest.mark.parametrize("column", ["k", "rollout", "steps", "test_return", "test_predicted_value"])
def test_a_missing_column_is_named(column: str) -> None:
    with pytest.raises(BadInput, match=f"row 1: {column} is missing"):
        parse({k: v for k, v in EVALUATION.items() if k != column}, Evaluation, "row 1")


def test_a_file_ends_at_its_first_torn_line(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "eval.jsonl")
    row = Evaluation.parse(EVALUATION)
    rows.append(row)
    rows.append(row)
    with open(rows.path, "ab") as file:
        file.write(json.dumps(EVALUATION).encode()[:40])
    assert read(rows.path, Evaluation) == [row, row]
    rows.truncate(1)
    assert read_rows(rows.path) == [EVALUATION]
    assert read(tmp_path / "none.jsonl", Evaluation) == []


def test_whole_numbers_are_returns_too() -> None:
    split = Evaluation.parse(EVALUATION | {"test_return": 2, "test_returns": [1, 3]}).splits["test"]
    assert isinstance(split, Split)
    assert (split.mean, split.returns) == (2.0, [1.0, 3.0])


def test_a_row_that_would_take_many_times_its_size_ends_the_file(tmp_path: Path) -> None:
    row = b'{"steps": 1}\n'
    for bomb in (b'{"a": [' + b"[]," * 10_000 + b"[]]}\n", b"{" + b'"a":0,' * 10_001 + b'"a":0}\n'):
        (tmp_path / "rows").write_bytes(row + bomb + row)
        assert read_rows(tmp_path / "rows") == [{"steps": 1}]
        assert (count_rows(tmp_path / "rows"), count_lines(tmp_path / "rows")) == (1, 3)
    long = b'{"a": "' + b"x" * MOST_ROW + b'"}\n'
    (tmp_path / "rows").write_bytes(row + long)
    assert count_rows(tmp_path / "rows") == 1


def test_a_runs_own_rows_are_read_line_by_line_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short episodes make long files: what a resume needs of them has no bound of a few hundred megabytes."""
    path, data = tmp_path / "rows", b"".join(b'{"steps": %d, "words": "abcdefgh"}\n' % n for n in range(50))
    path.write_bytes(data + b'{"torn')
    monkeypatch.setattr(rows, "MOST_ROWS", 100)
    assert (count_rows(path), count_lines(path)) == (50, 50)
    assert [row["steps"] for row in rows.rows_of(path)] == list(range(50))
    first = b"".join(data.splitlines(keepends=True)[:20])
    assert rows.first_rows(path, 20) == first
    assert rows.first_rows(path, 0) == b""
    assert rows.hash_of_first(path, 20) == hashlib.sha256(first).hexdigest()
    found = [rows.row_at(path, number) for number in (0, 49, 50, 51)]
    assert [row and row["steps"] for row in found] == [0, 49, None, None]
    monkeypatch.setattr(rows, "MOST_ROW", 8)  # lines that are no rows come in parts, and count once
    assert (count_rows(path), count_lines(path)) == (0, 50)
    assert rows.first_rows(path, 20) == first
    assert rows.row_at(path, 3) is None
    file = Rows(path)
    file.truncate(20)
    assert path.read_bytes() == first
    assert file.sha256 == hashlib.sha256(first).hexdigest()
    os.truncate(path, 2**33 + 1)
    with pytest.raises(BadInput, match=r"cannot be read \(it has more than"):
        count_lines(path)

"""Runs that cannot be trusted: they are left out, or read up to the damage, and a note says so."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcpg.report.figures import game_title, method_title
from dcpg.report.write import write_report
from dcpg.runs.collection import read
from dcpg.text import LONGEST_DRAWN
from tests.report.grid import Command, Figure, assert_cell, deviation, mean, read_csv
from tests.synthetic import Row, configuration, configured, edit, few, lines, of_a_stranger, some, stiffness_rows


def put(number: int, **values: Any) -> Callable[[Path], None]:
    return edit("eval.jsonl", lambda rows: rows[number].update(values))


def measured(**wrong: Any) -> Callable[[Path], None]:
    """A run with measurements, one of them wrong."""

    def damage(run: Path) -> None:
        configured(lambda c: c.update(analyse=["stiffness"]))(run)
        rows = stiffness_rows(configuration("dcpg", "bigfish", 0, preset="tiny"), random.Random(0))
        (run / "metrics.jsonl").write_text("".join(lines([rows[0], rows[2] | wrong])))

    return damage


def drop(pattern: str) -> Callable[[list[Row]], None]:
    """Drop the columns of the last row with such a name."""

    def change(rows: list[Row]) -> None:
        for column in [name for name in rows[2] if re.fullmatch(pattern, name)]:
            del rows[2][column]

    return change


LEFT_OUT = [
    (put(1, train_return="high"), "left out: eval.jsonl, row 2: train_return has the value 'high'"),
    (put(1, test_true_value=None), "left out: eval.jsonl, row 2: test_true_value has the value None"),
    (put(2, test_return=math.nan), "left out: eval.jsonl, row 3: test_return has the value nan"),
    (put(0, train_predicted_value=math.inf), "row 1: train_predicted_value has the value inf"),
    (put(0, train_predicted_value=10**400), "row 1: train_predicted_value has the value 10000000000"),
    (put(2, test_returns=[1e300] * 3, test_return=1e300), "row 3: test_return has the value 1e+300"),
    (put(2, train_return=True), "row 3: train_return has the value True (expected `float`, got `bool`)."),
    (put(2, train_return=17.25), "left out: eval.jsonl, row 3: train_return is 17.25, but its episodes' mean is "),
    (put(2, test_returns=[]), "row 3: test_returns and test_levels are not lists of equal length."),
    (put(2, test_levels=[1]), "row 3: test_returns and test_levels are not lists of equal length."),
    (put(2, test_levels=[1, 2, -3]), "row 3: test_levels are not level seeds."),
    (put(2, test_levels=[1, 2, 2**31]), "row 3: test_levels are not level seeds."),
    (put(2, test_levels=[1, 2, True]), "row 3: test_levels has the value True (expected `int`, got `bool`)."),
    (edit("eval.jsonl", drop("test_return")), "row 3: test_return is missing."),
    (edit("eval.jsonl", drop("train_return")), "row 3: train_return is missing."),
    (put(1, steps=1.5), "row 2: steps has the value 1.5 (expected `int`, got `float`)."),
    (put(1, steps=64), "left out: eval.jsonl: steps do not grow from row to row."),
    (put(1, steps=2048), "left out: eval.jsonl: steps do not grow from row to row."),
    (put(2, steps=4096), "left out: eval.jsonl: an evaluation at 4,096 steps, but the run is one of 2,048."),
    (configured(lambda c: c.update(method="dcgp")), "left out: config.json: Unknown method 'dcgp'"),
    (configured(lambda c: c.update(method=["dcpg"])), "left out: config.json: method is \"['dcpg']\", not a name"),
    (configured(lambda c: c.update(game="mase")), "left out: config.json: Unknown game 'mase'; did you mean 'maze'?"),
    (configured(lambda c: c.update(preset="huge")), "left out: Unknown preset 'huge'"),
    (configured(lambda c: c.update(schema=3)), "config.json: it has schema 3; this program reads schemas 5, 6"),
    (configured(lambda c: c["algorithm"].update(gamma=10**400)), "config.json cannot be read (it has a number of more"),
    (configured(lambda c: c.pop("seed")), "left out: config.json: seed is missing."),
    (lambda run: (run / "config.json").write_text("{" * 9), "config.json cannot be read"),
    (lambda run: (run / "config.json").write_text("[" * 100_000), "cannot be read (it is nested too deeply"),
    (lambda run: (run / "config.json").write_text("[]"), "config.json is not a run's configuration."),
    (measured(stiffness="stiff"), "left out: metrics.jsonl, row 2: stiffness is 'stiff', not a number."),
    (measured(stiffness_sign_free=None), "metrics.jsonl, row 2: stiffness_sign_free is None, not a number."),
    (measured(steps="many"), "left out: metrics.jsonl, row 2: steps has the value 'many' (expected `int`, got `str`)."),
    (put(2, test_levels=[1, 2, 2**80]), "row 3: test_levels are not level seeds."),
    (put(2, test_returns=[1, 2, "3"]), "row 3: test_returns has the value '3' (expected `float`, got `str`)."),
    (edit("eval.jsonl", drop("test_.*")), "left out: eval.jsonl, row 3: test_return is missing."),
    (configured(lambda c: c["preset_values"].update({"algorithm.N_pi": {}})), "config.json: preset_values has {}"),
]  # fmt: skip
UNFINISHED = [
    (edit("eval.jsonl", lambda rows: "".join(lines(rows))[:-9]), "eval.jsonl is torn: 1 of 3 lines were passed over"),
    (edit("eval.jsonl", lambda rows: "".join(lines(rows)).rstrip("\n")), "is torn: 1 of 3 lines were passed over"),
    (
        edit("eval.jsonl", lambda rows: lines(rows)[0] + lines(rows)[1][:50] + "\n" + lines(rows)[2]),
        "eval.jsonl is torn: 2 of 3 lines were passed over",
    ),
    (edit("eval.jsonl", lambda rows: lines(rows)[0] + "\n" + lines(rows)[2]), "2 of 3 lines were passed over"),
    (edit("eval.jsonl", lambda rows: lines(rows)[0] + "7\n"), "eval.jsonl is torn: 1 of 2 lines were passed over"),
    (edit("eval.jsonl", lambda rows: lines(rows)[0] + "\x00\x01\n"), "1 of 2 lines were passed over"),
]
NOT_BEGUN = [
    (edit("eval.jsonl", lambda rows: ""), "no evaluation yet"),
    (lambda r: (r / "eval.jsonl").unlink(), "no evaluation yet"),
]


def damaged_copies(runs: Path, cases: list[tuple[Callable[[Path], Any], str]]) -> dict[Path, str]:
    """Runs of DCPG on BigFish, one seed per case, each damaged in another way."""
    found = {}
    for seed, (damage, words) in enumerate(cases, 10):
        path = some(runs / f"damaged-{seed}", "dcpg", "bigfish", seed, level=90.0).path
        damage(path)
        found[path] = words
    return found


@pytest.mark.parametrize(("cases", "unfinished"), [(LEFT_OUT, 0), (UNFINISHED, len(UNFINISHED)), (NOT_BEGUN, 0)])
def test_damaged_runs_are_told_and_not_counted(
    cases: list[tuple[Callable[[Path], Any], str]], unfinished: int, tmp_path: Path, command: Command
) -> None:
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    damaged = damaged_copies(tmp_path / "runs", cases)
    code, out, err, report = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert report is not None
    told = {problem.path: problem.text for problem in report.problems}
    assert len(report.problems) == len(cases)
    for path, words in damaged.items():
        assert words in told[path]
        assert "\n" not in told[path]
        assert f"note: {path}: {told[path]}\n" in out
    assert f"8 finished, {unfinished} unfinished." in out
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert_cell(cell, Figure(mean(finals), deviation(finals), "2", None))
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert (f"{unfinished} unfinished runs are not counted." in text) == bool(unfinished)


def renamed(**changes: Any) -> Callable[[Path], None]:
    """Change the names that config.json records of a plugin and of an environment."""

    def change(plain: Row) -> None:
        plain |= {"game": f"own:{changes.get('name', 'x')}", **changes.get("plain", {})}
        plain["environment"] |= {key: changes[key] for key in ("name", "id", "test_id") if key in changes}
        plain["plugins"][0] |= changes.get("plugin", {})

    return configured(change)


@pytest.mark.parametrize("size", [1e100, 1e69])
def test_returns_beyond_any_bound_do_not_end_a_report(size: float, tmp_path: Path) -> None:
    few(tmp_path / "runs", ("ppo", "ppg", "dcpg"), (0, 1, 2))
    for number, sign in enumerate((1, -1, 1)):
        path = some(tmp_path / "runs" / f"far-{number}", "ddcpg", "bigfish", number).path
        put(2, test_return=sign * size, test_returns=[sign * size] * 3)(path)
    made = write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    told = [problem.text for problem in made.problems if "far-" in str(problem.path)]
    assert len(told) == (3 if size > 1e70 else 0)
    assert all("row 3: test_return is" in text and "which is not a return" in text for text in told)


def test_a_method_that_nobody_explained_does_not_end_a_report(tmp_path: Path) -> None:
    configured(lambda plain: plain.update(explained=""))(of_a_stranger(tmp_path / "runs" / "one", "x"))
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert list(data["algorithms"].values()) == ["not recorded"]


STRANGERS: list[tuple[Callable[[Path], None], str]] = [
    (renamed(name="n" * 20_000), "environment is not what a run records of one (a name is no text of at most 300"),
    (renamed(name="n\ud800"), "environment is not what a run records of one (a name is no text of at most 300"),
    (
        renamed(id="n" * 2_000_001),
        "environment is not what a run records of one (an id is no text of at most 2,000,000",
    ),
    (renamed(test_id="n" * 2_000_001), "environment is not what a run records of one (an id is no text of at most"),
    (renamed(plugin={"name": "m" * 20_000}), "plugins is not a list of what was declared outside of dcpg."),
    (renamed(plugin={"name": "m\udfff"}), "plugins is not a list of what was declared outside of dcpg."),
    (renamed(plugin={"plugin": "p" * 2_000_001}), "plugins is not a list of what was declared outside of dcpg."),
    (renamed(plain={"plugins": [{}] * 100_000}), "plugins is not a list of what was declared outside of dcpg."),
    (renamed(name="n" * 400, plain={"environment": {}}), "environment is not what a run records of one"),
    (configured(lambda c: c.update(game="own:" + "n" * 400, environment=None)), "config.json: game is 'own:nnn"),
    (configured(lambda c: c["algorithm"].update(gamma="g" * 20_000)), "characters."),
    (configured(lambda c: c.update(preset="p" * 3_000_000)), "left out: Unknown preset 'ppp"),
    (configured(lambda c: c.update(preset_values="p" * 3_000_000)), "left out: config.json: preset_values is 'ppp"),
]


def test_runs_with_names_of_any_length_are_left_out(tmp_path: Path) -> None:
    """Nobody draws them, and no message has megabytes. Ids may be long: they have the values that a function got."""
    kept = of_a_stranger(tmp_path / "kept", "x")
    renamed(name="n" * 296, id="i" * 1_900_000, plugin={"plugin": "/p" * 2000})(kept)
    damaged = {}
    for number, (damage, words) in enumerate(STRANGERS):
        path = of_a_stranger(tmp_path / f"{number}", "x", number)
        damage(path)
        damaged[path] = words
    records, problems = read([tmp_path])
    assert [record.path for record in records] == [kept]
    assert [str(problem.path) for problem in problems] == sorted(map(str, damaged))
    for problem in problems:
        assert damaged[problem.path] in problem.text
        assert len(problem.text) <= 2000


def test_long_names_are_cut_in_figures(tmp_path: Path) -> None:
    renamed(name="n" * 296)(of_a_stranger(tmp_path / "run", "x"))
    assert len(game_title(read([tmp_path])[0][0].game)) == LONGEST_DRAWN
    ends = [method_title(f"dcpg [gamma={'g' * 1900}{end}]") for end in "ab"]
    assert [title[-3:] for title in ends] == ["ga]", "gb]"]  # so that they do not look alike
    assert all("g...g" in title and len(title) <= LONGEST_DRAWN for title in ends)


WHOSE = {"method": "ddcpg", "game": "bigfish"}
GOOD_LEVELS = WHOSE | {
    "analysis": "levels",
    "steps": 2048,
    "train": {"levels": [1], "returns": [1.0]},
    "test": {"levels": [7], "returns": [2.0]},
}
GOOD_ACTIONS = WHOSE | {
    "analysis": "ood-actions",
    "mean": 1,
    "std": 1,
    "raw_mean": 1,
    "raw_std": 1,
    "transitions": 5,
    "left_out": 0,
    "steps": 2048,
}
GARBAGE: list[tuple[str, str | Row, str]] = [
    ("levels", "not JSON", "Expecting value"),
    ("levels", "[]", "indices"),
    ("levels", "[" * 100_000, "nested too deeply"),
    ("levels", {"train": {"levels": [1], "returns": []}}, "train does not have one return per level"),
    ("levels", {"train": {"levels": [-1], "returns": [1]}}, "train does not have one return per level"),
    ("levels", {"test": {"levels": [1], "returns": [math.nan]}}, "it has the number nan"),
    ("levels", {"test": None}, "subscriptable"),
    ("levels", {"seed": 99}, "it is of another run"),
    ("levels", {"steps": 1024}, "it is of the weights at 1,024 steps"),
    ("ood-actions", json.dumps({"mean": 1}), "analysis"),
    ("ood-actions", {"game": "maze"}, "it is of another run"),
    ("ood-actions", {"transitions": 0}, "no transition was counted"),
    ("ood-actions", {"std": -1}, "std is -1"),
    ("ood-actions", {"raw_mean": 10**400}, "it has a number of more than 64 bits"),
]


def test_analyses_that_are_garbage_are_passed_over(tmp_path: Path, command: Command) -> None:
    some(tmp_path / "runs" / "ppo", "ppo")
    paths = []
    good = {"levels": GOOD_LEVELS, "ood-actions": GOOD_ACTIONS}
    for seed, (name, bad, _) in enumerate(GARBAGE):
        run = some(tmp_path / "runs" / f"ddcpg-{seed}", "ddcpg", seed=seed).path
        (run / "analysis").mkdir()
        text = bad if isinstance(bad, str) else json.dumps(good[name] | {"seed": seed} | bad)
        (run / "analysis" / f"{name}.json").write_text(text)
        paths.append(run)
    code, out, _, report = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    told = {problem.path: problem.text for problem in report.problems}
    assert sorted(told) == sorted(paths)
    for path, (name, _, words) in zip(paths, GARBAGE, strict=True):
        assert told[path].startswith(f"analysis/{name}.json was passed over (")
        assert words in told[path]
        assert f"note: {path}: {told[path]}\n" in out
    assert all(record.analyses == {} for record in report.comparison.records)
    assert read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DDCPG"]["seeds"] == str(len(GARBAGE))
    assert command(tmp_path / "runs", "table10", "--out", tmp_path / "out")[0] == 2
    # and what is none is kept
    for name, kept in good.items():  # without columns that no report reads, however long
        (paths[0] / "analysis" / f"{name}.json").write_text(json.dumps(kept | {"seed": 0, "more": [0] * 9}))
    (record, *_), notes = read([paths[0]])
    assert notes == []
    whose = ("analysis", "method", "game", "seed")
    for name, kept in good.items():
        wanted = {k: v for k, v in kept.items() if k not in whose} | {"asked": "options unknown"}
        assert record.analyses[name] == wanted

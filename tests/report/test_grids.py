"""The table of a grid: its rows, and every number in it against plain sums."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcpg.report.write import write_report
from tests.browser import View
from tests.report.grid import RANGES, SCORE, Command, deviation, mean
from tests.synthetic import Run, configured, edit, of_a_stranger, some

MIN_MAX = "Mean of min-max scores"
T_975 = {1: 12.706205, 2: 4.302653}  # Student's t, by degrees of freedom
HEAD = ["training levels mean", "training levels low", "training levels high", "training levels seeds"]
ETAS = (("ddcpg", 0.5), ("ddcpg", 1.0), ("dcpg+fi", 0.5), ("dcpg+fi", 1.0))
LEVELS = {"train": "training levels", "test": "unseen levels"}
Key = tuple[str, ...]


def of_eta(folder: Path, games: tuple[str, ...] = ("bigfish", "maze")) -> dict[tuple[str, float, str], list[Run]]:
    """The named sweep eta, three seeds of a small size."""
    return {
        (method, eta, game): [
            some(folder / f"{game}-{method}-{eta}-{seed}", method, game, seed, settings={"algorithm.eta": eta})
            for seed in (0, 1, 2)
        ]
        for method, eta in ETAS for game in games
    }  # fmt: skip


def table(out: Path, *names: str) -> dict[Key, dict[str, str]]:
    """(score or game, method, values of the named settings) -> column -> text."""
    with open(out / "tables" / "grid.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [(row["score or game"], row["method"], *(row[name] for name in names)) for row in rows]
    assert len(set(keys)) == len(rows)
    return dict(zip(keys, rows, strict=True))


def finals(runs: list[Run], split: str) -> list[float]:
    return [run.rows[-1][f"{split}_return"] for run in runs]


def markdown(out: Path) -> str:
    return (out / "tables" / "grid.md").read_text()


def assert_numbers(row: dict[str, str], levels: str, value: float, ends: tuple[float, float] | None, n: int) -> None:
    assert float(row[f"{levels} mean"]) == pytest.approx(value, rel=1e-9)
    found = (row[f"{levels} low"], row[f"{levels} high"])
    assert found == ("", "") if ends is None else tuple(map(float, found)) == pytest.approx(ends, rel=1e-6)
    assert row[f"{levels} seeds"] == str(n)


def test_the_sweep_over_eta(tmp_path: Path, command: Command) -> None:
    runs = of_eta(tmp_path / "runs")
    code, out, _, _ = command(tmp_path / "runs", "grid", "--out", tmp_path / "out")
    assert code == 0
    assert "Tables: grid\n" in out
    assert sorted(p.name for p in (tmp_path / "out" / "tables").iterdir()) == ["grid.csv", "grid.md", "grid.tex"]
    rows = table(tmp_path / "out", "eta", "eta by default")
    titles = {("ddcpg", 0.5): ("DDCPG", "0.5", "0.5"), ("ddcpg", 1.0): ("DDCPG", "1.0", "0.5"),
              ("dcpg+fi", 0.5): ("DCPG+FI", "0.5", "1.0"), ("dcpg+fi", 1.0): ("DCPG+FI", "1.0", "1.0")}  # fmt: skip
    assert len(rows) == 3 * 4
    for (method, eta), title in titles.items():
        for split, levels in LEVELS.items():
            for game, name in (("bigfish", "BigFish"), ("maze", "Maze")):
                values = finals(runs[method, eta, game], split)
                half = T_975[2] * deviation(values) / math.sqrt(3)
                ends = (mean(values) - half, mean(values) + half)
                assert_numbers(rows[name, *title], levels, mean(values), ends, 3)
            scores = [
                mean([(v - low) / (high - low) for v in finals(runs[method, eta, game], split)])
                for game, (low, high) in RANGES.items() if game in ("bigfish", "maze")
            ]  # fmt: skip
            score = rows[MIN_MAX, *title]
            assert float(score[f"{levels} mean"]) == pytest.approx(mean(scores), rel=1e-9)
            assert float(score[f"{levels} low"]) <= mean(scores) <= float(score[f"{levels} high"])
            assert score[f"{levels} seeds"] == "3"
    text = markdown(tmp_path / "out")
    assert [line.split("|")[1:3] for line in text.split("\n")[8:12]] == [
        [" DCPG+FI ", " 0.5 "], [" DCPG+FI ", " 1.0\\* "], [" DDCPG ", " 0.5\\* "], [" DDCPG ", " 1.0 "],
    ]  # fmt: skip
    assert f"No {SCORE}: PPO has no finished run on BigFish, Maze" in text
    assert f"{MIN_MAX} over BigFish, Maze." in text
    assert "Unlike the paper's: steps=2,048 instead of 25,000,000," in text
    assert "An asterisk marks the default of the method and preset." in text


def test_scores_are_divided_by_ppo_where_it_has_finished(tmp_path: Path) -> None:
    runs = of_eta(tmp_path / "runs")
    ppo = {
        g: [some(tmp_path / "ppo" / f"{g}-{s}", "ppo", g, s, level=4.0) for s in (0, 1)] for g in ("bigfish", "maze")
    }
    other = some(tmp_path / "ppo" / "coinrun", "ppo", "coinrun")  # no row has it, so the score does not cover it
    write_report([tmp_path / "runs", tmp_path / "ppo"], tmp_path / "out", ["grid"])
    rows = table(tmp_path / "out", "eta")
    assert ("CoinRun", "DDCPG", "1.0") not in rows
    assert "PPO" not in {method for _, method, _ in rows}
    for split, levels in LEVELS.items():
        means = {game: mean(finals(found, split)) for game, found in ppo.items()}
        seeds = [
            100 * mean([finals(runs["ddcpg", 1.0, game], split)[k] / means[game] for game in means]) for k in (0, 1, 2)
        ]
        row = rows[SCORE, "DDCPG", "1.0"]
        assert float(row[f"{levels} mean"]) == pytest.approx(mean(seeds), rel=1e-9)
        assert row[f"{levels} seeds"] == "3"
    assert f"{SCORE} over BigFish, Maze, divided by these PPO runs." in markdown(tmp_path / "out")
    assert other.path.exists()


def test_a_row_without_one_of_the_games_has_no_score(tmp_path: Path) -> None:
    """Nobody gains by a game that is left out; an unfinished run counts as none."""
    runs = of_eta(tmp_path / "runs")
    for run in runs["ddcpg", 1.0, "maze"]:
        edit("eval.jsonl", lambda rows: rows.pop() and None)(run.path)
    for run in runs["dcpg+fi", 0.5, "bigfish"][1:]:
        edit("eval.jsonl", lambda rows: rows.pop() and None)(run.path)
    write_report([tmp_path / "runs"], tmp_path / "out", ["grid"])
    rows = table(tmp_path / "out", "eta")
    for block in (MIN_MAX, "Maze"):
        assert [rows[block, "DDCPG", "1.0"][column] for column in HEAD] == ["", "", "", ""]
    values = finals(runs["ddcpg", 1.0, "bigfish"], "test")
    assert float(rows["BigFish", "DDCPG", "1.0"]["unseen levels mean"]) == pytest.approx(mean(values))
    one = finals(runs["dcpg+fi", 0.5, "bigfish"], "test")[:1]
    assert_numbers(rows["BigFish", "DCPG+FI", "0.5"], "unseen levels", one[0], None, 1)
    assert rows[MIN_MAX, "DCPG+FI", "0.5"]["unseen levels seeds"] == "1-3"
    text = markdown(tmp_path / "out")
    assert "Without a score, because a finished run is missing: DDCPG with eta=1.0 (Maze)." in text
    assert f"| DCPG+FI | 0.5 | {mean(finals(runs['dcpg+fi', 0.5, 'bigfish'], 'train')[:1]):.2f} (1 seed) |" in text
    assert "5 unfinished runs are not counted." in text


def test_several_settings_have_a_row_for_each_combination(tmp_path: Path) -> None:
    """Settings of the method and of the environment, each of which some runs change alone."""
    runs = {
        (beta, count): [
            some(tmp_path / "runs" / f"{beta}-{count}-{seed}", "dcpg", "bigfish", seed,
                 settings={"algorithm.beta_pi": beta, "levels.count": count})
            for seed in (0, 1)
        ]
        for beta in (0.5, 1.0) for count in (10, 50, 200)
    }  # fmt: skip
    runs[1.0, 200].append(some(tmp_path / "runs" / "more", "dcpg", "bigfish", 2, settings={"levels.count": 200}))
    far = some(tmp_path / "runs" / "far", "dcpg", "bigfish", 0, settings={"levels.count": 99, "env.num_envs": 16})
    report = write_report([tmp_path / "runs"], tmp_path / "out", ["grid"])
    rows = table(tmp_path / "out", "beta_pi", "levels.count")
    assert [key[2:] for key in rows if key[0] == "BigFish"] == [
        ("0.5", "10"), ("0.5", "50"), ("0.5", "200"), ("1.0", "10"), ("1.0", "50"), ("1.0", "200"),
    ]  # fmt: skip
    for (beta, count), found in runs.items():
        values = finals(found, "train")
        n = len(values)
        half = T_975[n - 1] * deviation(values) / math.sqrt(n)
        row = rows["BigFish", "DCPG", str(beta), str(count)]
        assert_numbers(row, "training levels", mean(values), (mean(values) - half, mean(values) + half), n)
        assert (row["beta_pi by default"], row["levels.count by default"]) == ("1.0", "200")
    told = {problem.text for problem in report.problems}
    sizes = "not compared with the others: 2,048 steps, preset tiny"
    assert told == {
        f"4 runs are {sizes}, 10 training levels; the table grid has them",
        f"4 runs are {sizes}, 50 training levels; the table grid has them",
        f"1 run is {sizes}, 99 training levels (env.num_envs=16)",
    }
    assert far.path.exists()
    text = markdown(tmp_path / "out")
    assert "What no column names is as in most runs: 2,048 steps, preset tiny, 200 training levels." in text
    assert "levels.count=" not in text.split("Unlike the paper's")[1]  # the column has it


def test_two_precisions_are_a_grid(tmp_path: Path) -> None:
    runs = {
        precision: [
            some(tmp_path / "runs" / f"{precision}-{seed}", "ppo", "bigfish", seed,
                 settings={"machine.precision": precision})
            for seed in (0, 1)
        ]
        for precision in ("fp32", "bf16")
    }  # fmt: skip
    write_report([tmp_path / "runs"], tmp_path / "out", ["grid"])
    rows = table(tmp_path / "out", "machine.precision")
    for precision, found in runs.items():
        row = rows["BigFish", "PPO", precision]
        values = finals(found, "train")
        half = T_975[1] * deviation(values) / math.sqrt(2)
        assert_numbers(row, "training levels", mean(values), (mean(values) - half, mean(values) + half), 2)
        assert row["machine.precision by default"] == "fp32"
    assert "machine.precision=" not in markdown(tmp_path / "out")  # the column has it


def test_runs_without_a_grid_have_no_such_table(tmp_path: Path, command: Command) -> None:
    some(tmp_path / "runs" / "ppo", "ppo")
    some(tmp_path / "runs" / "variant", "dcpg", settings={"algorithm.N_pi": 16})  # a single value
    code, _, err, _ = command(tmp_path / "runs", "grid", "--out", tmp_path / "out")
    assert code == 2
    assert err.startswith("dcpg: These runs do not allow grid;")


def test_methods_vary_settings_of_their_own(tmp_path: Path) -> None:
    """As in the named sweep regularisation: a method without a setting has nothing there."""
    for method, name, values in (("ppg+dr", "gamma", (0.98, 0.995)), ("ppg+ar", "alpha", (0.01, 0.05, 0.1))):
        for value in values:
            some(tmp_path / "runs" / f"{method}-{value}", method, settings={f"algorithm.{name}": value})
    write_report([tmp_path / "runs"], tmp_path / "out", ["grid"])
    lines = [line for line in markdown(tmp_path / "out").split("### BigFish")[1].split("\n") if line.startswith("| P")]
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| PPG+DR", "0.98", "-"], ["| PPG+DR", "0.995\\*", "-"],
        ["| PPG+AR", "0.999\\*", "0.01"], ["| PPG+AR", "0.999\\*", "0.05\\*"], ["| PPG+AR", "0.999\\*", "0.1"],
    ]  # fmt: skip
    tex = (tmp_path / "out" / "tables" / "grid.tex").read_text()
    assert tex.startswith("\\begin{longtable}{lllcc}\n\\caption{Returns by the values of settings. ")
    assert tex.count(" & ") == 4 * (1 + 2 * 5)  # the head, and five rows of a score and of a game


def test_the_page_has_the_grid(tmp_path: Path, look: Callable[..., View]) -> None:
    runs: Any = of_eta(tmp_path / "runs", ("bigfish",))
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    view = look((tmp_path / "out" / "report.html").as_uri())
    cells = view.page.locator("#grid tbody tr").nth(3).locator("td")
    assert cells.nth(1).inner_text() == "1.0"
    view.page.locator("#grid select").select_option(label="BigFish")
    values = finals(runs["ddcpg", 1.0, "bigfish"], "test")
    assert cells.nth(3).inner_text().startswith(f"{mean(values):.2f} (")
    assert cells.nth(3).inner_text().endswith("; 3 seeds)")
    links = view.page.locator("#grid a").all_inner_texts()
    assert links == ["grid.csv", "grid.md", "grid.tex"]
    assert all((tmp_path / "out" / "tables" / name).is_file() for name in links)
    assert view.errors == []


@pytest.mark.parametrize("name", ["levels.count", "env.mode"])
def test_rows_of_several_settings_have_no_score_that_means_different_returns(name: str, tmp_path: Path) -> None:
    """PPO differs between the settings, and modes have ranges of their own."""
    for value in (50, 200) if name == "levels.count" else ("easy", "hard"):
        for method in ("ppo", "dcpg"):
            for seed in (0, 1):
                some(tmp_path / "runs" / f"{method}-{value}-{seed}", method, seed=seed, settings={name: value})
    write_report([tmp_path / "runs"], tmp_path / "out", ["grid"])
    text = markdown(tmp_path / "out")
    assert f"No {SCORE}: PPO's returns differ between the settings of the rows" in text
    blocks = {key[0] for key in table(tmp_path / "out", name)}
    assert blocks == ({MIN_MAX, "BigFish"} if name == "levels.count" else {"BigFish"})
    assert ("No min-max scores" in text) == (name == "env.mode")


def test_names_of_strangers_are_no_formulae(tmp_path: Path) -> None:
    """Neither the name of a method and an environment nor the value of a setting; halves of characters are written."""
    words = '=HYPERLINK("http://example.org")'
    for number, gamma in enumerate((f"@{words}", f"+{words}\ud800")):
        path = of_a_stranger(tmp_path / "runs" / str(number), words)
        method = {"kind": "method", "name": words, "plugin": "m.py", "sha256": ""}
        configured(
            lambda plain, gamma=gamma, method=method: plain.update(
                init=None, method=words, plugins=[method], algorithm=plain["algorithm"] | {"gamma": gamma}
            )
        )(path)
    write_report([tmp_path / "runs"], tmp_path / "out", ["grid"])
    rows = table(tmp_path / "out", "gamma")
    assert list(rows) == [(f"'{words}", f"'{words}", f"'+{words}?"), (f"'{words}", f"'{words}", f"'@{words}")]

"""PPO-normalised scores: which games, which methods, and what they are divided by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dcpg.report import write as making
from dcpg.report.comparison import compare
from dcpg.report.scores import TWO_SEEDS, normalised_scores
from dcpg.report.write import write_report
from dcpg.runs.collection import read
from tests.report.grid import NAMES, SCORE, Command, Figure, assert_cell, deviation, mean, papers, plotted_of, read_csv
from tests.synthetic import Row, edit, few, some


def test_a_method_that_lacks_games_is_left_out_of_the_score_and_named(tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo", "ppg", "dcpg"), (0, 1))
    for seed in (0, 1):
        some(tmp_path / "runs" / f"ddcpg-{seed}", "ddcpg", "bigfish", seed)
    assert command(tmp_path / "runs", "table1", "--out", tmp_path / "out")[0] == 0
    cells = read_csv(tmp_path / "out" / "tables" / "table1.csv")
    finals = {(r.method, r.game, r.seed): r.rows[-1]["test_return"] for r in runs}
    ppo = {game: mean([finals["ppo", game, k] for k in (0, 1)]) for game in ("bigfish", "maze")}
    for method in ("ppo", "ppg", "dcpg"):
        seeds = [100 * mean([finals[method, game, k] / ppo[game] for game in ppo]) for k in (0, 1)]
        assert float(cells[SCORE, NAMES[method]]["mean"]) == pytest.approx(mean(seeds))
        assert float(cells[SCORE, NAMES[method]]["std"]) == pytest.approx(deviation(seeds))
    assert (cells[SCORE, "DDCPG"]["mean"], cells["BigFish", "DDCPG"]["seeds"]) == ("", "2")
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert "PPO-normalised score over BigFish, Maze, divided by these PPO runs (unseen levels)." in text
    assert "Without a score, because a finished run is missing: DDCPG (Maze)." in text


def test_without_ppo_there_is_no_score_and_a_sentence_says_why(tmp_path: Path) -> None:
    few(tmp_path / "runs", ("ppg", "dcpg", "separate-dcpg"), (0, 1))
    made = write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    assert made.tables == ["table1", "table7", "claims"]
    why = "No PPO-normalised score: there is no finished PPO run of the same setting to divide by."
    for name in ("table1", "table7"):
        assert SCORE not in {row for row, _ in read_csv(tmp_path / "out" / "tables" / f"{name}.csv")}
        for ending in ("md", "tex"):
            text = (tmp_path / "out" / "tables" / f"{name}.{ending}").read_text()
            assert why in text
            assert text.count(SCORE) == 1
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["headline"]["normalised"] == {"test": {}, "train": {}}
    assert data["headline"]["notes"] == {"test": [why], "train": [why]}
    (entry,) = [entry for entry in made.missing if "PPO runs of the same setting" in entry.what]
    assert len(entry.commands) == 4


def test_without_ppo_at_the_papers_size_the_papers_is_used_and_named(tmp_path: Path) -> None:
    finals: dict[str, dict[str, list[float]]] = {}
    for game in ("bigfish", "maze"):
        for method in ("dcpg", "ppg"):
            for seed in (0, 1):
                run = some(tmp_path / "runs" / f"{game}-{method}-{seed}", method, game, seed, preset="paper")
                finals.setdefault(method, {}).setdefault(game, []).append(run.rows[-1]["test_return"])
    write_report([tmp_path / "runs"], tmp_path / "out", ["table1", "table11"])
    printed = papers()
    ppo = {game: printed["test", "return", game, "ppo"][0] for game in ("bigfish", "maze")}
    cells = read_csv(tmp_path / "out" / "tables" / "table1.csv")
    for method, games in finals.items():
        value = 100 * mean([mean(found) / ppo[game] for game, found in games.items()])
        std = deviation([100 * mean([found[k] / ppo[game] for game, found in games.items()]) for k in (0, 1)])
        # the paper's score is of all games; over these two it follows from the returns that it prints
        of_paper = 100 * mean([printed["test", "return", game, method][0] / ppo[game] for game in games])
        wanted = Figure(value, std, "2", (of_paper, None))
        assert_cell(cells[SCORE, NAMES[method]], wanted)
        assert_cell(read_csv(tmp_path / "out" / "tables" / "table11.csv")["unseen levels", NAMES[method]], wanted)
    assert (cells[SCORE, "PPO"]["mean"], cells[SCORE, "PPO"]["paper mean"]) == ("", "100.0")
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert "PPO-normalised score over BigFish, Maze, divided by the paper's PPO (unseen levels)." in text


def test_a_ppo_mean_that_is_not_positive_gives_no_score(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppg", "ppg+dr"), (0,))
    few(tmp_path / "runs", ("ppo",), (0, 1))
    unseen = []
    for seed in (0, 1):

        def sink(rows: list[Row]) -> None:
            rows[-1]["test_returns"] = [-r for r in rows[-1]["test_returns"]]
            rows[-1]["test_return"] = -rows[-1]["test_return"]
            unseen.append(rows[-1]["test_return"])

        edit("eval.jsonl", sink)(tmp_path / "runs" / f"maze-ppo-{seed}")
    why = (
        f"No PPO-normalised score: PPO's mean return on 'maze' is {mean(unseen):g}; a ratio to it says nothing unless "
        "it is positive."
    )
    code, _, _, _ = command(tmp_path / "runs", "table1", "table3", "table7", "--out", tmp_path / "out")
    assert code == 0
    tables = {name: read_csv(tmp_path / "out" / "tables" / f"{name}.csv") for name in ("table1", "table3", "table7")}
    assert {row for row, _ in tables["table1"]} == {"BigFish", "Maze"}
    assert float(tables["table1"]["Maze", "PPO"]["mean"]) == pytest.approx(mean(unseen))
    assert {row for row, _ in tables["table3"]} == {"training levels"}
    assert {row for row, _ in tables["table7"]} == {"BigFish", "Maze", SCORE}
    for name, there in (("table1", True), ("table3", True), ("table7", False)):
        assert (f"- {why}\n" in (tmp_path / "out" / "tables" / f"{name}.md").read_text()) == there
    code, _, err, _ = command(tmp_path / "runs", "table11", "--out", tmp_path / "out")
    assert code == 2
    assert err.count("\n") == 1


def test_nobody_gains_by_a_game_that_is_left_out(tmp_path: Path) -> None:
    """DCPG without its worst game has no score and beats nobody; the others keep theirs over both games."""
    few(tmp_path / "runs", ("ppo", "ppg"), (0, 1))
    for seed in (0, 1):
        some(tmp_path / "runs" / f"dcpg-{seed}", "dcpg", "bigfish", seed, level=30.0)
    made = write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    for found in (data["headline"]["normalised"]["test"], data["headline"]["minmax"], data["profiles"]):
        assert set(found) == {"ppo", "ppg"}
    assert {(row["label"], row["over"]) for row in data["improvement"]} == {("ppo", "ppg"), ("ppg", "ppo")}
    assert "Without a score, because a finished run is missing: DCPG (Maze)." in data["headline"]["shared"]
    fair = made.comparison.fair(["ppo", "dcpg"], "test", ["bigfish"])
    assert (fair.methods, fair.lacking) == (["ppo", "dcpg"], {})


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Two methods with three seeds on BigFish; PPO has three on Maze too, DCPG one."""
    few(tmp_path / "runs", ("ppo",), (0, 1, 2))
    for game, seeds in (("bigfish", (0, 1, 2)), ("maze", (0,))):
        for seed in seeds:
            some(tmp_path / "runs" / f"dcpg-{game}-{seed}", "dcpg", game, seed)
    return tmp_path


def test_a_score_with_one_seed_on_a_game_has_no_interval_anywhere(
    uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plotted: dict[str, dict[str, Any]] = {}
    original = making._write_figures

    def look_and_write(figures: Any, *more: Any) -> list[Path]:
        plotted.update({name: plotted_of(figure) for name, figure in figures.items()})
        return original(figures, *more)

    monkeypatch.setattr(making, "_write_figures", look_and_write)
    write_report([uneven / "runs"], uneven / "out")
    data = json.loads((uneven / "out" / "report.json").read_text())
    headline = data["headline"]
    for method, there in (("ppo", True), ("dcpg", False)):
        found = [headline["normalised"][split][method] for split in ("train", "test")]
        found += [*headline["minmax"][method].values(), data["profiles"][method], data["efficiency"][method]]
        assert {(one["low"] is not None, one["high"] is not None) for one in found} == {(there, there)}
    assert [(one["low"], one["high"], one["seeds"]) for one in data["improvement"]] == [(None, None, [1, 3])] * 2
    assert [len(panel["bars"]) for panel in plotted["figure15"]["panels"]] == [1, 1, 1, 1]
    assert [[line["marker"] for line in p["lines"]].count("o") for p in plotted["figure15"]["panels"]] == [1, 1, 1, 1]
    for name in ("profiles", "sample-efficiency"):
        (panel,) = plotted[name]["panels"]
        assert (len(panel["lines"]), len(panel["bands"])) == (2, 1)


def test_the_page_draws_no_interval_that_it_denies(uneven: Path, look: Any) -> None:
    write_report([uneven / "runs"], uneven / "out", pictures=False)
    view = look((uneven / "out" / "report.html").as_uri())
    assert "none: one seed on a game (1-3)" in view.page.inner_text("#overview")
    view.page.evaluate("dcpgReport.drawAll()")
    errors = view.page.eval_on_selector(
        "#overview .chart", "n => [n.data[0].error_x.array, n.data[0].error_x.arrayminus]"
    )
    assert [[end is not None for end in ends] for ends in errors] == [[True, False], [True, False]]
    bands = view.page.eval_on_selector_all(
        "#statistics .chart", "nodes => nodes.map((n) => n.data.filter((t) => t.meta === 'band').length)"
    )
    assert bands == [1, 1, 0]
    titles = view.page.eval_on_selector_all("#statistics .chart", "nodes => nodes.map((n) => n.layout.title.text)")
    assert titles[2] == "Probability that the row beats the column, 1 to 3 seeds"
    assert view.errors == []


@pytest.mark.parametrize(("seeds", "said"), [((0,), False), ((0, 1), True), ((0, 1, 2), False)])
def test_intervals_over_two_seeds_are_said_to_rank_nobody(tmp_path: Path, seeds: tuple[int, ...], said: bool) -> None:
    few(tmp_path, seeds=seeds)
    comparison = compare(*read([tmp_path]))
    assert (TWO_SEEDS in normalised_scores(comparison, ["ppo", "dcpg"], "test").notes) == said

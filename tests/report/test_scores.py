"""PPO-normalised scores: which games, which methods, and what they are divided by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dcpg.report.write import write_report
from tests.report.grid import NAMES, SCORE, Command, Figure, assert_cell, deviation, mean, papers, read_csv
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

"""report.json, which holds everything that the page shows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dcpg.methods import METHODS
from dcpg.report import level_map, page_data
from dcpg.report import write as making
from dcpg.report.write import write_report
from tests import synthetic
from tests.report.grid import FIGURES, GAMES, Built, deviation, mean


def test_the_page_holds_the_same_scores(grid: Built) -> None:
    data = json.loads((grid.out / "report.json").read_text())
    assert data["runs"] == {"finished": 720, "unfinished": 0, "problems": 1}
    assert [m["label"] for m in data["methods"]] == list(METHODS)
    assert [g["id"] for g in data["games"]] == GAMES
    for split in ("train", "test"):
        for method, found in data["headline"]["normalised"][split].items():
            value, std = grid.score(method, split)
            assert (found["value"], found["std"]) == pytest.approx((value, std))
            assert found["low"] < value < found["high"]
    gaps = {(row["game"], row["label"]): row for row in data["gaps"]}
    for game in GAMES:
        for method in METHODS:
            ends = zip(grid.finals(method, game, "train"), grid.finals(method, game, "test"), strict=True)
            each = [train - test for train, test in ends]
            assert (gaps[game, method]["gap"], gaps[game, method]["std"]) == pytest.approx(
                (mean(each), deviation(each))
            )
    assert data["figures"] == [name for name in making.NAMES if name in FIGURES]
    assert "</script" not in json.dumps(data)


def test_the_yardstick_stands_beside_ppo_of_the_papers_sizes_alone(tmp_path: Path) -> None:
    """For runs of any length: published returns up to the steps reached, and the run's own interpolated there."""
    for name, method, more in (("ppo", "ppo", {}), ("dcpg", "dcpg", {}), ("small", "ppo", {"network.features": 64})):
        config = synthetic.configuration(method, "starpilot", 3, steps=600_000, settings=more)
        rows = synthetic.rows_of(config, random.Random(5), rollouts=(1, 11, 21, 31, 36))
        synthetic.write(tmp_path / "runs" / name, config, rows)
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    (found,) = json.loads((tmp_path / "out" / "report.json").read_text())["yardstick"]
    assert (found["game"], found["seed"]) == ("StarPilot", 3)
    published = [(p["steps"], p["published"]["train"], p["published"]["test"]) for p in found["points"]]
    assert published == [(100_000, 2.3, 2.34), (250_000, 3.22, 3.03), (500_000, 4.45, 3.8)]
    row = [json.loads(line) for line in (tmp_path / "runs" / "ppo" / "eval.jsonl").read_text().splitlines()]
    share = (100_000 - row[0]["steps"]) / (row[1]["steps"] - row[0]["steps"])
    expected = row[0]["test_return"] * (1 - share) + row[1]["test_return"] * share
    assert found["points"][0]["own"]["test"] == pytest.approx(expected)


def test_many_variants_are_compared_with_a_few_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic.few(tmp_path / "runs", ("ppo", "daac", "dcpg", "plr"), (0, 1))
    found = {}
    for most in (30, 3):
        monkeypatch.setattr(page_data, "MOST_PAIRED", most)
        write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
        found[most] = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(found[30]["improvement"]) == 4 * 3
    assert found[30]["improvement_over"] == found[30]["headline"]["methods"]
    assert found[3]["improvement_over"] == ["ppo", "dcpg"]
    assert found[3]["improvement"] == [
        pair for pair in found[30]["improvement"] if {pair["label"], pair["over"]} & {"ppo", "dcpg"}
    ]
    monkeypatch.setattr(page_data, "REFERENCES", ())
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["improvement_over"] == ["ppo"]


def test_curves_on_unseen_levels_that_were_not_always_played(tmp_path: Path) -> None:
    """A test environment may be given later: the curves have steps of their own, and the gap those of both."""
    for seed in (0, 1):
        run = synthetic.of_a_stranger(tmp_path / "runs" / f"{seed}", "x", seed, plugin=False)

        def lose(rows: list[synthetic.Row], seed: int = seed) -> None:
            for row in rows[: 1 + seed]:
                for name in [name for name in row if name.startswith("test_")]:
                    del row[name]

        synthetic.edit("eval.jsonl", lose)(run)
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    (found,) = json.loads((tmp_path / "out" / "report.json").read_text())["curves"]
    assert (found["steps"], found["seeds"]) == ([128, 1024, 2048], [2, 2, 2])
    assert "steps" not in found["train"]
    rows = [
        [json.loads(line) for line in (tmp_path / "runs" / f"{seed}" / "eval.jsonl").read_text().splitlines()]
        for seed in (0, 1)
    ]
    for name in ("test", "predicted_test", "gap"):
        assert (found[name]["steps"], found[name]["seeds"]) == ([1024, 2048], [1, 2])
    last = [row[2]["train_return"] - row[2]["test_return"] for row in rows]
    assert found["gap"]["mean"] == pytest.approx([rows[0][1]["train_return"] - rows[0][1]["test_return"], mean(last)])
    assert found["test"]["mean"][0] == pytest.approx(rows[0][1]["test_return"])


def test_the_map_says_how_many_levels_it_does_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that every level was played only if that is so of each seed."""
    analysis = {"analysis": "levels", "train": {"levels": [0, 1], "returns": [1.0, 2.0]}}
    for seed in (0, 1):
        run = synthetic.some(tmp_path / "runs" / f"{seed}", "dcpg", seed=seed)
        if seed == 0:
            (run.path / "analysis").mkdir()
            found = analysis | {"steps": 2048, "test": {"levels": [1000, 1001], "returns": [0.0, 3.0]}}
            found |= {"method": "dcpg", "game": "bigfish", "seed": 0}
            (run.path / "analysis" / "levels.json").write_text(json.dumps(found))
    monkeypatch.setattr(level_map, "MOST", 3)
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert data["problems"] == []
    shown = data["levels"]["bigfish"]
    assert (shown["levels"], shown["more"], shown["analysed"]) == ([0, 1, 2], 2, [])
    assert [entry["level"] for entry in shown["unseen"]["dcpg"]] == [1000, 1001]


def test_a_map_of_very_many_levels_is_drawn_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = synthetic.some(tmp_path / "runs" / "0", "dcpg")
    (run.path / "analysis").mkdir()
    found = {"analysis": "levels", "method": "dcpg", "game": "bigfish", "seed": 0, "steps": 2048}
    found["train"] = {"levels": [0, 1], "returns": [1.0, 2.0]}
    found["test"] = {"levels": list(range(1000, 1040)), "returns": [float(n) for n in range(40)]}
    (run.path / "analysis" / "levels.json").write_text(json.dumps(found))
    monkeypatch.setattr(level_map, "MOST_DRAWN", 5)
    report = write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    shown = level_map.level_map(report.comparison, "bigfish")
    assert shown is not None
    assert shown["sheet"]["of"] == [0, 1, 1000, 1001, 1002]
    assert len(shown["unseen"]["dcpg"]) == 16

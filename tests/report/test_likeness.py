"""Runs that are not the paper's are captioned with every difference, and the paper's numbers keep away from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dcpg.report.comparison import Comparison, compare
from dcpg.report.statistics import HARD_RANGES, PROCGEN_RANGES, RANGES
from dcpg.report.write import write_report
from dcpg.runs.collection import read
from dcpg.text import markdown
from tests.report.grid import Command, read_csv
from tests.synthetic import some


def comparison_of(folder: Path) -> Comparison:
    records, problems = read([folder])
    return compare(records, problems)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"settings": {"env.mode": "hard"}}, "env.mode=hard instead of easy"),
    "network": ({"settings": {"network.channels": "8,16"}}, "network.channels=8,16 instead of 16,32,32"),
    "levels": ({"settings": {"levels.count": 50}}, "levels.count=50 instead of 200"),
    "environments": ({"settings": {"env.num_envs": 32}}, "env.num_envs=32 instead of 64"),
    "precision": ({"settings": {"machine.precision": "bf16"}}, "machine.precision=bf16 instead of fp32"),
    "frames": ({"settings": {"env.frame_stack": 2}}, "env.frame_stack=2 instead of 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_differs_is_captioned_and_loses_the_papers_column(name: str, tmp_path: Path) -> None:
    more, words = CASES[name]
    some(tmp_path / "runs" / "a", "ppo", "bigfish", 0, preset="paper", **more)
    found = comparison_of(tmp_path / "runs")
    assert words in found.caption
    assert not found.like_paper
    assert not found.is_papers
    write_report([tmp_path / "runs"], tmp_path / "out", ["table1"])
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "PPO"]
    assert (cell["seeds"], cell["paper mean"]) == ("1", "")
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert markdown(words) in text
    assert "The paper's own numbers are left out" in text
    assert "/ the paper's" not in text


def test_shorter_runs_keep_the_papers_column_and_say_that_they_are_shorter(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "a", "ppo", "bigfish", 0, preset="paper", steps=1_000_000)
    found = comparison_of(tmp_path / "runs")
    assert found.caption == "Unlike the paper's: steps=999,424 instead of 25,000,000."
    assert found.like_paper
    assert not found.is_papers
    write_report([tmp_path / "runs"], tmp_path / "out", ["table1"])
    assert read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "PPO"]["paper mean"] == "3.4"


def test_the_papers_own_setting_has_no_caption(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "a", "ppo", "bigfish", 0, preset="paper")
    found = comparison_of(tmp_path / "runs")
    assert (found.caption, found.like_paper, found.is_papers) == ("", True, True)


def test_a_difference_of_some_runs_says_of_how_many(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        settings = {"machine.precision": "bf16" if seed else "fp32"}
        some(tmp_path / "runs" / str(seed), "ppo", "bigfish", seed, preset="paper", settings=settings)
    assert "machine.precision=bf16 instead of fp32 in 2 of 3 runs" in comparison_of(tmp_path / "runs").caption


def test_other_pictures_are_a_difference(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "a", "ppo", "bigfish", 0, preset="paper")
    config = tmp_path / "runs" / "a" / "config.json"
    plain = json.loads(config.read_text())
    plain["procgen"] = {"library": "another build", "interface": 3, "pictures": "0" * 16}
    config.write_text(json.dumps(plain))
    found = comparison_of(tmp_path / "runs")
    assert found.caption == "Unlike the paper's: pictures=another build instead of OpenAI's procgen."
    assert found.like_paper  # the numbers stay, and the caption says what they are beside
    write_report([tmp_path / "runs"], tmp_path / "out", ["table1"])
    text = (tmp_path / "out" / "tables" / "table1.md").read_text()
    assert "/ 3.4 ± 1.0 |" in text
    assert found.caption in text


def test_what_a_preset_changes_in_a_method_is_named(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "a", "dcpg", "bigfish", 0, preset="laptop")
    caption = comparison_of(tmp_path / "runs").caption
    for words in ("algorithm.N_pi=4 instead of 32", "env.frame_size=32 instead of 64", "rollout_length=32"):
        assert words in caption


def test_min_max_ranges_follow_the_mode(tmp_path: Path, command: Command) -> None:
    for mode in ("easy", "hard"):
        for seed in (0, 1):
            path = tmp_path / mode / str(seed)
            some(path, "ppo", "caveflyer", seed, preset="paper", settings={"env.mode": mode})
        assert command(tmp_path / mode, "--out", tmp_path / f"out-{mode}")[0] == 0
    data = {mode: json.loads((tmp_path / f"out-{mode}" / "report.json").read_text()) for mode in ("easy", "hard")}
    for mode, (low, high) in {"easy": RANGES["caveflyer"], "hard": HARD_RANGES["caveflyer"]}.items():
        finals = [run["test"] for run in data[mode]["list"]]
        wanted = (sum(finals) / 2 - low) / (high - low)
        assert data[mode]["headline"]["minmax"]["ppo"]["mean"]["value"] == pytest.approx(wanted)
    records, problems = read([tmp_path / "hard"])
    assert compare(records, problems, PROCGEN_RANGES).ranges is HARD_RANGES


def test_hard_ranges_are_those_of_the_procgen_paper() -> None:
    assert len(HARD_RANGES) == 16 == len(RANGES)
    assert (HARD_RANGES["fruitbot"], HARD_RANGES["miner"], HARD_RANGES["starpilot"]) == (
        (-0.5, 27.2),
        (1.5, 20),
        (1.5, 35),
    )
    assert sum(low for low, _ in HARD_RANGES.values()) == pytest.approx(26.5)
    assert sum(high for _, high in HARD_RANGES.values()) == pytest.approx(284.4)


def test_figures_that_are_one_picture_are_drawn_once(tmp_path: Path, command: Command) -> None:
    for method in ("ppg", "dcpg"):
        some(tmp_path / "runs" / method, method, "bigfish", 0)
    code, out, _, made = command(tmp_path / "runs", "--out", tmp_path / "out")
    assert code == 0
    assert made is not None
    assert made.same == {
        "figure6": "figure5", "figure8": "figure4", "figure12": "figure5", "figure13": "figure11",
        "figure14": "figure5",
    }  # fmt: skip
    assert "figure14 is left out: with these runs it is the same picture as figure5" in out
    assert (tmp_path / "out" / "figures" / "figure5.pdf").is_file()
    assert not (tmp_path / "out" / "figures" / "figure12.pdf").exists()
    assert command(tmp_path / "runs", "figure12", "--out", tmp_path / "one")[0] == 0
    assert (tmp_path / "one" / "figures" / "figure12.pdf").is_file()


def test_a_caption_of_latex_does_not_repeat_the_tables_number(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "a", "ppo", "bigfish", 0, preset="paper")
    write_report([tmp_path / "runs"], tmp_path / "out", ["table1"])
    text = (tmp_path / "out" / "tables" / "table1.tex").read_text()
    assert "\\caption{Mean returns on unseen levels. " in text
    assert "Table 1." not in text

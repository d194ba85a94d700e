"""Which runs are compared with each other, and under which label."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dcpg.config.resolve import resolve
from dcpg.errors import BadInput
from dcpg.report.comparison import StiffnessRuns
from dcpg.report.write import write_report
from dcpg.runs.collection import read
from dcpg.runs.folders import Problem
from tests.report.grid import SCORE, Command, Figure, assert_cell, deviation, mean, read_csv
from tests.synthetic import TINY_SIZES, configuration, configured, edit, few, rows_of, some, stiffness_rows, write


@pytest.mark.parametrize("other", [{}, {"threads": 1}, {"settings": {"evaluation.every": 4, "analyse": "stiffness"}}])
def test_a_seed_counts_once(other: dict[str, Any], tmp_path: Path, command: Command) -> None:
    """No matter how often it was trained, and on which machine."""
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    again = some(tmp_path / "runs" / "z-again", "dcpg", "bigfish", 1, level=50.0, **other)
    code, out, _, report = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    (problem,) = [one for one in report.problems if "stiffness" not in one.text]  # which this one has not measured
    assert problem.path == again.path
    assert problem.text == (
        f"left out: the same method, game, seed and settings as {tmp_path / 'runs' / 'bigfish-dcpg-1'}"
    )
    assert f"note: {again.path}: left out: the same" in out
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert (cell["seeds"], float(cell["mean"])) == ("2", pytest.approx(mean(finals)))


def test_a_run_is_read_once_however_it_is_named(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo",), (0,))
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "alias").symlink_to(tmp_path / "runs" / "maze-ppo-0")
    given = (tmp_path / "runs", tmp_path / "runs" / "maze-ppo-0", tmp_path / "runs" / "alias")
    code, out, _, report = command(*given, "table1", "--out", tmp_path / "out")
    assert code == 0
    assert "2 runs (" in out
    assert report is not None
    assert report.problems == []


def test_other_steps_and_other_levels_are_not_mixed_in(tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    for seed in (2, 3):
        some(tmp_path / "longer" / str(seed), "dcpg", "bigfish", seed, level=90.0, steps=4096)
    some(tmp_path / "levels", "dcpg", "bigfish", 4, level=90.0, settings={"levels.start": 500})
    some(tmp_path / "listed", "dcpg", "bigfish", 5, level=90.0, settings={"levels.seeds": "3,5,9"})
    some(tmp_path / "hard", "dcpg", "bigfish", 6, level=90.0, settings={"env.mode": "hard"})
    code, out, _, report = command(tmp_path, "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    told = {p.path.name: p.text for p in report.problems}
    sizes = "preset tiny, 200 training levels"
    left, also = "not compared with the others:", "; the table grid has"
    assert told == {
        "longer": f"2 runs are {left} 4,096 steps, {sizes}{also} them",
        "levels": f"1 run is {left} 2,048 steps, {sizes} (levels.start=500){also} it",
        "listed": f"1 run is {left} 2,048 steps, preset tiny, 3 training levels{also} it",
        "hard": f"1 run is {left} 2,048 steps, {sizes} (env.mode=hard){also} it",
    }
    assert all(f"note: {p.path}: {p.text}" in out for p in report.problems)
    cell = read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert (cell["seeds"], float(cell["mean"])) == ("2", pytest.approx(mean(finals)))


def test_a_variant_has_its_own_label(tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    for seed in (0, 1, 2):
        some(tmp_path / "variant" / str(seed), "dcpg", "bigfish", seed, level=90.0, settings={"algorithm.N_pi": 16})
    some(tmp_path / "augmented", "dcpg", "bigfish", 0, level=90.0, settings={"augment": "ucb"})
    code, _, _, report = command(tmp_path, "table1", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    assert report.problems == []
    assert report.comparison.labels == ["ppo", "dcpg", "dcpg [N_pi=16]", "dcpg [augment=ucb]"]
    assert [len(report.comparison.runs(label, "bigfish")) for label in report.comparison.labels] == [2, 2, 3, 1]
    cells = read_csv(tmp_path / "out" / "tables" / "table1.csv")
    finals = [r.rows[-1]["test_return"] for r in runs if (r.method, r.game) == ("dcpg", "bigfish")]
    assert (cells["BigFish", "DCPG"]["seeds"], float(cells["BigFish", "DCPG"]["mean"])) == (
        "2",
        pytest.approx(mean(finals)),
    )
    assert not [column for _, column in cells if "[" in column]


def test_a_preset_is_no_disguise_for_a_variant(tmp_path: Path) -> None:
    """A run of the same sizes by a preset with another N_pi is not plain DCPG here."""
    small = TINY_SIZES | {"machine.threads": 1}
    for seed in (0, 1):
        some(tmp_path / str(seed), "dcpg", seed=seed)
    write(
        tmp_path / "other",
        one := resolve("dcpg", "bigfish", seed=2, settings=small),
        rows_of(one, random.Random(0), rollouts=(1, 16)),
    )
    report = write_report([tmp_path], tmp_path / "out", ["table1"])
    assert one.algorithm.N_pi == 32
    assert len(report.comparison.runs("dcpg", "bigfish")) == 2
    (problem,) = report.problems
    assert problem.path.name == "other"
    assert "1 run is not compared with the others: 2,048 steps, preset paper" in problem.text


def test_missing_seeds_and_unfinished_runs(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo",), (0, 1, 2))
    kept = few(tmp_path / "runs", ("dcpg",), (0, 2))
    for seed in (3, 4):
        edit("eval.jsonl", lambda rows: rows.pop() and None)(
            some(tmp_path / "runs" / f"going-{seed}", "dcpg", "maze", seed, level=90.0).path
        )
    shutil.rmtree(kept[0].path)  # bigfish, seed 0
    code, out, _, report = command(tmp_path / "runs", "table1", "table7", "--out", tmp_path / "out")
    assert code == 0
    assert "11 runs (2,048 steps, preset tiny, 200 training levels): 9 finished, 2 unfinished." in out
    for name, split in (("table1", "test"), ("table7", "train")):
        cells = read_csv(tmp_path / "out" / "tables" / f"{name}.csv")
        one, two = kept[1].rows[-1][f"{split}_return"], [r.rows[-1][f"{split}_return"] for r in kept[2:]]
        assert_cell(cells["BigFish", "DCPG"], Figure(one, None, "1", None))
        assert_cell(cells["Maze", "DCPG"], Figure(mean(two), deviation(two), "2", None))
        assert cells["Maze", "PPO"]["seeds"] == "3"
        assert_cell(cells["Maze", "PPG"], Figure(None, None, "0", None))
        assert cells[SCORE, "DCPG"]["seeds"] == "1-2"
        assert cells[SCORE, "DCPG"]["std"] == ""  # a seed is not there on every game
        text = (tmp_path / "out" / "tables" / f"{name}.md").read_text()
        assert "- 2 unfinished runs are not counted." in text
        assert f"| Maze | {mean_of_text(cells['Maze', 'PPO'])} (3) | " in text
    assert report is not None
    curve = report.comparison.curve("dcpg", "maze", "test")  # shows what there is, and of how many
    assert curve is not None
    assert curve.seeds.tolist() == [4, 4, 2]


def mean_of_text(cell: dict[str, str]) -> str:
    return f"{float(cell['mean']):.1f} ± {float(cell['std']):.1f}"


def test_a_run_that_started_from_trained_weights_is_not_one_of_the_method(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "plain", "dcpg")
    configured(lambda c: c.update(init="runs/other"))(some(tmp_path / "runs" / "begun", "dcpg", seed=1).path)
    (tmp_path / "runs" / "config.json").write_text('{"of": "some other program"}')
    report = write_report([tmp_path / "runs"], tmp_path / "out", ["table1"])
    assert report.comparison.labels == ["dcpg", "dcpg [init]"]
    assert report.problems == []
    assert read_csv(tmp_path / "out" / "tables" / "table1.csv")["BigFish", "DCPG"]["seeds"] == "1"


def test_runs_that_began_with_the_weights_of_different_runs_are_named(tmp_path: Path) -> None:
    """Seeds with their own pretrained runs stay one method; of two with one seed, the reason names both."""
    paths = [tmp_path / "runs" / name for name in ("a", "b", "c", "same", "plain")]
    for seed, (path, init) in enumerate(zip(paths[:3], ("pre/a", "pre/b", "pre/a"), strict=True)):
        configured(lambda plain, init=init: plain.update(init=init))(some(path, "dcpg", seed=seed).path)
    configured(lambda plain: plain.update(init="pre/z"))(some(paths[3], "dcpg", seed=0, level=6.0).path)
    some(paths[4], "dcpg")
    report = write_report([tmp_path / "runs"], tmp_path / "out", ["table1"])
    assert [(problem.path, problem.text) for problem in report.problems] == [
        (
            paths[3],
            f"left out: the same method, game, seed and settings as {paths[0]}, though it began with the weights of "
            "pre/z, not pre/a",
        ),
        (
            paths[0],
            "the runs of dcpg [init] on bigfish, this one first, began with the weights of different runs: "
            "pre/a, pre/b. Compared all the same",
        ),
    ]
    assert len(report.comparison.runs("dcpg [init]", "bigfish")) == 3


def test_runs_that_saw_other_pictures_are_named(tmp_path: Path, command: Command) -> None:
    """One of another build of Procgen, one that was resumed with it, and an older run, which saw procgen-mirror's."""

    def drawn(pictures: str) -> dict[str, Any]:
        return {"library": f"procgen {pictures}", "interface": 1, "pictures": pictures}

    runs = few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1, 2))
    *mine, older = [run.path for run in runs if run.game == "bigfish"]
    for path in mine:
        configured(lambda plain: plain.update(procgen=drawn("usual")))(path)
    configured(lambda plain: plain.update(procgen=drawn("other")))(mine[1])
    configured(lambda plain: plain.update(procgen_later=[drawn("other")]))(mine[2])
    configured(lambda plain: (plain.pop("procgen"), plain.update(schema=7)))(older)
    code, out, _, report = command(tmp_path / "runs", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    told = {p.path: p.text for p in report.problems}
    sentence = "this run saw other pictures of the game than the rest: Procgen was {}. "
    sentence += "Compared all the same: builds differ in few sprites"
    other, mirror = sentence.format("procgen other"), sentence.format("procgen-mirror 0.10.7")
    assert told == {mine[1]: other, mine[2]: other, older: mirror}
    assert "saw other pictures" in out
    assert "saw other pictures" in (tmp_path / "out" / "report.html").read_text()


def test_without_procgen_the_page_has_everything_but_first_frames(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(tmp_path / "runs", ("ppo",), (0,))

    def missing() -> Any:
        raise BadInput("Procgen is not installed.")

    monkeypatch.setattr("dcpg.report.level_map.library", missing)
    code, _, _, report = command(tmp_path / "runs", "--out", tmp_path / "out")
    assert code == 0
    assert report is not None
    assert [p.text for p in report.problems] == ["the page shows no first frames of levels: Procgen is not installed."]
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("wrong", ["text", {"library": 3}, [], {"library": "x"}, 0])
def test_a_strange_library_is_refused(wrong: Any, tmp_path: Path, command: Command) -> None:
    runs = few(tmp_path / "runs", ("ppo",), (0, 1))
    configured(lambda plain: plain.update(procgen=wrong))(runs[0].path)
    code, out, _, _ = command(tmp_path / "runs", "table1", "--out", tmp_path / "out")
    assert code == 0
    assert "config.json: procgen does not say which library drew the frames" in out


def test_stiffness_on_other_levels_of_the_same_number_is_not_pooled(tmp_path: Path) -> None:
    draw = random.Random(0)
    sets = {"few": "1,2,3", "more": "1,2,3,4,5,6", "other": "4,5,6"}
    for name, seeds in sets.items():
        for seed in (0, 1) if name != "other" else (0,):
            given = {"levels.seeds": seeds, "analyse": "stiffness"}
            config = configuration("dcpg", "bigfish", seed, preset="tiny", settings=given)
            rows = rows_of(config, draw, rollouts=(1, config.rollouts))
            write(tmp_path / f"{name}-{seed}", config, rows, stiffness_rows(config, draw))
    problems: list[Problem] = []
    records = read([tmp_path])[0]
    measured = StiffnessRuns(records, problems)
    assert {record.path.name for record in measured.records} == {"few-0", "few-1", "more-0", "more-1"}
    curve = measured.curve("dcpg", "bigfish")
    assert curve is not None
    assert (curve.steps.tolist(), curve.seeds.tolist()) == ([3, 6], [2, 2])
    assert [problem.path.name for problem in problems] == ["other-0"]
    assert problems[0].text.endswith("of another length or size, or on other levels, or on all of them")
    assert measured.shown == measured.records
    assert StiffnessRuns([one for one in records if "more" not in one.path.name]).shown == []


def test_all_levels_are_no_number_of_levels(tmp_path: Path) -> None:
    """Counted as 0, they would be the fewest, and stiffness would seem to grow with more of them."""
    draw = random.Random(0)
    for count in (10, 200, 0):
        config = configuration(
            "dcpg", "bigfish", 0, preset="tiny", settings={"levels.count": count, "analyse": "stiffness"}
        )
        rows = rows_of(config, draw, rollouts=(1, config.rollouts))
        write(tmp_path / f"of-{count}", config, rows, stiffness_rows(config, draw))
    problems: list[Problem] = []
    curve = StiffnessRuns(read([tmp_path])[0], problems).curve("dcpg", "bigfish")
    assert curve is not None
    assert curve.steps.tolist() == [10, 200]
    assert [problem.path.name for problem in problems] == ["of-0"]


def test_a_claim_over_procgens_games_does_not_count_your_own(tmp_path: Path, command: Command) -> None:
    for method, level in (("ppg", 3.0), ("dcpg", 9.0)):
        for seed in range(3):
            some(tmp_path / "runs" / f"{method}-{seed}", method, "bigfish", seed, level=level)

    def likely(out: Path) -> list[dict[str, str]]:
        code, *_ = command(tmp_path / "runs", "claims", "--out", out)
        assert code == 0
        rows = csv.DictReader((out / "tables" / "claims.csv").read_text().splitlines())
        return [row for row in rows if "likely" in str(row)]

    before = likely(tmp_path / "before")
    assert "probability" in str(before)
    for seed in range(3):  # an environment of your own on which only one of them was trained
        own = some(tmp_path / "runs" / f"own-{seed}", "dcpg", "maze", seed, level=1.0).path
        configured(lambda plain: plain.update(game="own:walk"))(own)
    assert likely(tmp_path / "after") == before

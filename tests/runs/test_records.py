"""Runs as reports read them: duplicates, episodes that are dropped, labels and settings that stay what they were."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcpg.config.environments import Environment
from dcpg.config.presets import PRESETS
from dcpg.config.resolve import resolve
from dcpg.config.schema import OWN, Config
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput
from dcpg.report.serve import file_states
from dcpg.runs.collection import Cache, _kinds, read
from dcpg.runs.comparable import setting_today, variant_of
from dcpg.runs.folders import Problem, run_directories
from dcpg.runs.publish import publish
from dcpg.runs.records import NEWEST, Record, read_run
from dcpg.storage import files
from tests.synthetic import (
    LAPTOP_NOW,
    configuration,
    configured,
    edit,
    lines,
    of_a_stranger,
    of_schema_5,
    ood_actions,
    rows_of,
    some,
    stiffness_rows,
    write,
)


def test_of_two_runs_of_a_seed_the_furthest_is_taken(tmp_path: Path) -> None:
    edit("eval.jsonl", lambda rows: rows.pop() and None)(some(tmp_path / "a", "dcpg").path)
    some(tmp_path / "b", "dcpg")
    found, problems = read([tmp_path])
    assert [record.path.name for record in found] == ["b"]
    assert [problem.path.name for problem in problems] == ["a"]
    measured_too = some(tmp_path / "c", "dcpg", settings={"analyse": "stiffness"}).path
    config = configuration("dcpg", "bigfish", 0, preset="tiny")
    (measured_too / "metrics.jsonl").write_text("".join(lines(stiffness_rows(config, random.Random(0)))))
    assert [record.path.name for record in read([tmp_path])[0]] == ["c"]


def test_runs_that_differ_in_their_precision_alone_are_no_copies(tmp_path: Path) -> None:
    """Without such a pair, a sweep over machines of two kinds has one method. The rarer precision makes a variant."""
    bf16 = {"machine.precision": "bf16"}

    def labels() -> dict[str, str]:
        found, problems = read([tmp_path])
        told.append([problem.text.replace(str(tmp_path), "") for problem in problems])
        return {record.path.name: record.label for record in found}

    told: list[list[str]] = []
    some(tmp_path / "0", "ppo", seed=0)
    some(tmp_path / "1", "ppo", seed=1, settings=bf16)
    edit("eval.jsonl", lambda rows: rows.clear())(some(tmp_path / "begun", "ppo", seed=1).path)  # tells nothing yet
    assert labels() == {"0": "ppo", "1": "ppo"}
    shutil.rmtree(tmp_path / "begun")
    some(tmp_path / "pair", "ppo", seed=1)
    some(tmp_path / "N_pi", "dcpg", seed=0, settings=bf16 | {"algorithm.N_pi": 3})
    some(tmp_path / "levels", "dcpg", seed=0, settings=bf16 | {"levels.count": 50})  # a setting without a pair
    two = {"0": "ppo", "1": "ppo [precision=bf16]", "pair": "ppo", "N_pi": "dcpg [N_pi=3, precision=bf16]"}
    assert labels() == two | {"levels": "dcpg"}
    shutil.copytree(tmp_path / "1", tmp_path / "copy")  # a copy counts once
    begun = some(tmp_path / "begun", "ppo", seed=3, settings=bf16).path  # and finished runs first
    edit("eval.jsonl", lambda rows: rows.__delitem__(-1))(begun)
    some(tmp_path / "done", "ppo", seed=4)
    assert labels()["pair"] == labels()["done"] == "ppo"
    for name in ("copy", "begun", "done"):
        shutil.rmtree(tmp_path / name)
    some(tmp_path / "more", "ppo", seed=2, settings=bf16)
    most = {"0": "ppo [precision=fp32]", "1": "ppo", "pair": "ppo [precision=fp32]", "N_pi": "dcpg [N_pi=3]"}
    assert labels() == most | {"levels": "dcpg", "more": "ppo"}
    alone = "differs from /1 in its precision alone"
    asked = (told[1], told[-1])
    assert asked == tuple([f"{alone}: {usual} is the usual one, the other a variant"] for usual in ("fp32", "bf16"))


def test_runs_below_a_run_are_found_and_what_belongs_to_it_is_not_one(tmp_path: Path) -> None:
    outer = some(tmp_path / "outer", "dcpg").path
    wanted = [outer, some(outer / "more" / "inner", "dcpg", seed=1).path, some(outer / "retry", "dcpg", seed=2).path]
    wanted.append(some(outer / "retry" / "again" / "and again", "dcpg", seed=3).path)
    for own in ("checkpoints", "milestones", "tb", "analysis", "wandb"):
        some(outer / own / "copy", "dcpg", seed=4)
    for name in ("export", "retry/export"):  # config.json and weights
        (outer / name).mkdir()
        (outer / name / "config.json").write_bytes((outer / "config.json").read_bytes())
        (outer / name / "weights.safetensors").write_text("")
    (outer / "link").symlink_to(some(tmp_path.parent / f"{tmp_path.name}-elsewhere", "dcpg", seed=5).path)
    other = tmp_path / "other"  # a configuration of another program above runs, and one that has lost its rows
    wanted.append(some(other / "deep" / "run", "ppo").path)
    (other / "config.json").write_text("{}")
    wanted.append(some(tmp_path / "lost", "ppo", seed=1).path)
    (wanted[-1] / "eval.jsonl").unlink()
    (tmp_path / "to retry").symlink_to(outer / "retry")  # which is found
    noted = Problem(outer / "link", "left out: a link, which is not followed; name the folder that it points to")
    assert run_directories([tmp_path]) == (sorted(wanted), [noted])
    records, problems = read([tmp_path])
    assert [record.path for record in records] == sorted(wanted)
    assert problems == [noted]


def test_a_run_that_has_lost_files_is_read_or_named(tmp_path: Path) -> None:
    whole, torn, headless = (some(tmp_path / name, "dcpg", seed=n).path for n, name in enumerate(("a", "b", "c")))
    (torn / "eval.jsonl").unlink()
    (torn / "summary.json").write_text("{}")
    (torn / "tb").mkdir()
    (headless / "config.json").unlink()
    (headless / "metrics.jsonl").touch()
    problem = Problem(headless, "left out: it has the rows of a run, but no config.json")
    assert run_directories([tmp_path]) == ([whole, torn], [problem])


def test_a_folder_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, shut, scandir = some(tmp_path / "run", "dcpg").path, tmp_path / "shut", os.scandir
    shut.mkdir()

    def refused(folder: str) -> Any:
        if folder == str(shut):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refused)
    problem = Problem(shut, "left out: it cannot be opened (Permission denied)")
    assert run_directories([tmp_path]) == ([run], [problem])


def test_folders_may_be_nested_deeply(tmp_path: Path) -> None:
    some(tmp_path / "run", "dcpg")
    made, deep = [], tmp_path
    for _ in range(1400):
        deep = deep / "d"
        deep.mkdir()
        made.append(deep)
    (deep / "config.json").write_text("{}")
    try:
        assert run_directories([tmp_path]) == ([deep, tmp_path / "run"], [])
        assert next(name for name, *_ in file_states([tmp_path])) == str(deep / "config.json")
    finally:  # what removes the folders of tests is recursive, too
        (deep / "config.json").unlink()
        for folder in reversed(made):
            folder.rmdir()


def test_only_the_newest_evaluations_keep_their_episodes(tmp_path: Path) -> None:
    config = configuration("dcpg", "bigfish", 0, preset="tiny")
    rows = rows_of(config, random.Random(0), rollouts=(1, 4, 8, 12, 16))
    record, notes = read_run(write(tmp_path / "run", config, rows))
    assert notes == []
    assert [e.steps for e in record.evaluations] == [row["steps"] for row in rows]
    for split in ("train", "test"):
        found = [e.splits[split] for e in record.evaluations]
        assert [s.mean for s in found] == [row[f"{split}_return"] for row in rows]
        assert [s.returns for s in found] == [None] * (5 - NEWEST) + [row[f"{split}_returns"] for row in rows[-NEWEST:]]
        assert [s.levels for s in found] == [None] * (5 - NEWEST) + [row[f"{split}_levels"] for row in rows[-NEWEST:]]


def test_whole_numbers_are_returns_too(tmp_path: Path) -> None:
    path = some(tmp_path / "run", "dcpg").path
    edit("eval.jsonl", lambda rows: rows[2].update(test_return=2, test_returns=[1, 2, 3]))(path)
    assert read_run(path)[0].evaluations[-1].splits["test"].mean == 2


def test_your_own_environment_may_have_other_levels_and_no_unseen_ones(tmp_path: Path) -> None:
    config = resolve("ppo", f"{OWN}lights", preset="tiny")
    rows = rows_of(config, random.Random(0), rollouts=(1, 16))
    for row in rows:
        row["train_levels"] = [-1, -1, -1]
        for column in [name for name in row if name.startswith("test_")]:
            del row[column]
    record, notes = read_run(write(tmp_path / "run", config, rows))
    assert notes == []
    assert record.finished
    assert list(record.evaluations[-1].splits) == ["train"]
    for row in rows:
        row |= {name.replace("train_", "test_"): value for name, value in row.items() if name.startswith("train_")}
        del row["train_return"]
    with pytest.raises(BadInput, match=r"eval\.jsonl, row 1: train_return is missing"):
        read_run(write(tmp_path / "other", config, rows))


def test_a_copy_under_another_seed_is_no_second_seed(tmp_path: Path) -> None:
    original = some(tmp_path / "a", "dcpg").path
    shutil.copytree(original, tmp_path / "b")
    configured(lambda plain: plain.update(seed=1))(tmp_path / "b")
    some(tmp_path / "c", "dcpg", seed=2)
    records, problems = read([tmp_path])
    assert [record.path.name for record in records] == ["a", "c"]
    assert problems == [Problem(tmp_path / "b", f"left out: the same rows as {original}, under another seed")]


@pytest.mark.parametrize(
    "change",
    [
        {"test_predicted_value": 0.25},  # two networks with equal luck
        {"train_returns": [0.0] * 3, "train_return": 0.0, "train_levels": [-1] * 3}
        | {"test_returns": [0.0] * 3, "test_return": 0.0, "test_levels": [-1] * 3},  # nothing was ever earned
    ],
)
def test_equal_returns_alone_make_no_copy(change: dict[str, Any], tmp_path: Path) -> None:
    config = resolve("dcpg", f"{OWN}lights", preset="tiny")
    rows = rows_of(config, random.Random(0), rollouts=(1, 16))
    both = [row | (change if len(change) > 1 else {}) for row in rows]
    write(tmp_path / "a", config, both)
    write(tmp_path / "b", dataclasses.replace(config, seed=1), [row | change for row in both])
    records, problems = read([tmp_path])
    assert (len(records), problems) == (2, [])


# -- what cannot be read is said


def refuse(refused_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a file out of reach, as it is for somebody who may not enter its folder."""
    plain, stat = files._plain, os.stat

    def refused(original: Any, path: Any, *more: Any, **others: Any) -> Any:
        if str(path) == str(refused_path):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *more, **others)

    monkeypatch.setattr(files, "_plain", partial(refused, plain))
    monkeypatch.setattr(os, "stat", partial(refused, stat))  # os.path.exists asks it, and says no


@pytest.mark.parametrize("name", ["summary.json", "analysis/levels.json", "analysis/ood-actions.json"])
def test_a_file_that_may_not_be_read_is_noted_until_it_may(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration("ddcpg", "bigfish", 0, preset="tiny")
    run, other = some(tmp_path / "runs" / "run", "ddcpg"), some(tmp_path / "other", "ppo")
    wrong = dataclasses.replace(run, wrong=[3, 2], raw=[4, 1])
    about = {"method": "ddcpg", "game": "bigfish", "seed": 0, "steps": 2048}
    split = {"levels": [1, 2], "returns": [0.5, 1.5]}
    (run.path / "analysis").mkdir()
    for analysis, plain in (
        ("levels", {"analysis": "levels", "train": split, "test": split, **about}),
        ("ood-actions", ood_actions(wrong, config, 2048)),
    ):
        (run.path / "analysis" / f"{analysis}.json").write_text(json.dumps(plain))
    (run.path / "summary.json").write_text(json.dumps(about | {"steps_asked": 2048, "status": "finished"}))
    cache: Cache = {}
    with monkeypatch.context() as patch:
        refuse(run.path / name, patch)
        (record,), problems = read([tmp_path / "runs"], cache)
        assert problems == [Problem(run.path, f"{name} was passed over (Permission denied)")]
        assert len(record.analyses) == (2 if name == "summary.json" else 1)
        published = publish([run.path, other.path], tmp_path / "out")
        assert published.left_out == {run.path: f"{name} cannot be read (Permission denied)"}
    (record,), problems = read([tmp_path / "runs"], cache)  # its size and time are the same
    assert (len(record.analyses), problems) == (2, [])
    (run.path / name).unlink()
    (run.path / name).symlink_to(tmp_path / "nowhere")
    assert [problem.text for problem in read([tmp_path / "runs"], cache)[1]] == [
        f"{name} was passed over (Too many levels of symbolic links)"
    ]


def test_more_than_a_run_with_its_settings_can_have_is_refused_by_name(tmp_path: Path) -> None:
    """8 episodes, 16 rollouts and 200 levels, and four times as many for other releases."""

    def with_episodes(path: Path, count: int, rows: int = 3) -> Path:
        config = configuration("dcpg", "bigfish", 0, preset="tiny")
        places = [round(1 + 15 * place / (rows - 1)) for place in range(rows)]
        return write(path, config, rows_of(config, random.Random(0), rollouts=places, episodes=count))

    assert read_run(with_episodes(tmp_path / "most", 32, 16))[0].finished
    many = {"train_returns": [1] * 33, "train_levels": [1] * 33, "train_return": 1}
    for name, damage, words in (
        ("episodes", edit("eval.jsonl", lambda rows: rows[0].update(many)),
         "eval.jsonl, row 1: train_returns has 33 episodes, more than 32."),
        ("row", edit("eval.jsonl", lambda rows: rows[1].update(test_returns=[1.0] * 2000, test_levels=[1] * 2000)),
         "eval.jsonl, row 2 has 16,458 bytes: more than"),
        ("rows", edit("eval.jsonl", lambda rows: "".join(lines([rows[0]] * 17))),
         "eval.jsonl has more than 16 rows, which no run with these settings writes."),
        ("bytes", edit("eval.jsonl", lambda rows: "".join(lines(rows)) + "0" * 200_000),
         "eval.jsonl cannot be read (it has more than 115,200 bytes)."),
    ):  # fmt: skip
        path = with_episodes(tmp_path / name, 3)
        damage(path)
        with pytest.raises(BadInput) as refused:
            read_run(path)
        assert words in str(refused.value)


def test_levels_beyond_those_of_the_run_are_passed_over(tmp_path: Path) -> None:
    path = some(tmp_path / "run", "dcpg").path
    (path / "analysis").mkdir()
    about = {"analysis": "levels", "method": "dcpg", "game": "bigfish", "seed": 0, "steps": 2048}
    for count, words in ((800, []), (801, ["train has 801 levels, more than 800"]), (200_000, ["more than 1,160,000"])):
        split = {"levels": list(range(count)), "returns": [0.5] * count}
        (path / "analysis" / "levels.json").write_text(json.dumps({"train": split, "test": split, **about}))
        record, notes = read_run(path)
        assert len(notes) == len(words)
        assert all(word in note for word, note in zip(words, notes, strict=True))
        assert len(record.analyses) == 1 - len(words)


def test_values_that_a_run_records_of_a_method_of_the_package_are_not_believed(tmp_path: Path) -> None:
    path = some(tmp_path / "run", "dcpg", settings={"algorithm.gamma": 0.5}).path
    configured(lambda plain: plain.update(method_values={"algorithm.gamma": 0.5}))(path)
    assert read_run(path)[0].label == "dcpg [gamma=0.5]"


# -- a run's preset values are its own


def described(record: Record) -> tuple[Any, ...]:
    return record.label, record.setting, record.setting.sentence(), record.finished


def test_a_changed_preset_changes_no_older_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        of_schema_5(tmp_path / "old"),
        of_schema_5(tmp_path / "old variant", seed=1, settings={"algorithm.N_pi": 8}),
        some(tmp_path / "today", "dcpg", seed=2, preset="laptop").path,
    ]
    before = [described(read_run(path)[0]) for path in paths]
    assert [label for label, *_ in before] == ["dcpg", "dcpg [N_pi=8]", "dcpg"]
    assert len({setting for _, setting, *_ in before}) == 1
    monkeypatch.setitem(PRESETS, "laptop", LAPTOP_NOW)
    records = [read_run(path)[0] for path in paths]
    assert [described(record) for record in records] == before
    # a run of today's table is comparable with none of them, though it has the same sizes
    old: Config = records[0].config
    sizes = {"rollout_length": old.rollout_length, "network.channels": old.network.channels, "env.frame_size": 32}
    new = some(tmp_path / "new", "dcpg", seed=3, preset="laptop", steps=old.steps, settings=sizes).path
    record = read_run(new)[0]
    assert record.config.algorithm.N_pi == 8
    assert record.label == "dcpg"
    assert (record.setting.steps, record.setting.levels) == (records[0].setting.steps, records[0].setting.levels)
    assert record.setting != records[0].setting
    assert record.setting == setting_today(record.config)
    assert variant_of(old, LAPTOP_NOW) == "dcpg [N_pi=4, E_aux=2, segments=8]"


def test_environments_are_told_apart_by_their_files(tmp_path: Path) -> None:
    """The same file in two folders is one environment; a changed one is named; others are other games."""
    ids = ["/one/maze.py:make", "/two/maze.py:make", "/one/maze.py:make", "/three/maze.py:make", "/one/maze.py:other"]
    hashes = ["a", "a", "b", "c", "a"]
    for seed, (id_, file) in enumerate(zip(ids, hashes, strict=True)):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed, plugin=False)
        configured(lambda plain, given=(id_, file): plain["environment"].update(id=given[0], sha256=[given[1]]))(run)
    records, problems = read([tmp_path])
    games = [record.game for record in records]
    assert games[0] == games[1] == games[2] == "own:x (/one/maze.py:make)"
    assert games[3:] == ["own:x (/three/maze.py:make)", "own:x (/one/maze.py:other)"]
    assert problems == [Problem(tmp_path / "2", f"its environment was changed since {tmp_path / '0'} was trained")]


@pytest.mark.parametrize("order", ["012", "210", "120"])
def test_which_environments_are_one_does_not_depend_on_the_order(tmp_path: Path, order: str) -> None:
    """The first and the second lie in one place, the second and the third have the same files."""
    for seed, (id_, file) in enumerate((("/a/env.py:make", "1"), ("/a/env.py:make", "2"), ("/b/env.py:make", "2"))):
        run = of_a_stranger(tmp_path / f"{order.index(str(seed))}", "x", seed, plugin=False)
        configured(lambda plain, given=(id_, file): plain["environment"].update(id=given[0], sha256=[given[1]]))(run)
    records, problems = read([tmp_path])
    assert {record.game for record in records} == {"own:x"}
    assert len(problems) == (2 if order[0] == "0" else 1)
    assert all("its environment was changed since" in problem.text for problem in problems)


def test_changed_defaults_of_a_plugins_method_make_a_variant(tmp_path: Path) -> None:
    for seed in range(3):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed)

        def other(plain: dict[str, Any], seed: int = seed) -> None:
            plain["algorithm"]["gamma"] = plain["method_values"]["algorithm.gamma"] = 0.5 if seed == 1 else 0.999
            plain["init"] = None

        configured(other)(run)
    own = of_a_stranger(tmp_path / "3", "x", 3, plugin=False)  # as with an encoder from a plugin
    configured(lambda plain: plain.update(method_values={"algorithm.gamma": 0.9}))(own)
    records, _ = read([tmp_path])
    assert [record.label for record in records] == ["mx", "mx [gamma=0.5]", "mx", "dcpg"]


@pytest.mark.parametrize("long", ["x" * 400, "\x1b"])
def test_environments_whose_printed_names_are_the_same_are_two_games(tmp_path: Path, long: str) -> None:
    """The end of an id may be all that tells two environments apart."""
    for seed, end in enumerate("aabb"):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed, plugin=False)
        id_ = f"/a/env.py:make({long}{end if len(long) > 1 else chr(1 + ord(end) - ord('a'))})"
        configured(lambda plain, id_=id_: plain["environment"].update(id=id_))(run)
    records, problems = read([tmp_path])
    games = [record.game for record in records]
    assert games[0] == games[1] != games[2] == games[3]
    assert problems == []


def test_each_preset_has_defaults_of_its_own(tmp_path: Path) -> None:
    """More runs of another preset do not change what the default of a plugin's method is."""
    for seed in range(8):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed)

        def other(plain: dict[str, Any], seed: int = seed) -> None:
            usual = 2 if seed < 5 else 32
            plain["preset_values"] = {"algorithm.N_pi": usual}
            plain["method_values"]["algorithm.N_pi"] = usual
            plain["algorithm"]["N_pi"] = usual if seed < 7 else 2
            plain["algorithm"]["gamma"] = plain["method_values"]["algorithm.gamma"]
            plain["init"] = None

        configured(other)(run)
    records, _ = read([tmp_path])
    assert [record.label for record in records] == ["mx"] * 7 + ["mx [N_pi=2]"]


def test_a_variant_that_is_too_long_to_show_is_left_out(tmp_path: Path) -> None:
    for seed in range(3):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed)
        value = "y" * 5000 if seed == 2 else "short"
        configured(
            lambda plain, value=value: (
                plain["algorithm"].update(gamma=value)  # type: ignore[misc]
                or plain["method_values"].update({"algorithm.gamma": value})
            )
        )(run)
    records, problems = read([tmp_path])
    assert [record.config.seed for record in records] == [0, 1]
    assert "characters" in problems[0].text
    configured(lambda plain: plain["preset_values"].update(z="y" * 20_000))(tmp_path / "1")
    configured(lambda plain: plain["preset_values"].update({f"z{i}": i for i in range(1000)}))(tmp_path / "0")
    records, problems = read([tmp_path])
    assert [record.label for record in records] == ["mx [init]"]  # alone, its defaults are those of the method
    assert "preset_values is " in problems[0].text
    assert "preset_values has z, which is longer than a setting" in problems[1].text


def test_many_hashes_of_one_environment_are_no_chain() -> None:
    """Each is found in a few steps: to follow ten thousand for each of them would take hours."""
    owns = [
        Environment("x", f"/{run}/env.py:make", None, "code", Spaces((4,), np.dtype(np.float32), 2, (4,)),
                    tuple(str(n) for n in range(10_000)))
        for run in range(10)
    ]  # fmt: skip
    assert len(set(_kinds(list(owns)))) == 1


@pytest.mark.parametrize(
    "change",
    [{"game": "coinrun_old"}, {"algorithm": {"ﬁ": 1, "fi": 2}}, {"algorithm": {f"a{i}": 1 for i in range(50_000)}}],
    ids=["game", "names", "many"],
)
def test_what_no_plugin_can_have_is_left_out_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    """Though the method is not known here: a game that there is not, and names that Python takes for one."""
    some(tmp_path / "a", "dcpg")
    run = of_a_stranger(tmp_path / "b", "x")
    configured(lambda plain: plain.update(change | ({"environment": None} if "game" in change else {})))(run)
    records, problems = read([tmp_path])
    assert [record.path.name for record in records] == ["a"]
    assert [problem.path.name for problem in problems] == ["b"]
    assert problems[0].text.startswith("left out: config.json: ")


def test_defaults_that_changed_with_something_else_are_still_told_apart(tmp_path: Path) -> None:
    """Another release's preset may differ in what decides no setting."""
    for seed in range(4):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed)

        def other(plain: dict[str, Any], seed: int = seed) -> None:
            plain["preset_values"] = {"steps": 2048 * (1 + seed // 2)}
            plain["algorithm"]["gamma"] = plain["method_values"]["algorithm.gamma"] = 0.5 if seed > 1 else 0.999
            plain["init"] = None

        configured(other)(run)
    records, _ = read([tmp_path])
    assert [record.label for record in records] == ["mx", "mx", "mx [gamma=0.5]", "mx [gamma=0.5]"]


def test_defaults_that_changed_between_numbers_of_levels_are_told_apart(tmp_path: Path) -> None:
    """A curve over level counts would show what the defaults do."""
    for seed, levels in enumerate((10, 10, 200)):
        run = of_a_stranger(tmp_path / f"{seed}", "x", seed)

        def other(plain: dict[str, Any], levels: int = levels) -> None:
            plain["levels"]["count"] = levels
            plain["algorithm"]["gamma"] = plain["method_values"]["algorithm.gamma"] = 0.999 if levels == 10 else 0.9
            plain["init"] = None

        configured(other)(run)
    assert [record.label for record in read([tmp_path])[0]] == ["mx", "mx", "mx [gamma=0.9]"]


def test_the_order_of_a_presets_values_makes_no_other_setting(tmp_path: Path) -> None:
    values = {"algorithm.N_pi": 2, "algorithm.E_pi": 1}
    for seed, given in enumerate((values, dict(sorted(values.items())))):
        run = some(tmp_path / f"{seed}", "dcpg", seed=seed).path
        configured(lambda plain, given=given: plain["preset_values"].update(given))(run)
    one, other = read([tmp_path])[0]
    assert one.setting == other.setting


def test_runs_in_the_folders_of_another_program_are_found(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text('{"foo": 1}')
    for seed, folder in enumerate(("checkpoints/a", "analysis/b", "other/c")):
        some(tmp_path / "project" / folder, "dcpg", seed=seed)
    records, problems = read([tmp_path])
    assert [record.path.name for record in records] == ["b", "a", "c"]
    assert [problem.path.name for problem in problems] == ["project"]


def test_a_presets_values_for_levels_are_part_of_the_setting(tmp_path: Path) -> None:
    run = some(tmp_path / "a", "ppo", settings={"levels.sampler": "prioritised"})
    configured(lambda plain: plain["preset_values"].update({"levels.sampler": "prioritised"}))(run.path)
    some(tmp_path / "b", "ppo", seed=1)
    one, other = read([tmp_path])[0]
    assert one.label == other.label
    assert one.setting != other.setting

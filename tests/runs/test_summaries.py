"""Whether the files of a folder are of one run: its summary knows the configuration and the rows."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dcpg.errors import BadInput
from dcpg.runs.collection import read
from dcpg.runs.publish import publish
from dcpg.runs.records import read_run
from dcpg.storage.rows import Summary, count_lines, hash_of_first
from tests.synthetic import configuration, configured, edit, lines, ood_actions, some, stiffness_rows


def summarised(run: Path, **changes: Any) -> None:
    """The summary of a finished run, as training writes it."""
    record, _ = read_run(run)
    c, last = record.config, record.evaluations[-1]
    counts = {name: count_lines(run / f"{name}.jsonl") for name in ("metrics", "eval")}
    hashes = {name: hash_of_first(run / f"{name}.jsonl", count) for name, count in counts.items()}
    plain = Summary(
        method=c.method, game=c.game, seed=c.seed, steps=record.steps, steps_asked=c.steps, status="finished",
        train_return=last.splits["train"].mean, test_return=last.splits["test"].mean,
        configuration=record.written.fingerprint, origin=record.written.origin, rows=counts, rows_sha256=hashes,
    ).plain()  # fmt: skip
    (run / "summary.json").write_text(json.dumps(plain | changes))


def measured(path: Path, seed: int = 0) -> Path:
    """A finished run that has measured its stiffness, with its summary."""
    run = some(path, "dcpg", seed=seed, settings={"analyse": "stiffness"}).path
    config = configuration("dcpg", "bigfish", seed, preset="tiny")
    (run / "metrics.jsonl").write_text("".join(lines(stiffness_rows(config, random.Random(seed)))))
    summarised(run)
    return run


def test_files_of_two_runs_in_one_folder_are_no_run(tmp_path: Path) -> None:
    """Two people's folders of one name that were merged, or a copy that is half done."""
    own, other, rows, hand = (measured(tmp_path / name, seed) for seed, name in enumerate("abcd"))
    assert read([tmp_path])[1] == []
    shutil.copy(own / "config.json", other)  # another seed's files under the configuration of this one
    shutil.copy(own / "eval.jsonl", rows)  # another seed's evaluations
    configured(lambda plain: plain["algorithm"].update(gamma=0.5))(hand)
    records, problems = read([tmp_path])
    assert [record.path.name for record in records] == ["a"]
    assert {problem.path.name: problem.text for problem in problems} == {
        "b": "left out: summary.json is of another run (dcpg on bigfish, seed 1), or config.json was changed; a resume "
        "writes it anew.",
        "c": "left out: eval.jsonl and summary.json have different returns of one evaluation: they are of two runs.",
        "d": "left out: summary.json is of another run (dcpg on bigfish, seed 3), or config.json was changed; a resume "
        "writes it anew.",
    }


UNFINISHED = "its evaluations go to the end, but summary.json says that it has not finished"


def texts(folder: Path) -> list[str]:
    return [problem.text for problem in read([folder])[1]]


def test_rows_of_a_run_that_goes_on_are_compared_as_far_as_its_summary_knows_them(tmp_path: Path) -> None:
    run, other = measured(tmp_path / "run"), measured(tmp_path / "other", 1)
    plain = json.loads((run / "summary.json").read_bytes())
    half = json.loads((run / "eval.jsonl").read_text().splitlines()[1])
    early = {
        "status": "stopped", "steps": half["steps"], "train_return": half["train_return"],
        "test_return": half["test_return"], "rows": {"metrics": 1, "eval": 2},
        "rows_sha256": {name: hash_of_first(run / f"{name}.jsonl", n) for name, n in (("metrics", 1), ("eval", 2))},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(plain | early))
    assert texts(run) == [UNFINISHED]
    edit("eval.jsonl", lambda rows: rows[2].update(train_predicted_value=0.5))(run)  # after it was stopped
    assert texts(run) == [UNFINISHED]
    edit("eval.jsonl", lambda rows: rows[0].update(train_predicted_value=0.5))(run)
    assert texts(run) == [UNFINISHED, "eval.jsonl: rows were changed after the run had written them"]
    shutil.copy(other / "eval.jsonl", run)
    assert "they are of two runs" in read([run])[1][0].text
    longer = {"status": "finished", "steps": half["steps"], "rows": {"metrics": 1, "eval": 9}}  # it drops its last one
    (run / "summary.json").write_text(json.dumps(plain | early | longer))
    assert read([run])[1] == []


def test_a_summary_of_an_older_release_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    run = measured(tmp_path / "run")
    plain = json.loads((run / "summary.json").read_bytes())
    older = {name: value for name, value in plain.items() if name not in ("configuration", "rows", "rows_sha256")}
    for change, fine in (({}, True), ({"game": "maze"}, False), ({"test_return": 99.0}, False)):
        (run / "summary.json").write_text(json.dumps(older | change))
        assert bool(read([tmp_path])[0]) == fine
    (run / "summary.json").write_text(json.dumps(older | {"status": "running", "test_return": None}))
    assert texts(tmp_path) == [UNFINISHED]


def test_a_configuration_that_began_with_something_else_is_another_run(tmp_path: Path) -> None:
    """A pretrained run's rows under the config.json of the same run from scratch; it is published with its own."""
    run = measured(tmp_path / "runs" / "run")
    configured(lambda plain: plain.update(init="somewhere/pretrained"))(run)
    with pytest.raises(BadInput, match=r"summary\.json is of another run"):
        read_run(run)
    (run / "summary.json").unlink()
    summarised(run)
    assert read_run(run)[1] == []
    (out,) = publish([run], tmp_path / "results").runs
    assert json.loads((out / "config.json").read_text())["init"] == "pretrained"
    assert read_run(out)[1] == []


def test_rows_that_are_not_those_of_the_end_are_noted(tmp_path: Path) -> None:
    run = measured(tmp_path / "run")
    changes = {"eval.jsonl": "train_predicted_value", "metrics.jsonl": "stiffness"}
    for name, column in changes.items():
        edit(name, lambda rows, column=column: rows[0].update({column: 0.123}))(run)
    assert [problem.text for problem in read([tmp_path])[1]] == [
        "metrics.jsonl: rows were changed after the run had written them",
        "eval.jsonl: rows were changed after the run had written them",
    ]


def test_rows_that_no_report_needs_are_noted_when_they_are_published(tmp_path: Path) -> None:
    run = some(tmp_path / "run", "dcpg").path
    config = configuration("dcpg", "bigfish", 0, preset="tiny")
    (run / "metrics.jsonl").write_text("".join(lines(stiffness_rows(config, random.Random(0)))))
    summarised(run)
    assert publish([run], tmp_path / "before").notes == {}
    edit("metrics.jsonl", lambda rows: rows[0].update(reward_variance=7.0))(run)
    assert read_run(run)[1] == []
    said = ["metrics.jsonl: rows were changed after the run had written them"]
    assert publish([run], tmp_path / "results").notes == {run: said}
    assert [problem.text for problem in read([tmp_path / "results"])[1]] == said
    (run / "metrics.jsonl").write_bytes(b"")
    assert publish([run], tmp_path / "emptied").notes == {run: said}


def test_evaluations_that_a_finished_run_has_lost_are_noted(tmp_path: Path) -> None:
    run, said = measured(tmp_path / "run"), "eval.jsonl has lost rows: the run has finished, with 2,048 steps"
    edit("eval.jsonl", lambda rows: rows.pop() and None)(run)
    assert [problem.text for problem in read([tmp_path])[1]] == [said]
    (run / "eval.jsonl").unlink()
    assert said in [problem.text for problem in read([tmp_path])[1]]


def test_a_shorter_file_with_the_right_last_step_is_looked_at(tmp_path: Path) -> None:
    """Rows are missing before the last one, or the last row is that of another run."""
    own, other = measured(tmp_path / "own", 0), measured(tmp_path / "other", 1)
    edit("eval.jsonl", lambda rows: rows.__delitem__(0))(own)
    edit("metrics.jsonl", lambda rows: rows.__delitem__(0))(own)
    said = "rows were changed after the run had written them"
    assert read_run(own)[1] == [f"metrics.jsonl: {said}", f"eval.jsonl: {said}"]
    (own / "eval.jsonl").write_bytes((other / "eval.jsonl").read_bytes().splitlines(keepends=True)[-1])
    with pytest.raises(BadInput, match="they are of two runs"):
        read_run(own)


def test_the_stiffness_of_a_part_of_the_training_is_left_out(tmp_path: Path) -> None:
    for seed, name in enumerate(("whole", "part", "none")):
        measured(tmp_path / name, seed)
    edit("metrics.jsonl", lambda rows: rows.pop() and None)(tmp_path / "part")
    (tmp_path / "none" / "metrics.jsonl").unlink()
    records, problems = read([tmp_path])
    assert {record.path.name: len(record.stiffness) for record in records} == {"whole": 2, "part": 0, "none": 0}
    said = "metrics.jsonl ends before the evaluation at 2,048 steps; its stiffness is left out"
    assert {problem.path.name: problem.text for problem in problems} == {"part": said, "none": said}


def test_published_rows_have_hashes_of_their_own(tmp_path: Path) -> None:
    run = measured(tmp_path / "runs" / "run")
    edit("metrics.jsonl", lambda rows: rows.__setitem__(slice(1, 2), [rows[1]] * 8))(run)  # which has no measurement
    summarised(run)
    (out,) = publish([run], tmp_path / "results", rows=2).runs
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3
    assert read([tmp_path / "results"])[1] == []
    edit("metrics.jsonl", lambda rows: rows[0].update(stiffness=0.9))(out)
    assert "metrics.jsonl: rows were changed" in read([tmp_path / "results"])[1][0].text


def test_an_analysis_of_another_variant_is_passed_over(tmp_path: Path) -> None:
    run = measured(tmp_path / "run")
    written = read_run(run)[0].written
    counted = dataclasses.replace(some(tmp_path / "x", "dcpg"), wrong=[1, 2], raw=[1, 3])
    found = ood_actions(counted, written.config, 2048)
    (run / "analysis").mkdir()
    for made_with, fine in ((written.fingerprint, True), ("0" * 64, False)):
        (run / "analysis" / "ood-actions.json").write_text(json.dumps(found | {"configuration": made_with}))
        record, notes = read_run(run)
        assert bool(record.analyses) == fine
        assert fine or notes == ["analysis/ood-actions.json was passed over (it is of another run)"]


def test_evaluations_to_the_end_of_a_run_that_says_it_has_not_finished_are_noted(tmp_path: Path) -> None:
    """A run that has just begun, merged with the finished one of somebody else."""
    run = measured(tmp_path / "run")
    plain = json.loads((run / "summary.json").read_bytes())
    begun = {"status": "running", "steps": 0, "train_return": None, "test_return": None, "rows": {"eval": 0}}
    (run / "summary.json").write_text(json.dumps(plain | begun))
    assert texts(tmp_path) == [UNFINISHED]


def test_published_rows_of_another_run_are_not_replaced(tmp_path: Path) -> None:
    """Two sweeps may have runs of the same names."""
    alice, bob = some(tmp_path / "alice" / "run", "dcpg").path, some(tmp_path / "bob" / "run", "dcpg", seed=7).path
    (out,) = publish([alice], tmp_path / "results").runs
    before = (out / "eval.jsonl").read_bytes()
    with pytest.raises(
        BadInput, match=r"has the rows of another run \(dcpg on bigfish, seed 0\) than .*bob/run; publish"
    ):
        publish([bob], tmp_path / "results")
    assert (out / "eval.jsonl").read_bytes() == before
    assert publish([alice], tmp_path / "results").runs == [out]


def test_analyses_with_other_options_than_most_are_noted(tmp_path: Path) -> None:
    for seed, states in enumerate((64, 64, 16)):
        run = measured(tmp_path / f"{seed}", seed)
        counted = dataclasses.replace(some(tmp_path / "x" / f"{seed}", "ppo", seed=seed), wrong=[1, 2], raw=[1, 3])
        found = ood_actions(counted, read_run(run)[0].config, 2048) | {"asked": {"states": states, "burn_in": 0}}
        (run / "analysis").mkdir()
        (run / "analysis" / "ood-actions.json").write_text(json.dumps(found))
    (problem,) = read([tmp_path])[1]
    assert problem.path.name == "2"
    assert problem.text.startswith(
        "analysis/ood-actions.json was made with burn_in=0, states=16, most others with burn_in"
    )

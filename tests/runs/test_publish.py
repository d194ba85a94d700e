"""Published rows: small, without paths of a machine, and a report of them equals the report of the runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import dcpg.api
from dcpg.errors import BadInput
from dcpg.runs.collection import read as records_of
from dcpg.runs.publish import merged, publish, thinned
from dcpg.storage.rows import Metrics, Timing, read, read_rows
from tests import synthetic
from tests.cli.test_cli import run


def metrics(count: int, measured: tuple[int, ...] = ()) -> list[Metrics]:
    empty = {"episode_returns": [], "episode_lengths": [], "episode_levels": [], "reward_variance": 1.0}
    rows = [{"rollout": i, "steps": 64 * i, **empty} for i in range(1, count + 1)]
    return [Metrics.parse(row | ({"stiffness": 0.5} if row["rollout"] in measured else {})) for row in rows]


def test_thinned_rows_are_at_equal_distances_with_the_last_and_all_measurements() -> None:
    def rollouts(rows: list[Metrics], most: int) -> list[int]:
        return [json.loads(row)["rollout"] for row in thinned(lambda: rows, most)]

    assert rollouts(metrics(10), 3) == [2, 6, 10]
    assert rollouts(metrics(10, measured=(1, 6, 7)), 3) == [1, 2, 6, 7, 10]
    assert rollouts(metrics(3), 50) == [1, 2, 3]
    assert thinned(lambda: [], 50) == []


def test_merged_times_lose_no_second() -> None:
    rows = [Timing(steps=64 * i, steps_per_s=9.0, seconds={"policy": float(i), "save": 1.0}) for i in range(1, 6)]
    assert merged(rows, 2) == [
        Timing(steps=192, steps_per_s=192 / 9, seconds={"policy": 6.0, "save": 3.0}),
        Timing(steps=320, steps_per_s=128 / 11, seconds={"policy": 9.0, "save": 2.0}),
    ]
    assert merged([], 50) == []


def test_a_report_of_published_rows_equals_that_of_the_runs(tmp_path: Path) -> None:
    synthetic.few(tmp_path / "sweep" / "runs")
    found = publish([tmp_path / "sweep"], tmp_path / "results")
    assert len(found.runs) == 12
    assert not found.left_out
    tables = []
    for folder in ("sweep", "results"):
        dcpg.api.report(tmp_path / folder, out=tmp_path / f"report-{folder}", names=("table1", "figure5"))
        out = tmp_path / f"report-{folder}"
        tables.append(
            {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.suffix in (".csv", ".md", ".png")}
        )
    assert tables[0] == tables[1]
    assert len(tables[0]) >= 3


def test_a_trained_run_is_published_without_weights_and_paths(tmp_path: Path) -> None:
    small = {"evaluation.episodes": 2, "evaluation.max_steps": 20, "env.frame_size": 16, "network.channels": (4, 8)}
    first, second = tmp_path / "runs" / "first", tmp_path / "runs" / "second"
    dcpg.train("ppo", "coinrun", preset="tiny", steps=512, out=first, settings=small, progress=False)
    dcpg.train("ppo", "coinrun", preset="tiny", steps=256, out=second, settings=small, progress=False, init=first)
    found = dcpg.api.publish(tmp_path / "runs", out=tmp_path / "results", rows=2)
    assert found.runs == [tmp_path / "results" / "first", tmp_path / "results" / "second"]
    assert {p.name for p in found.runs[0].iterdir()} == {
        "config.json", "eval.jsonl", "metrics.jsonl", "published.json", "summary.json", "timing.jsonl",
    }  # fmt: skip
    assert (found.runs[0] / "eval.jsonl").read_bytes() == (first / "eval.jsonl").read_bytes()
    assert [row.rollout for row in read(found.runs[0] / "metrics.jsonl", Metrics)] == [2, 4]
    seconds = [
        sum(sum(row.seconds.values()) for row in read(p / "timing.jsonl", Timing)) for p in (first, found.runs[0])
    ]
    assert seconds[0] == pytest.approx(seconds[1])
    began = json.loads((found.runs[1] / "config.json").read_bytes())["init"]
    weights = next(p for p in (first / "checkpoints").glob("000000000512-*")) / "weights.safetensors"
    assert began == f"first, weights {hashlib.sha256(weights.read_bytes()).hexdigest()[:16]}"
    assert not any(str(tmp_path) in p.read_text() for p in (tmp_path / "results").rglob("*") if p.is_file())
    # published rows are replaced, a run is not
    again = dcpg.api.publish(tmp_path / "runs", out=tmp_path / "results")
    assert len(read_rows(again.runs[0] / "metrics.jsonl")) == 4
    with pytest.raises(BadInput, match="holds checkpoints, which is no part of published rows"):
        dcpg.api.publish(tmp_path / "results", out=tmp_path / "runs")
    assert (first / "checkpoints").is_dir()


def test_rows_of_a_run_that_began_with_other_weights_are_not_replaced(tmp_path: Path) -> None:
    """Two pretrained runs with one name: their folders do not tell them apart."""
    small = {"evaluation.episodes": 2, "evaluation.max_steps": 20, "env.frame_size": 16, "network.channels": (4, 8)}
    for seed, one in enumerate("ab"):
        before, out = tmp_path / one / "before", tmp_path / f"runs-{one}" / "run"
        dcpg.train("ppo", "coinrun", preset="tiny", steps=256, seed=seed, out=before, settings=small, progress=False)
        dcpg.train("ppo", "coinrun", preset="tiny", steps=256, out=out, settings=small, progress=False, init=before)
    publish([tmp_path / "runs-a"], tmp_path / "results")
    rows = (tmp_path / "results" / "run" / "eval.jsonl").read_bytes()
    with pytest.raises(BadInput, match="has the rows of another run"):
        publish([tmp_path / "runs-b"], tmp_path / "results")
    assert (tmp_path / "results" / "run" / "eval.jsonl").read_bytes() == rows


def test_rows_of_a_newer_release_are_not_replaced(tmp_path: Path) -> None:
    synthetic.some(tmp_path / "runs" / "run", "ppo")
    (there,) = publish([tmp_path / "runs"], tmp_path / "results").runs
    plain = json.loads((there / "config.json").read_text())
    (there / "config.json").write_text(json.dumps(plain | {"schema": plain["schema"] + 1}))
    with pytest.raises(BadInput, match="has rows of a newer release; upgrade dcpg"):
        publish([tmp_path / "runs"], tmp_path / "results")
    (there / "config.json").write_text("{")  # half of a copy: nothing of it can be used
    publish([tmp_path / "runs"], tmp_path / "results")
    assert json.loads((there / "config.json").read_text()) == plain


def test_runs_that_are_not_whole_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.some(tmp_path / "runs" / "whole", "ppo")
    half = synthetic.some(tmp_path / "runs" / "half", "ppo", seed=1).path
    synthetic.edit("eval.jsonl", lambda rows: rows.__delitem__(-1))(half)
    torn = synthetic.some(tmp_path / "runs" / "torn", "ppo", seed=2).path
    with open(torn / "eval.jsonl", "a") as file:
        file.write('{"k": 3')
    code, said, _ = run(capsys, "export", str(tmp_path / "runs"), "--rows", "--out", str(tmp_path / "results"))
    assert code == 0
    assert f"Left out: {half} (it has 1,024 of 2,048 steps)" in said
    assert f"2 runs; see them with: dcpg report {tmp_path / 'results'}" in said
    assert (tmp_path / "results" / "torn" / "eval.jsonl").read_text().endswith("}\n")


def test_what_cannot_be_published_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.some(tmp_path / "a" / "run", "ppo")
    synthetic.some(tmp_path / "b" / "run", "ppo", seed=1)
    with pytest.raises(BadInput, match="have the same name"):
        publish([tmp_path], tmp_path / "results")
    assert not (tmp_path / "results").exists()
    synthetic.edit("eval.jsonl", lambda rows: rows.__delitem__(-1))(tmp_path / "a" / "run")
    with pytest.raises(BadInput, match=r"There is nothing to publish .*it has 1,024 of 2,048 steps"):
        publish([tmp_path / "a"], tmp_path / "results")
    for words in (["--rows"], ["--rows", "--out", "x", "--at", "5"]):
        code, _, said = run(capsys, "export", str(tmp_path / "b"), *words)
        assert code == 2
        assert "give it a folder with --out" in said


def test_nothing_is_replaced_but_published_rows(tmp_path: Path) -> None:
    synthetic.some(tmp_path / "runs" / "a", "ppo")
    publish([tmp_path / "runs"], tmp_path / "runs" / "published")
    mark = tmp_path / "runs" / "published" / "a" / "published.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"notes": ["a long note" * 20] * 20}))
    publish([tmp_path / "runs"], tmp_path / "runs" / "published")  # what was published there is no run to publish
    mine = tmp_path / "runs" / "published" / "a" / "analysis" / "notes.md"
    mine.parent.mkdir()
    mine.write_text("precious")
    with pytest.raises(BadInput, match=r"holds analysis/notes\.md, which is no part of published rows"):
        publish([tmp_path / "runs"], tmp_path / "runs" / "published")
    (tmp_path / "others" / "a").mkdir(parents=True)
    (tmp_path / "others" / "a" / "config.json").write_text('{"method": "an experiment of somebody"}')
    with pytest.raises(BadInput, match="already exists and is not published rows"):
        publish([tmp_path / "runs" / "a"], tmp_path / "others")
    (tmp_path / "runs" / "a" / "SYNTHETIC").unlink()
    with pytest.raises(BadInput, match="There is nothing to publish outside of"):  # the run itself
        publish([tmp_path / "runs" / "a"], tmp_path / "runs")
    with pytest.raises(BadInput, match="At least one row"):
        publish([tmp_path / "runs" / "a"], tmp_path / "new", rows=0)


def test_rows_of_a_longer_run_are_not_replaced_by_those_of_a_shorter_one(tmp_path: Path) -> None:
    long, short = (synthetic.some(tmp_path / name / "a", "ppo", steps=n).path for name, n in (("l", 4096), ("s", 2048)))
    publish([short], tmp_path / "out")
    publish([long], tmp_path / "out")
    rows = (tmp_path / "out" / "a" / "eval.jsonl").read_bytes()
    with pytest.raises(BadInput, match=r"has the rows of 4,096 steps, .* those of 2,048 only"):
        publish([short], tmp_path / "out")
    assert (tmp_path / "out" / "a" / "eval.jsonl").read_bytes() == rows


def test_rows_of_a_run_that_began_with_something_else_are_not_replaced(tmp_path: Path) -> None:
    plain, pretrained = (synthetic.some(tmp_path / name / "a", "ppo").path for name in ("plain", "pretrained"))
    synthetic.configured(lambda written: written.update(init="first"))(pretrained)
    publish([plain], tmp_path / "out")
    with pytest.raises(BadInput, match="has the rows of another run"):
        publish([pretrained], tmp_path / "out")
    publish([plain], tmp_path / "out")


def test_what_a_killed_export_has_left_is_named_and_not_read(tmp_path: Path) -> None:
    synthetic.few(tmp_path / "sweep" / "runs")
    whole = publish([tmp_path / "sweep"], tmp_path / "results").runs
    left = [tmp_path / "results" / f"{kind}{whole[0].name}" for kind in (".tmp-", ".old-")]
    for folder in left:
        shutil.copytree(whole[0], folder)
    records, problems = records_of([tmp_path / "results"])
    assert len(records) == len(whole)
    assert sorted(problem.path for problem in problems) == sorted(left)
    assert publish([tmp_path / "sweep"], tmp_path / "results").runs == whole
    assert not any(folder.exists() for folder in left)


def test_published_rows_beside_their_runs_count_once(tmp_path: Path) -> None:
    """Also if the run's own environment lay in a folder, which is not published."""
    for seed in (0, 1):
        run = synthetic.of_a_stranger(tmp_path / "runs" / f"{seed}", "x", seed, plugin=False)
        synthetic.configured(lambda plain: plain["environment"].update(id="/some/maze.py:make", test_id=None))(run)
    publish([tmp_path / "runs"], tmp_path / "results")
    records, problems = records_of([tmp_path])
    assert [record.config.seed for record in records] == [0, 1]
    assert len({record.game for record in records}) == 1
    assert len(problems) == 2
    assert all("left out: the same rows as" in problem.text for problem in problems)


def test_environments_that_are_told_apart_stay_so_when_they_are_published(tmp_path: Path) -> None:
    """Also without hashes, as those of older runs and of Gymnasium's ids."""
    ids = ["/one/maze.py:make", "/two/maze.py:make", "a/Maze-v0", "b/Maze-v0", "m:make('/x/1')", "m:make('/y/1')"]
    for seed, id_ in enumerate(ids):
        run = synthetic.of_a_stranger(tmp_path / "runs" / f"{seed}", "x", seed, plugin=False)
        synthetic.configured(lambda plain, id_=id_: plain["environment"].update(id=id_, test_id=None))(run)
    publish([tmp_path / "runs"], tmp_path / "results")
    for folder in ("runs", "results"):
        records, problems = records_of([tmp_path / folder])
        assert len({record.game for record in records}) == len(ids)
        assert not problems
    text = "".join(path.read_text() for path in (tmp_path / "results").rglob("config.json"))
    assert not [folder for folder in ("/one", "/two", "/x/", "/y/") if folder in text]


def test_of_a_run_and_its_published_rows_the_run_is_read(tmp_path: Path) -> None:
    """In whatever order they are found."""
    for seed in (0, 1):
        run = synthetic.of_a_stranger(tmp_path / "runs" / f"{seed}", "x", seed, plugin=False)
        synthetic.configured(lambda plain: plain["environment"].update(id="/some/maze.py:make", test_id=None))(run)
    publish([tmp_path / "runs" / "0"], tmp_path / "before")
    records, _ = records_of([tmp_path / "before", tmp_path / "runs"])
    assert [record.path for record in records] == [tmp_path / "runs" / "0", tmp_path / "runs" / "1"]
    assert len({record.game for record in records}) == 1


def test_what_is_noted_about_a_run_is_noted_about_its_published_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.few(tmp_path / "runs", ("dcpg",), (0,))
    torn = tmp_path / "runs" / "bigfish-dcpg-0"
    with (torn / "eval.jsonl").open("a") as file:
        file.write('{"torn": ')
    note = "eval.jsonl is torn: 1 of 4 lines were passed over"
    code, out, _ = run(capsys, "export", str(tmp_path / "runs"), "--rows", "--out", str(tmp_path / "results"))
    assert code == 0
    assert f"note: {torn}: {note}" in out
    _, problems = records_of([tmp_path / "results"])
    assert [(problem.path.name, problem.text) for problem in problems] == [("bigfish-dcpg-0", note)]
    again = publish([tmp_path / "results"], tmp_path / "again")
    assert again.notes == {tmp_path / "results" / "bigfish-dcpg-0": [note]}


def test_rows_that_no_run_with_its_settings_writes_are_not_published(tmp_path: Path) -> None:
    for seed, folder in enumerate("abcd"):
        synthetic.some(tmp_path / "runs" / folder, "ppo", seed=seed)
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text(lines(row.plain() for row in metrics(99)))
    full = metrics(1)[0].plain() | {"episode_returns": [1.0] * 1000}
    (tmp_path / "runs" / "b" / "metrics.jsonl").write_text(lines([full]))
    (tmp_path / "runs" / "c" / "timing.jsonl").write_text(lines(times(n) for n in range(1, 100)))
    (tmp_path / "runs" / "d" / "summary.json").touch()
    os.truncate(tmp_path / "runs" / "d" / "summary.json", 2**29 - 1)
    found = publish([tmp_path / "runs"], tmp_path / "published")
    assert [path.name for path in found.runs] == ["c"]
    why = {path.name: reason for path, reason in found.left_out.items()}
    assert "metrics.jsonl has more than 16 rows" in why["a"]
    assert "1,000 episodes in one rollout" in why["b"]
    assert "summary.json cannot be read (it has more than" in why["d"]
    assert not (tmp_path / "published" / "c" / "timing.jsonl").exists()
    assert "timing.jsonl was passed over" in found.notes[tmp_path / "runs" / "c"][0]


def lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def times(n: int) -> dict[str, Any]:
    return {"steps": 128 * n, "steps_per_s": 1.0, "seconds": {"collect": 1.0}}

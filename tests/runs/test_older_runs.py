"""Runs of configuration schema 5 and checkpoint schema 1, made before both changed: everything still works on them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from safetensors.torch import load as load_tensors

import dcpg
from dcpg import api
from dcpg.config import presets
from dcpg.config.migrate import MIGRATIONS, PRESETS_5, migrated
from dcpg.config.presets import PRESETS
from dcpg.config.schema import SCHEMA
from dcpg.config.written import fingerprint, parse_written, read_written
from dcpg.envs.levels import PrioritisedLevels
from dcpg.envs.library import library
from dcpg.errors import BadInput
from dcpg.runs import video
from dcpg.runs.records import read_run
from dcpg.storage.rows import read_rows
from dcpg.storage.rundir import RunDirectory
from dcpg.training.start import resume
from dcpg.training.state import split
from dcpg.training.trainer import Trainer

OLDER = Path(__file__).parents[1] / "data" / "schema-5"
RUNS = ("ddcpg-stopped", "dcpg-finished", "ppo-laptop")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy of the runs, because looking at them may write."""
    shutil.copytree(OLDER, tmp_path / "older")
    return tmp_path / "older"


def newest(run: Path) -> Path:
    return max(path for path in (run / "checkpoints").iterdir() if path.name[0].isdigit())


def test_the_committed_runs_are_of_the_older_schemas() -> None:
    for name in RUNS:
        assert json.loads((OLDER / name / "config.json").read_text())["schema"] == 5
        assert json.loads((newest(OLDER / name) / "manifest.json").read_text())["schema"] == 1
    assert not list(OLDER.rglob("lock"))


@pytest.mark.parametrize("name", [*RUNS, "dcpg-export"])
def test_an_older_run_is_evaluated_as_its_rows_say(older: Path, name: str) -> None:
    agent = dcpg.load(older / name)
    result = dcpg.evaluate(older / name, levels="test")
    source = "dcpg-finished" if name == "dcpg-export" else name
    row = next(row for row in read_rows(older / source / "eval.jsonl") if row["k"] == agent.k)
    assert result["level_seeds"] == row["test_levels"]
    if name != "ddcpg-stopped":  # which stopped in the middle of a rollout, after its last evaluation
        assert result["steps"] == row["steps"]
        # the runs are of procgen-mirror; another build draws some sprites differently
        near = {"rel": 1e-4} if library().origin.startswith("procgen-mirror") else {"abs": 1e-3}
        assert result["predicted_value"] == pytest.approx(row["test_predicted_value"], **near)
    assert dcpg.evaluate(older / "dcpg-finished", levels="0-1", at=256)["steps"] == 256


@pytest.mark.faults
def test_an_older_run_is_recorded_analysed_and_exported(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_FRAMES", 30)
    run = older / "dcpg-finished"
    made = api.record(run, levels="3")
    assert made.video.stat().st_size > 1000
    values = dcpg.analyse(run, "values")
    assert values["steps"] == [row["steps"] for row in read_rows(run / "eval.jsonl")]
    measured = dcpg.analyse(run, "stiffness", states=64, burn_in=0)
    assert measured["recorded"]["steps"] == [128, 256, 384, 512]
    assert -1 <= measured["stiffness"] <= 1
    levels = dcpg.analyse(run, "levels", levels=2)
    assert levels["train"]["levels"] == [0, 1]
    folder = api.export(run, out=older / "again")
    assert (folder / "model.safetensors").read_bytes() == (older / "dcpg-export" / "model.safetensors").read_bytes()
    assert dcpg.load(folder).steps == 512


def test_older_runs_are_reported_under_their_names(older: Path, tmp_path: Path) -> None:
    made = api.report(older / "dcpg-finished", older / "ppo-laptop", out=tmp_path / "report")
    labels = {path.name: read_run(path)[0].label for path in (older / name for name in RUNS)}
    assert labels == {
        "ddcpg-stopped": "ddcpg [augment=ucb, sampler=prioritised, c=5.0]",
        "dcpg-finished": "dcpg",
        "ppo-laptop": "ppo",
    }
    assert (tmp_path / "report" / "report.html").is_file()
    assert not [problem for problem in made.problems if "left out" in problem.text]


def test_a_later_preset_table_changes_nothing_about_an_older_run(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_run(older / "ppo-laptop")[0]
    monkeypatch.setitem(presets.PRESETS, "laptop", {**PRESETS["laptop"], "algorithm.E_pi": 9, "rollout_length": 64})
    after = read_run(older / "ppo-laptop")[0]
    assert (after.label, after.setting) == (before.label, before.setting) == ("ppo", before.setting)
    assert read_written(RunDirectory(older / "ppo-laptop")).preset_values == PRESETS_5["laptop"]


def restored(run: Path) -> Trainer:
    written = read_written(RunDirectory(run))
    trainer = Trainer(written.config, RunDirectory(run), fingerprint=written.fingerprint)
    trainer.restore()
    return trainer


def test_an_older_checkpoint_is_taken_over_exactly(older: Path) -> None:
    """Stopped in the middle of an auxiliary phase, with a bandit and a level sampler that have learnt something."""
    run = older / "ddcpg-stopped"
    place = newest(run)
    state = json.loads((place / "state.json").read_text())
    blobs = split(zstandard.ZstdDecompressor().decompress((place / "envs.zst").read_bytes()))
    trainer = restored(run)
    algorithm, collector = trainer.algorithm, trainer.collector
    assert dataclasses.asdict(algorithm.cursor) == state["cursor"]
    assert state["cursor"]["line"] == 2
    assert list(algorithm.B.rollouts) == state["rollouts"] == [2, 3]
    assert collector.normaliser.state() == state["normaliser"]
    assert collector.choosers["augmentation"].state() == state["augmenter"]
    sampler = collector.choosers["levels"]
    assert isinstance(sampler, PrioritisedLevels)
    assert sampler.state() == json.loads(blobs[-1])
    assert collector.env.state() == blobs[:-1]
    assert {name: s.values.tolist() for name, s in algorithm.stepper.sums.items()} == {
        name: s["values"] for name, s in state["sums"].items()
    }
    moments, weights = (load_tensors((place / f"{name}.safetensors").read_bytes()) for name in ("adam", "weights"))
    assert equal(algorithm.stepper.state().tensors, moments)
    assert equal(trainer.network.state().tensors, weights)
    tau = load_tensors((place.parent / "shared" / "rollout-00000003.safetensors").read_bytes())
    assert algorithm.tau is not None
    assert equal(algorithm.tau.tensors(), tau)
    assert algorithm.tau.augmentation == collector.augmentation
    trainer.env.close()


def equal(ours: Any, theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_older_run_is_resumed_to_its_end(older: Path) -> None:
    """The expected rows are of the same run, never stopped; what this processor computes may differ in rounding."""
    run, expected = older / "ddcpg-stopped", read_rows(older / "ddcpg-expected" / "metrics.jsonl")
    before = read_rows(run / "metrics.jsonl")
    summary = resume(run)
    rows = read_rows(run / "metrics.jsonl")
    assert summary.status == "finished"
    assert [row["steps"] for row in rows] == [row["steps"] for row in expected]
    assert rows[: len(before)] == before == expected[: len(before)]
    resumed, whole = rows[len(before)], expected[len(before)]  # the rollout in whose auxiliary phase it stopped
    auxiliary = {name for name in whole if name.startswith("auxiliary.")}
    assert {k: v for k, v in resumed.items() if k not in auxiliary} == {
        k: v for k, v in whole.items() if k not in auxiliary
    }
    for name in auxiliary:
        assert resumed[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-6), name
    assert json.loads((run / "config.json").read_text())["schema"] == 5  # as its checkpoints know it
    assert json.loads((newest(run) / "manifest.json").read_text())["schema"] == 4
    assert dcpg.resume(run, steps=896).summary["steps"] == 896


def test_the_fingerprint_is_of_the_schema_in_which_a_run_was_written() -> None:
    for name in RUNS:
        written = read_written(RunDirectory(OLDER / name))
        manifest = json.loads((newest(OLDER / name) / "manifest.json").read_text())
        assert written.fingerprint == manifest["config"]
        more = {**written.plain, "schema": SCHEMA, "new_setting": 3}
        assert fingerprint(more) != manifest["config"]


def test_schemas_that_cannot_be_read_are_refused() -> None:
    plain = json.loads((OLDER / "dcpg-finished" / "config.json").read_text())
    assert migrated(plain)["schema"] == SCHEMA
    assert sorted(MIGRATIONS) == list(range(5, SCHEMA))  # one function per schema, without a gap
    for schema in (4, SCHEMA + 1, "5", None):
        with pytest.raises(BadInput, match=r"this program reads schemas 5, 6, 7, 8, 9, 10, 11\."):
            parse_written({**plain, "schema": schema})

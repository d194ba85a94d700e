"""Analyses at the end of the runs of a sweep."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import dcpg
from dcpg.errors import BadInput, Stopped, SweepIncomplete
from dcpg.storage.files import dump
from dcpg.storage.rows import read_rows
from dcpg.sweep.attempt import Attempt, Outcome, run_attempt
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.dry_run import count_sweep, describe
from dcpg.sweep.index import MAX_LOST
from dcpg.sweep.plan import read
from dcpg.sweep.ray.task import DriverFile, carry_out
from dcpg.sweep.view import read_plan, view_directory
from tests.cli.test_cli import run as command
from tests.sweep.fakes import Memory, drive_once, indexed, place, planned, write_run
from tests.sweep.test_dry_run import fake_training

QUICK = {"env": {"frame_size": 16}, "network": {"channels": [4]}, "evaluation": {"max_steps": 20, "episodes": 2}}
DDCPG = {"methods": ["ppo", "ddcpg"], "analyse_after": {"ddcpg": ["ood-actions"]}}
NAMES = ["starpilot-ppo-0", "starpilot-ddcpg-0", "starpilot-ppo-1", "starpilot-ddcpg-1"]


def write_analysis(root: Path, name: str, steps: int = 512, states: int = 16_384) -> None:
    """What an analysis leaves, as far as a sweep reads it."""
    folder = SweepDirectory(root).run(name) / "analysis"
    folder.mkdir(exist_ok=True)
    about = {"analysis": "ood-actions", "method": "ddcpg", "game": "starpilot", "seed": int(name[-1])}
    asked = {"states": states, "burn_in": 1000}
    (folder / "ood-actions.json").write_bytes(dump({**about, "asked": asked, "steps": steps}))


class Analysing(Memory):
    """An engine in memory whose runs are analysed, except those in `failing`, and those of which `losing` is left."""

    failing: tuple[str, ...] = ()
    losing: ClassVar[Counter[str]] = Counter()
    orders: list[tuple[str, list[str], bool]]

    def submit(self, attempt: Attempt) -> None:
        self.orders = [*getattr(self, "orders", []), (attempt.name, attempt.analyses, attempt.train)]
        super().submit(attempt)

    def wait(self, seconds: float) -> list[Outcome]:
        wanted = {attempt.name: attempt.analyses for attempt in self.attempts}
        outcomes = super().wait(seconds)
        for number, outcome in enumerate(outcomes):
            if wanted.get(outcome.name) and outcome.name in self.failing:
                lines = "Training\ndcpg: The run is trained, but: no picture."
                outcomes[number] = dataclasses.replace(outcome, code=1, last_lines=lines)
            elif wanted.get(outcome.name) and self.losing[outcome.name]:
                self.losing[outcome.name] -= 1
                outcomes[number] = dataclasses.replace(outcome, code=None, last_lines="The directory is away.")
            elif wanted.get(outcome.name) and outcome.code == 0:
                write_analysis(self.root, outcome.name)
        return outcomes


@pytest.fixture(autouse=True)
def analysing(monkeypatch: pytest.MonkeyPatch) -> type[Analysing]:
    monkeypatch.setattr("tests.sweep.fakes.Memory", Analysing)
    monkeypatch.setattr(Analysing, "failing", ())
    monkeypatch.setattr(Analysing, "losing", Counter())
    return Analysing


def test_the_named_sweeps_make_table_10() -> None:
    wanted = {name: {job.config.method: job.analyses for job in read(name).jobs} for name in ("table1", "ablations")}
    asked = {name: {method for method, found in methods.items() if found} for name, methods in wanted.items()}
    assert asked == {"table1": {"ddcpg"}, "ablations": {"dcpg+f", "dcpg+fi"}}
    assert wanted["ablations"]["dcpg+fi"] == wanted["table1"]["ddcpg"] == ("ood-actions",)


def test_the_key_of_a_file() -> None:
    both = planned(analyse_after=["levels", "values"]).jobs
    assert {job.analyses for job in both} == {("levels", "values")}
    assert [job.analyses for job in planned(analyse_after="values", methods="ppo", seeds=1).jobs] == [("values",)]
    assert [job.analyses for job in planned(**DDCPG).jobs] == [(), ("ood-actions",)] * 2
    refused = {
        "ppo has no discriminator to ask; .* Give a table instead": ["ood-actions"],
        "Unknown analysis in analyse_after 'odd-actions'; did you mean 'ood-actions'": ["odd-actions"],
        "analyse_after names 'values' twice": ["values", "values"],
        "Unknown method of .analyse_after. 'dcpgg'; did you mean 'dcpg'": {"dcpgg": ["values"]},
        "Unknown analysis in .analyse_after. .dcpg. '3'": {"dcpg": [3]},
    }
    for said, given in refused.items():
        with pytest.raises(BadInput, match=said):
            planned(analyse_after=given)


def test_runs_are_analysed_when_they_are_trained_and_once(tmp_path: Path) -> None:
    engine, quiet, now = drive_once(tmp_path, plan=planned(**DDCPG))
    assert engine.orders == [(name, ["ood-actions"] if "ddcpg" in name else [], True) for name in NAMES]
    assert (now.counts["done"], now.analyses_missing) == (4, 0)
    assert f"{NAMES[1]} is analysed: ood-actions." in quiet.said
    engine, _, _ = drive_once(tmp_path, plan=planned(**DDCPG))
    assert engine.begun == []
    write_analysis(tmp_path, NAMES[3], steps=384)  # of older weights
    engine, _, now = drive_once(tmp_path, plan=planned(**DDCPG))
    assert engine.orders == [(NAMES[3], ["ood-actions"], False)]
    assert now.analyses_missing == 0
    events = indexed(tmp_path / "index.jsonl")
    assert [event for run, event in events if run == NAMES[3]] == ["started", "ended", "finished"]


def test_analyses_that_were_added_later(tmp_path: Path) -> None:
    drive_once(tmp_path, plan=planned(methods=["ppo", "ddcpg"]))
    engine, _, now = drive_once(tmp_path, plan=planned(**DDCPG))
    assert engine.orders == [(name, ["ood-actions"], False) for name in NAMES if "ddcpg" in name]
    assert (now.counts["done"], now.analyses_missing) == (4, 0)


def test_a_failed_analysis_is_no_failed_run_and_is_tried_again_at_the_next_start(
    tmp_path: Path, analysing: type[Analysing], capsys: pytest.CaptureFixture[str]
) -> None:
    analysing.failing = (NAMES[1],)
    for _ in range(4):  # never counts as a failure of the run
        engine, quiet, end = drive_once(tmp_path, plan=planned(**DDCPG))
        assert isinstance(end, SweepIncomplete)
        assert str(end) == (
            f"4 of 4 runs are done, but 1 analysis of them could not be made; of {NAMES[1]}: dcpg: The run is "
            "trained, but: no picture. When the cause is gone: dcpg sweep x"
        )
        assert f"{NAMES[1]} has no ood-actions yet (dcpg: The run is trained, but: no picture.)" in quiet.said
    assert engine.orders == [(NAMES[1], ["ood-actions"], False)]
    code, out, _ = command(capsys, "sweep", "status", str(tmp_path))
    assert (code, "4 done  0 running  0 waiting  0 failed  1 analysis missing" in out) == (0, True)
    found = json.loads(command(capsys, "sweep", "status", str(tmp_path), "--json")[1])
    assert found["analyses_missing"] == 1
    assert [run.get("analyses_missing") for run in found["runs"]] == [None, ["ood-actions"], None, []]
    analysing.failing = ()
    engine, _, now = drive_once(tmp_path, plan=planned(**DDCPG))
    assert (engine.begun, now.analyses_missing) == ([NAMES[1]], 0)


@pytest.mark.parametrize("lost", [1, MAX_LOST, MAX_LOST + 1])
def test_analyses_whose_worker_or_storage_is_lost_are_tried_again(
    tmp_path: Path, analysing: type[Analysing], lost: int
) -> None:
    analysing.losing = Counter({NAMES[1]: lost})
    engine, quiet, end = drive_once(tmp_path, plan=planned(**DDCPG))
    again = min(lost, MAX_LOST)
    assert [order for order in engine.orders if not order[2]] == [(NAMES[1], ["ood-actions"], False)] * again
    said = f"{NAMES[1]} lost its worker or its storage before its analyses were made; they are tried again."
    assert quiet.said.count(said) == again
    if lost > MAX_LOST:
        assert isinstance(end, SweepIncomplete)
        assert f"of {NAMES[1]}: The directory is away." in str(end)
    else:
        assert (end.counts["done"], end.analyses_missing) == (4, 0)


def test_a_stop_while_only_analyses_are_left(tmp_path: Path) -> None:
    plan = planned(**DDCPG)
    for job in plan.jobs:
        write_run(tmp_path, job, place(512), finished=True)
    engine, _, end = drive_once(tmp_path, plan=plan, then=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert engine.begun == [NAMES[1]]
    assert isinstance(end, Stopped)
    assert view_directory(tmp_path)[1].analyses_missing == 1


def test_the_dry_run_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_training(monkeypatch)
    plan = planned(**DDCPG)
    write_run(tmp_path, plan.jobs[1], place(512), finished=True)
    line = "After training: ood-actions of 2 runs, {} there already."
    assert list(describe(plan, tmp_path, count_sweep(plan, tmp_path)))[3] == line.format(0)
    write_analysis(tmp_path, NAMES[1])
    assert list(describe(plan, tmp_path, count_sweep(plan, tmp_path)))[3] == line.format(1)
    write_analysis(tmp_path, NAMES[1], states=64)  # not what a sweep asks for
    assert list(describe(plan, tmp_path, count_sweep(plan, tmp_path)))[3] == line.format(0)


def test_the_plan_on_disk_has_them(tmp_path: Path) -> None:
    plan = planned(**DDCPG)
    drive_once(tmp_path, plan=plan)
    assert [job.analyses for job in read_plan(SweepDirectory(tmp_path)).jobs] == [job.analyses for job in plan.jobs]


def attempt_of(root: Path, **changes: Any) -> Attempt:
    (job,) = planned(methods="ddcpg", seeds=1, steps=128, set=QUICK, analyse_after=["ood-actions", "values"]).jobs
    return Attempt(str(root), job.name, job.config.to_json(), analyses=list(job.analyses), **changes)


@pytest.mark.faults
def test_the_process_of_a_run_makes_them(tmp_path: Path) -> None:
    """They are what `dcpg analyse` writes; a failed one leaves a trained run, which is not trained again."""
    run = tmp_path / "runs" / "starpilot-ddcpg-0"
    run.parent.mkdir()
    outcome = run_attempt(dataclasses.replace(attempt_of(tmp_path), analyses=[]), lambda: False)
    assert outcome.code == 0, outcome.last_lines
    (run / "analysis").write_text("in the way")
    outcome = run_attempt(attempt_of(tmp_path, train=False), lambda: False)
    assert outcome.code == 1
    last = outcome.last_lines.splitlines()[-1]
    assert last.startswith("dcpg: The run is trained, but not every analysis could be made. ood-actions: ")
    assert "values: " in last
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    (run / "analysis").unlink()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    outcome = run_attempt(attempt_of(tmp_path, train=False), lambda: False)
    assert outcome.code == 0, outcome.last_lines
    assert {path: path.stat().st_mtime_ns for path in before} == before
    made = {path.name: path.read_bytes() for path in (run / "analysis").iterdir()}
    assert set(made) == {"ood-actions.json", "ood-actions.png", "values.json", "values.png"}
    for name in ("ood-actions", "values"):
        assert json.loads(made[f"{name}.json"]) == json.loads(json.dumps(dcpg.analyse(run, name)))


@pytest.mark.faults
def test_a_process_that_is_given_more_steps_goes_on(tmp_path: Path) -> None:
    """The result is that of a run that was begun with them, and the analyses are of the new weights."""
    (job,) = planned(methods="ddcpg", seeds=1, steps=256, set=QUICK, analyse_after="values").jobs
    (tmp_path / "runs").mkdir()
    for steps in (128, 256):
        config = {**job.config.to_json(), "steps": steps}
        assert run_attempt(Attempt(str(tmp_path), "a", config, analyses=["values"]), lambda: False).code == 0
    assert run_attempt(Attempt(str(tmp_path), "b", job.config.to_json()), lambda: False).code == 0
    extended, at_once = (tmp_path / "runs" / name for name in "ab")
    for run in (extended, at_once):
        assert json.loads((run / "config.json").read_text())["steps"] == 256
        assert json.loads((run / "summary.json").read_text())["steps"] == 256
    rows = [read_rows(run / "metrics.jsonl") for run in (extended, at_once)]
    assert rows[0] == rows[1]
    assert json.loads((extended / "analysis" / "values.json").read_text())["steps"][-1] == 256


@pytest.mark.faults
def test_a_ray_worker_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "abc")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    (tmp_path / "runs").mkdir()
    file = DriverFile(tmp_path / "nodes")
    found = carry_out(dataclasses.asdict(attempt_of(tmp_path)), file.nonce)
    assert found["code"] == 0, found["last_lines"]
    kept = sorted(path.name for path in (tmp_path / "runs" / "starpilot-ddcpg-0" / "analysis").glob("*.json"))
    assert kept == ["ood-actions.json", "values.json"]

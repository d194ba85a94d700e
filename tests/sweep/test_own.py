"""Sweeps with variants, plugins and environments of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dcpg.errors import BadInput
from dcpg.methods import METHODS, plugins
from dcpg.storage.files import dump
from dcpg.sweep.attempt import Attempt, run_attempt
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.plan import expand, read
from dcpg.sweep.view import plan_json, statuses, view_directory
from tests.cli.test_cli import run as command
from tests.config.test_environments import FILE
from tests.docs.pages import ROOT
from tests.methods.test_plugins import VARIANT, forget, tables_restored
from tests.sweep.fakes import TINY, planned

tables_restored = tables_restored  # noqa: PLW0127  a fixture
OWN = {key: value for key, value in TINY.items() if key != "games"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "signs.py").write_text(FILE.format(count=20))
    (tmp_path / "mine.py").write_text(VARIANT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_variants_multiply_methods_and_grids() -> None:
    plan = planned(
        seeds=1,
        variants={
            "plain": {},
            "dcpg": {"wide": {"network": {"width": 2}}, "both": {"network": {"width": 2}, "augment": "ucb"}},
        },
        grid={"dcpg": {"algorithm": {"N_pi": [1, 2]}}},
    )
    names = ["starpilot-ppo-0", *(f"starpilot-dcpg{v}-n_pi={n}-0" for v in ("", "-wide", "-both") for n in (1, 2))]
    assert [job.name for job in plan.jobs] == names
    found = {job.name: (job.config.network.width, job.config.augment) for job in plan.jobs}
    assert found["starpilot-dcpg-wide-n_pi=2-0"] == (2, "none")
    assert found["starpilot-dcpg-both-n_pi=1-0"] == (2, "ucb")
    assert found["starpilot-dcpg-n_pi=1-0"] == found["starpilot-ppo-0"] == (1, "none")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"variants": 3}, "[variants] must be a table; got 3."),
        ({"variants": {"ppg": {"plain": {}}}}, '[variants."ppg"] is for a method that this sweep does not train.'),
        ({"variants": {"wide": 2}}, "'wide' must be a short name in small letters and a table of settings."),
        ({"variants": {"Wide thing": {}}}, "the variant 'Wide thing' must be a short name"),
        ({"variants": {"a": {"seed": 1}}}, "seed of the variant a is also in [grid], or belongs at the top."),
        ({"variants": {"a": {"network": {"wdith": 1}}}}, "did you mean 'network.width'?"),
        ({"variants": {"dcpg": 3}}, '[variants."dcpg"] must be a table of variants; got 3.'),
        ({"games": ["maze"], "envs": 3}, "envs must be names such as 'CartPole-v1'"),
        ({"envs": [{"test_env": "CartPole-v1"}]}, "envs must be names such as 'CartPole-v1'"),
        ({"envs": [{"env": "CartPole-v1", "nam": "x"}]}, "Unknown key of envs 'nam'; did you mean 'name'?"),
        ({"envs": ["CartPol-v1"]}, "did you mean 'CartPole-v1'?"),
        ({"envs": ["CartPole-v1", "CartPole-v1"]}, "two of its envs are named CartPole-v1; give each a name"),
        ({"envs": ["signs.py:narro"]}, "has no function 'narro'"),
        ({"envs": [{"env": "signs.py:make", "test_env": "signs.py:narrow"}]}, "The training levels have observations"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], expected: str, folder: Path) -> None:
    with pytest.raises(BadInput) as caught:
        planned(**changes)
    assert expected in str(caught.value)


def test_envs_beside_games_and_instead_of_them(folder: Path) -> None:
    (folder / "below").mkdir()
    file = folder / "below" / "mixed.toml"
    file.write_text(
        'methods = "ppo"\ngames = "maze"\npreset = "tiny"\nsteps = 256\n'
        'envs = ["CartPole-v1", {env = "signs.py:make", name = "Signs"}]\n'
    )
    (folder / "signs.py").rename(folder / "elsewhere.py")
    with pytest.raises(BadInput, match=r"There is no file .*signs\.py"):  # neither beside the file nor here
        read(str(file))
    (folder / "elsewhere.py").rename(folder / "below" / "signs.py")
    plan = read(str(file))
    assert [(job.name, job.config.game) for job in plan.jobs] == [
        ("maze-ppo-0", "maze"), ("cartpole-v1-ppo-0", "own:CartPole-v1"), ("signs-ppo-0", "own:Signs"),
    ]  # fmt: skip
    assert plan.jobs[2].own is not None
    assert plan.jobs[2].own.sent["env"] == f"{folder}/below/signs.py:make"
    assert [job.spaces.actions for job in plan.jobs] == [15, 2, 4]
    typed = read(str(file), None, {"env": "below/signs.py:make", "test_env": None, "name": "typed"})
    assert [job.name for job in typed.jobs] == ["typed-ppo-0"]
    with pytest.raises(BadInput, match="name= goes with env="):
        read(str(file), None, {"env": None, "test_env": None, "name": "alone"})


def test_status_needs_no_code_and_imports_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugins.load("mine.py")
    plan = expand("own", {**OWN, "methods": ["mine"], "envs": ["signs.py:make"]}, "own.toml")
    sweep = folder / "sweep"
    sweep.mkdir()
    (sweep / "sweep.json").write_bytes(dump(plan_json(plan)))
    forget()
    (folder / "signs.py").unlink()
    found, now = view_directory(sweep)
    assert [job.name for job in found.jobs] == ["signs.make-mine-0", "signs.make-mine-1"]
    assert now.counts["waiting"] == 2
    assert "mine" not in METHODS
    code, said, _ = command(capsys, "sweep", "status", str(sweep))
    assert (code, "2 waiting" in said) == (0, True)

    (folder / "trap.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')\n")
    plain = json.loads((sweep / "sweep.json").read_text())
    plain["sweep"]["envs"] = [f"{folder}/trap.py:make"]
    del plain["jobs"]
    (sweep / "sweep.json").write_bytes(dump(plain))
    code, _, error = command(capsys, "sweep", "status", str(sweep))
    assert (code, "names environments without their runs" in error) == (2, True)
    assert not (folder / "sprung").exists()


def test_a_child_loads_the_plugin_and_the_environment_that_it_is_told(folder: Path) -> None:
    plugins.load("mine.py")
    plan = expand("own", {**OWN, "methods": ["mine"], "seeds": 1, "steps": 256, "envs": ["signs.py:make"]}, "own.toml")
    (job,) = plan.jobs
    assert job.own is not None
    sent = plugins.to_send("mine", "impala")
    paths = {"PYTHONPATH": str(ROOT)}  # the file imports from these tests
    attempt = Attempt(str(folder / "sweep"), job.name, job.config.to_json(), sent, job.own.sent)
    (folder / "sweep/runs").mkdir(parents=True)
    outcome = run_attempt(attempt, lambda: False, paths)
    assert outcome.code == 0, outcome.last_lines
    out = folder / "sweep/runs" / job.name
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"
    assert json.loads((out / "config.json").read_text())["environment"]["id"] == f"{folder}/signs.py:make"
    (folder / "mine.py").write_text(VARIANT + "# changed\n")
    refused = run_attempt(attempt, lambda: False, paths)
    assert refused.code == 2
    assert "is not the same file here as where the command was given" in refused.last_lines


def test_a_run_on_another_environment_of_the_same_name_is_not_taken(folder: Path) -> None:
    (folder / "other.py").write_text(FILE.format(count=5))
    source = {**OWN, "methods": ["ppo"], "seeds": 1, "steps": 256}
    one, two = (
        expand("own", {**source, "envs": [{"env": f"{file}:make", "name": "signs"}]}, "own.toml")
        for file in ("signs.py", "other.py")
    )
    (job,) = one.jobs
    assert job.own is not None
    attempt = Attempt(str(folder / "sweep"), job.name, job.config.to_json(), [], job.own.sent)
    (folder / "sweep/runs").mkdir(parents=True)
    assert run_attempt(attempt, lambda: False, {"PYTHONPATH": str(ROOT)}).code == 0
    directory = SweepDirectory(folder / "sweep")
    assert [status.state for status in statuses(one, directory).values()] == ["finished"]
    with pytest.raises(BadInput, match=r"trained on .*signs\.py:make, the sweep trains on .*other\.py:make"):
        statuses(two, directory)

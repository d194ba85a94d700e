"""The examples of the documentation run."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dcpg
from dcpg.envs.adapter import GymnasiumEnv
from dcpg.methods import METHODS
from dcpg.storage.rows import read_rows
from tests.docs.pages import DOCS, ROOT, code_block


def imported(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a file as a module that is removed again after the test."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def methods_restored() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = code_block(ROOT / "README.md", "dcpg.train")
    assert len(block.splitlines()) <= 12
    assert block.count('preset="laptop"') == 1
    quick = 'preset="tiny", steps=256, settings={"evaluation.max_steps": 20}'
    block = block.replace('preset="laptop"', quick).replace("episodes=20", "episodes=2")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.splitlines()
    assert {"training levels", "return"} <= {re.match(r"training levels|return|", line)[0] for line in printed}
    assert (tmp_path / "runs/first/replay.mp4").is_file()
    assert json.loads((tmp_path / "runs/first/summary.json").read_text())["status"] == "finished"


@pytest.mark.usefixtures("methods_restored")
def test_combining_example_trains_with_levels_and_augmentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "combined.py"
    file.write_text(code_block(DOCS / "combining.md", "with_joint_dynamics"))
    before = set(METHODS)
    imported(file, "dcpg_combination_of_the_docs", monkeypatch)
    (name,) = set(METHODS) - before
    settings = {"levels.sampler": "prioritised", "augment": "crop", "evaluation.max_steps": 20}
    run = dcpg.train(name, game="coinrun", preset="tiny", steps=2 * 128, settings=settings, out=tmp_path / "run")
    (*_, row) = read_rows(run.directory / "metrics.jsonl")
    assert {"levels_scored", "augmentation", "policy.G_pi", "policy.G_V", "auxiliary.J_f"} <= set(row)


@pytest.mark.parametrize(("page", "name"), [("CONTRIBUTING.md", "dcpg-huber"), ("docs/combining.md", "separate-ddcpg")])
def test_a_variant_can_be_put_into_the_package_too(page: str, name: str, tmp_path: Path) -> None:
    file = name.replace("-", "_")
    shutil.copytree(ROOT / "dcpg", tmp_path / "dcpg")
    (tmp_path / f"dcpg/methods/{file}.py").write_text(code_block(ROOT / page, name))
    table = tmp_path / "dcpg/methods/__init__.py"
    text = table.read_text()
    last = "from dcpg.methods.ppo import PPO\n"
    assert text.count(last) == 1
    table.write_text(text.replace(last, f"{last}from dcpg.methods import {file}\n"))
    command = [sys.executable, "-m", "dcpg", "explain", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "C_pi" in done.stdout


def test_the_environment_on_the_page_is_the_example() -> None:
    assert code_block(DOCS / "own-environment.md", "class Corridor") == (DOCS / "examples/corridor.py").read_text()


@pytest.fixture
def corridor(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(DOCS / "examples/corridor.py", "corridor_of_the_docs", monkeypatch)


def test_corridor_levels_follow_from_their_seeds(corridor: ModuleType) -> None:
    train, test = corridor.make(64, 1), corridor.make_test(64, 1)
    _, seen = train.reset(seed=1)
    _, unseen = test.reset(seed=1)
    assert seen["level_seed"].max() < corridor.TRAIN_LEVELS <= unseen["level_seed"].min()
    for seed in (0, 7, 12345):
        assert all(np.array_equal(a, b) for a, b in zip(corridor.level(seed), corridor.level(seed), strict=True))
    assert len({tuple(corridor.level(seed)[0]) for seed in range(200)}) > 150


def test_corridor_can_be_solved_and_goes_on_from_its_state(corridor: ModuleType) -> None:
    env = corridor.make(8, 3)
    pictures, _ = env.reset(seed=3)
    assert pictures.shape == (8, 16, 16, 3)
    total = np.zeros(8)
    for step in range(corridor.WALLS * corridor.SPACING):
        if step == 10:
            saved = env.get_state()
        gap = env.gaps[np.arange(8), env.columns // corridor.SPACING]
        actions = 1 + np.sign(np.where(env.rows < gap, 1, np.where(env.rows > gap + corridor.GAP - 1, -1, 0)))
        _, rewards, ended, _, _ = env.step(actions)
        total += rewards
    assert ended.all()
    assert total.tolist() == [corridor.WALLS] * 8

    other = corridor.make(8, 99)
    other.reset(seed=99)
    for copy in (other, env):
        copy.set_state(saved)
    for step in range(100):
        a, b = (copy.step(np.full(8, step % 3)) for copy in (env, other))
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[4]["level_seed"], b[4]["level_seed"])


def test_corridor_trains_evaluates_both_splits_and_resumes(corridor: ModuleType, tmp_path: Path) -> None:
    settings = {**corridor.SETTINGS, "env.num_envs": 8, "algorithm.N_pi": 2, "evaluation.episodes": 10}
    options = {"env": corridor.make, "test_env": corridor.make_test}
    whole = dcpg.train("dcpg", steps=4 * 256, settings=settings, out=tmp_path / "whole", **options)
    (*_, row) = read_rows(whole.directory / "eval.jsonl")
    assert len(row["train_returns"]) == len(row["test_returns"]) == 10
    assert max(row["train_levels"]) < corridor.TRAIN_LEVELS <= min(row["test_levels"])
    assert {level for r in read_rows(whole.directory / "metrics.jsonl") for level in r["episode_levels"]} <= set(
        range(200)
    )

    half = dcpg.train("dcpg", steps=2 * 256, settings=settings, out=tmp_path / "half", **options)
    dcpg.resume(half, steps=4 * 256, **options)
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert (half.directory / name).read_bytes() == (whole.directory / name).read_bytes()

    again = dcpg.evaluate(whole, levels="test", **options)
    assert again["returns"] == row["test_returns"]
    agent = dcpg.load(whole, env=corridor.make)
    assert 0 <= int(agent.act(np.zeros(agent.shape, np.uint8))) < 3


@pytest.fixture
def envpool_procgen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("envpool", reason="EnvPool (about 1.1 GB) is not installed")
    return imported(DOCS / "examples/envpool_procgen.py", "envpool_procgen_of_the_docs", monkeypatch)


def test_envpool_resets_in_the_step_after_an_end_and_repeats_with_a_seed(envpool_procgen: ModuleType) -> None:
    make, _ = envpool_procgen.makers("maze")
    env, again = (GymnasiumEnv(make(8, 0), seed) for seed in (3, 3))
    assert env.shape == (32, 32, 3)
    assert not np.array_equal(env.observe()[1], GymnasiumEnv(make(8, 0), 4).observe()[1])
    ended = np.zeros(8, bool)
    for step in range(600):  # a maze is cut off after 500 steps
        before = env.observe()[1]
        actions = np.random.default_rng(step).integers(0, 15, 8)
        found, repeated = env.step(actions), again.step(np.where(ended, 0, actions))
        assert np.array_equal(found.frames, repeated.frames)  # whatever the action of a dead step was
        assert np.array_equal(found.valid, ~ended)
        assert np.array_equal(found.levels[~ended], before[~ended])
        assert (found.rewards[ended] == 0).all()
        ended = found.dones
        if step == 499:
            assert found.truncated.any()
    env.close()
    again.close()


def test_envpool_example_trains_and_evaluates_both_splits(
    envpool_procgen: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--game", "coinrun", "--steps", "512", "--out", str(tmp_path / "run")]
    envpool_procgen.main(words, "tiny", {"evaluation.max_steps": 20})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["training levels", "unseen levels"]
    (*_, row) = read_rows(tmp_path / "run/eval.jsonl")
    assert max(row["train_levels"]) < envpool_procgen.TRAIN_LEVELS <= min(row["test_levels"])
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "finished"


# -- other packages' environments

SHORT = {"evaluation.every": 100, "evaluation.episodes": 2, "evaluation.max_steps": 30, "env.num_envs": 4}


def test_cartpole_by_its_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example = imported(DOCS / "examples/cartpole.py", "cartpole_of_the_docs", monkeypatch)
    settings = example.SETTINGS | SHORT | {"rollout_length": 16}
    run = dcpg.train("ppo", env="CartPole-v1", steps=256, settings=settings, out=tmp_path / "run", progress=False)
    assert run.summary["train_return"] > 5
    made = run.record(levels="train")
    assert made.levels == [-1] * 4
    assert made.video.stat().st_size > 1_000


@pytest.mark.faults
def test_minigrid_trains_on_some_layouts_and_tests_on_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    example = imported(DOCS / "examples/minigrid_levels.py", "minigrid_of_the_docs", monkeypatch)
    settings = example.SETTINGS | SHORT | {"rollout_length": 32, "evaluation.max_steps": 100}
    options = {"env": example.make, "test_env": example.make_test}
    run = dcpg.train("idaac", steps=512, settings=_known("idaac", settings), out=tmp_path / "run", **options)
    (row,) = read_rows(run.directory / "eval.jsonl")[-1:]
    assert max(row["train_levels"]) < example.TRAIN_LEVELS <= min(row["test_levels"])
    levels = [level for r in read_rows(run.directory / "metrics.jsonl") for level in r["episode_levels"]]
    assert levels
    assert max(levels) < example.TRAIN_LEVELS
    layouts = []
    for seed in (0, 0, 1):
        env = example.make(3, seed)
        layouts.append([frame.tobytes() for frame in env.reset(seed=seed)[0]])
        env.close()
    assert layouts[0] == layouts[1] != layouts[2]
    assert run.record(levels="test").video.stat().st_size > 1_000


@pytest.mark.faults
def test_atari_with_stacked_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    example = imported(DOCS / "examples/ale_breakout.py", "ale_of_the_docs", monkeypatch)
    settings = example.SETTINGS | SHORT | {"rollout_length": 16}
    assert settings["env.frame_stack"] == 4
    settings["algorithm.N_pi"] = 2
    run = dcpg.train("dcpg", env=example.make, steps=256, settings=settings, out=tmp_path / "run")
    agent = dcpg.load(run)
    assert (agent.shape, agent.spaces.raw_shape) == ((64, 64, 4), (4, 64, 64))
    env = example.make(2, 0)
    frames, _ = env.reset(seed=0)
    assert agent.act(np.stack([frames] * 4, axis=1)).shape == (2,)
    env.close()


def _known(method: str, settings: dict[str, object]) -> dict[str, object]:
    """The settings that a method has."""
    names = {f"algorithm.{name}" for name in METHODS[method].settings.__dataclass_fields__}
    return {name: value for name, value in settings.items() if not name.startswith("algorithm.") or name in names}

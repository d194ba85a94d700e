"""What Python offers of a run: tables, curves, observers, progress, videos of other environments."""

from __future__ import annotations

import builtins
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpg
from dcpg import api
from dcpg.runs import video
from tests.docs.test_examples import corridor as corridor_of_the_docs
from tests.small import SMALL

corridor = corridor_of_the_docs
QUICK = {"evaluation.max_steps": 20, "evaluation.episodes": 2, "evaluation.every": 1, **SMALL}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dcpg.Run:
    out = tmp_path_factory.mktemp("run") / "run"
    return dcpg.train("dcpg", "coinrun", preset="tiny", steps=384, out=out, settings=QUICK, progress=False)


def test_tables_without_pandas(run: dcpg.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return whole(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    metrics, evaluations = run.metrics(), run.evaluations()
    assert isinstance(metrics, np.ndarray)
    assert metrics["steps"].tolist() == [128, 256, 384]
    assert metrics["steps"].dtype == np.int64
    assert np.isfinite(metrics["policy.J_pi"]).all()
    assert np.isnan(metrics["auxiliary.J_V"]).tolist() == [True, False, True]
    assert all(isinstance(cell, list) for cell in metrics["episode_returns"])
    assert evaluations["test_return"].tolist() == [np.mean(cell) for cell in evaluations["test_returns"]]
    assert evaluations["k"].tolist() == [0, 1, 2]


def test_tables_with_pandas(run: dcpg.Run) -> None:
    pandas = pytest.importorskip("pandas")
    metrics = run.metrics()
    assert isinstance(metrics, pandas.DataFrame)
    assert metrics["steps"].tolist() == [128, 256, 384]
    assert metrics.set_index("steps")["policy.J_pi"].notna().all()


def test_a_run_opens_from_its_directory_and_has_its_curves(run: dcpg.Run) -> None:
    again = dcpg.Run(str(run.directory))
    assert again.summary == run.summary
    assert again.summary["status"] == "finished"
    assert (run.directory / "curves.png").stat().st_size > 10_000  # drawn by dcpg.train
    (run.directory / "curves.png").unlink()
    assert again.curves() == run.directory / "curves.png"
    assert (run.directory / "curves.png").exists()
    assert repr(again) == f"Run({str(run.directory)!r})"


class Told(dcpg.Observer):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.rows, self.means, self.phases, self.closed = [], [], set[str](), 0

    def row(self, row: Any, steps_per_s: float) -> None:
        self.rows.append(row.steps)

    def evaluation(self, row: Any) -> None:
        self.means.append(row.splits["test"].mean)

    def progress(self, phase: str, place: str) -> None:
        self.phases.add(phase)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("progress", [True, False])
def test_an_observer_is_told_and_progress_can_be_turned_off(
    progress: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    run = dcpg.train(
        "dcpg", "maze", preset="tiny", steps=256, out=tmp_path / "run", settings=QUICK, observer=told, progress=progress
    )
    assert told.rows == [128, 256]
    assert told.means == run.evaluations()["test_return"].tolist()
    assert told.phases == {"collect", "policy", "auxiliary", "evaluate"}
    assert told.closed == 1
    out = capsys.readouterr().out
    assert ("dcpg on maze, seed 0, 256 steps" in out) == progress
    assert bool(out) == progress


def test_a_video_of_any_environment_that_draws_itself(
    corridor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "END", 2)
    settings = {**corridor.SETTINGS, "env.num_envs": 8, "algorithm.N_pi": 2, "evaluation.episodes": 3}
    run = dcpg.train(
        "dcpg", env=corridor.make, test_env=corridor.make_test, steps=512, settings=settings, out=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    made = run.record(levels="test")  # the run remembers its environment
    assert made.video == tmp_path / "run/replay.mp4"
    assert len(made.returns) == 4
    assert min(made.levels) >= corridor.TRAIN_LEVELS
    import av

    with av.open(str(made.video)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == max(made.lengths) + 2
    tile = frames[0][: video.GAME, : video.GAME]
    assert len({tuple(c // 16) for c in tile.reshape(-1, 3)[::97]}) >= 2  # a corridor, not a blank
    train = dcpg.record(run, levels="train", out=tmp_path / "train.gif")
    assert max(train.levels) < corridor.TRAIN_LEVELS
    again = dcpg.record(run, levels="test", out=tmp_path / "again.mp4")
    assert again.video.read_bytes() == made.video.read_bytes()


def test_pictures_of_any_size_and_many_actions_fit_a_tile() -> None:
    for height, width in ((100, 300), (400, 200), (16, 16), (700, 700)):
        tile = video.Tile("episode 1", 1, tuple(f"action {n}" for n in range(40)))
        tile.look(np.full((height, width, 3), 200, np.uint8))
        shown = np.asarray(tile.image)[:, : video.GAME] == 200
        ratio = shown.any(2).any(1).sum() / shown.any(2).any(0).sum()
        assert ratio == pytest.approx(height / width, rel=0.02)
        assert max(shown.any(2).any(1).sum(), shown.any(2).any(0).sum()) == video.GAME
        probabilities = np.full(40, 0.01)
        probabilities[39] = 0.61
        tile.think(probabilities.tolist(), 1.0, 38)


@pytest.mark.parametrize("name", api.__all__)
def test_everything_public_has_a_docstring_and_types(name: str) -> None:
    if name == "MakeEnv":
        return
    found = getattr(api, name)
    assert inspect.getdoc(found)
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        assert signature.return_annotation is not inspect.Signature.empty
        text = inspect.getdoc(found) or ""
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty
            assert f"    {parameter.name}: " in text, f"{name} does not explain {parameter.name}"
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        if inspect.isfunction(value) and not member.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{member}"


def test_importing_dcpg_stays_light() -> None:
    import subprocess

    code = "import sys, dcpg; print('torch' in sys.modules); dcpg.train; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr

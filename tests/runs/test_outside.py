"""A run's directory may be anybody's: nothing is read or written through what lies in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save

import dcpg
from dcpg import api
from dcpg.config.written import fingerprint
from dcpg.errors import BadInput, DcpgError, Notice, NoValidCheckpoint
from dcpg.runs import video
from dcpg.runs.records import read_run
from dcpg.storage.checkpoint import sealed
from dcpg.sweep.directory import SweepDirectory
from dcpg.sweep.view import view_directory

TINY = {"evaluation.every": 2, "evaluation.episodes": 2, "evaluation.max_steps": 20, "keep_every": 128}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rollouts, with milestones."""
    out = tmp_path_factory.mktemp("made") / "run"
    dcpg.train("ppo", game="maze", preset="tiny", steps=256, out=out, settings=TINY, progress=False)
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(video, "MAX_FRAMES", 2)
    monkeypatch.setattr(video, "END", 1)
    return Path(shutil.copytree(made, tmp_path / "run"))


def link(place: Path, to: Path) -> None:
    """Put a link in place of what may be there."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(to)


@pytest.mark.parametrize("name", ["summary.json", "lock", "metrics.jsonl"])
def test_a_new_run_takes_no_file_of_somebody_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match=f"{name} already exists"):
        dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path, settings=TINY, progress=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_a_new_run_takes_no_folder_in_place_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(BadInput, match=r"metrics\.jsonl already exists"):
        dcpg.train("ppo", game="maze", preset="tiny", steps=128, out=tmp_path, settings=TINY, progress=False)


@pytest.mark.parametrize("name", ["curves.png", ".tmp-curves.png", "replay.gif", ".tmp-replay.gif", "summary.json"])
def test_output_is_not_written_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    link(run / name, mine)
    if "replay" in name:
        dcpg.record(run, levels="3", out=run / "replay.gif")
        assert (run / "replay.gif").read_bytes()[:4] == b"GIF8"
    else:
        dcpg.resume(run, steps=384, progress=False).curves()
        assert (run / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert mine.read_text() == "mine"
    assert not (run / name).is_symlink()


@pytest.mark.parametrize("name", ["tb", "milestones", "analysis", "checkpoints", "checkpoints/shared", "wandb", "lock"])
def test_folders_that_are_links_are_refused(run: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link(run / name, elsewhere)
    for command in (
        lambda: dcpg.resume(run, steps=384),
        lambda: dcpg.evaluate(run),
        lambda: api.analyse(run, "values"),
        lambda: dcpg.export(run, out=tmp_path / "export"),
    ):
        with pytest.raises(BadInput, match="is a link"):
            command()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["runs", "logs", "nodes"])
def test_a_sweeps_folders_that_are_links_are_refused(tmp_path: Path, name: str) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text('methods = ["ppo"]\ngames = ["maze"]\nseeds = 1\nsteps = 128\npreset = "tiny"\n')
    (tmp_path / "elsewhere").mkdir()
    out.mkdir()
    (out / name).symlink_to(tmp_path / "elsewhere")
    for command in (lambda: api.sweep(str(plan), out=out), lambda: view_directory(out)):
        with pytest.raises(BadInput, match=f"{name} is a link"):
            command()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert SweepDirectory(out).plan.exists() is False


@pytest.mark.parametrize("name", ["", "tables", "figures"])
def test_a_report_is_not_written_through_links(run: Path, tmp_path: Path, name: str) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    (elsewhere / "claims.md").write_text("mine")
    if name:
        out.mkdir()
    (out / name).symlink_to(elsewhere)
    with pytest.raises(BadInput, match="is a link"):
        api.report(run, out=out, names=["claims"])
    assert [(p.name, p.read_text()) for p in elsewhere.iterdir()] == [("claims.md", "mine")]


@pytest.mark.timeout(60)  # a pipe would be waited for
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "lock", "manifest", "weights", "milestone"])
def test_pipes_in_place_of_files_are_refused_at_once(run: Path, name: str) -> None:
    newest = max((run / "checkpoints").glob("0*"))
    places = {
        "manifest": newest / "manifest.json", "weights": newest / "weights.safetensors",
        "milestone": run / "milestones" / "000000000128.safetensors",
    }  # fmt: skip
    place = places.get(name, run / name)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    if name in ("manifest", "weights"):  # the checkpoint before it is used
        with pytest.warns(Notice, match="the newest checkpoint of .* is damaged"):
            assert dcpg.evaluate(run, levels="3")["steps"] < 256
    elif name == "milestone":
        with pytest.raises(NoValidCheckpoint, match="not a plain file"):
            dcpg.evaluate(run, at=128)
    else:
        with pytest.raises(BadInput, match="not a plain file"):
            dcpg.resume(run, steps=384)


def rewritten(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the configuration, and what the checkpoints say of it."""
    plain = json.loads((run / "config.json").read_bytes())
    change(plain)
    (run / "config.json").write_text(json.dumps(plain))
    for manifest in run.glob("checkpoints/*/manifest.json"):
        about = json.loads(manifest.read_bytes()) | {"config": fingerprint(plain), "settings": None}
        manifest.write_bytes(sealed(about))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("network", "features", 2_000_000), ("network", "channels", [4096] * 16), ("network", "channels", [1] * 10_000),
        ("evaluation", "episodes", 65_536), ("network", "discriminator", 10**9), ("env", "num_envs", 10**6),
    ],
)  # fmt: skip
def test_sizes_that_no_run_has_are_refused_before_memory_is_taken(
    run: Path, section: str, name: str, value: object
) -> None:
    rewritten(run, lambda plain: plain[section].update({name: value}))
    for command in (dcpg.load, dcpg.evaluate, lambda run: dcpg.resume(run, steps=384)):
        with pytest.raises(DcpgError, match=r"at most|parameters|numbers"):
            command(run)


def test_weights_are_compared_before_the_network_is_built(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that asks for a large network within the bounds, with weights of a small one."""
    rewritten(run, lambda plain: plain["network"].update(features=60_000))
    from dcpg.runs import agent

    monkeypatch.setattr(agent, "build_network", lambda *_: pytest.fail("built"))
    with pytest.raises(NoValidCheckpoint, match="weights"):
        dcpg.load(run)


def test_weights_of_an_export_with_a_right_hash_must_fit_too(run: Path, tmp_path: Path) -> None:
    folder = dcpg.export(run, out=tmp_path / "export")
    tensors = load((folder / "model.safetensors").read_bytes())
    tensors["value.bias"] = tensors["value.bias"].double()
    data = save(tensors)
    (folder / "model.safetensors").write_bytes(data)
    rewritten(folder, lambda plain: plain["export"].update(sha256=hashlib.sha256(data).hexdigest()))
    with pytest.raises(NoValidCheckpoint, match=r"value\.bias"):
        dcpg.load(folder)


def test_a_report_names_runs_whose_rows_were_changed(run: Path) -> None:
    assert read_run(run)[1] == []
    plain = json.loads((run / "summary.json").read_bytes())
    (run / "summary.json").write_text(json.dumps(plain | {"altered": ["eval.jsonl"]}))
    assert read_run(run)[1] == ["eval.jsonl: rows were changed after the run had written them"]


def test_a_preset_with_mathematics_in_its_name_is_drawn_as_text(run: Path) -> None:
    rewritten(run, lambda plain: plain.update(preset="$\\frac{x$ ^_"))
    assert dcpg.Run(run).curves().stat().st_size > 10_000

"""The command `dcpg sweep`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpg.sweep import local
from dcpg.sweep.view import view_directory
from tests.cli.test_cli import run as command
from tests.sweep.fakes import NAMES, Memory


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["laptop", "table1"], "One sweep at a time"),
        (["laptop", "--json"], "--json goes with"),
        (["laptop", "--address", "x"], "--address goes with --engine ray"),
        (["labtop"], "did you mean 'laptop'"),
        (["../laptop"], "There is no file"),
    ],
)
def test_commands_that_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, "sweep", *words)
    assert code == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_with_an_engine_in_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, root = tmp_path / "small.toml", tmp_path / "a b"
    file.write_text('methods = ["ppo", "dcpg"]\ngames = "starpilot"\nseeds = 2\npreset = "tiny"\nsteps = 512\n')
    engine = Memory(root, {NAMES[0]: [(7, 0)]}, lambda: None)
    monkeypatch.setattr(local, "LocalEngine", engine.make)
    code, out, err = command(capsys, "sweep", str(file), "--out", str(root))
    assert code == 1
    assert "3 of 4 runs are done, 1 failed: starpilot-ppo-0." in err
    assert f"dcpg sweep {file} --out '{root}' --retry" in err
    assert "small: 4 runs on memory" in out
    code, out, _ = command(capsys, "sweep", str(file), "--out", str(root), "--retry")
    assert code == 0
    assert out.splitlines()[-1] == f"Next: dcpg report '{root}'"
    assert view_directory(root)[1].counts["done"] == 4

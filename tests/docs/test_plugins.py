"""Your own method, encoder and environment, as CONTRIBUTING tells it: a fresh folder, every command, both engines."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dcpg.storage.rows import read_rows
from tests.docs.pages import DOCS, ROOT, code_block, section

PAGE = ROOT / "CONTRIBUTING.md"
HEADING = "Your own method and encoder"


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```$", section(PAGE, HEADING), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def commands() -> list[str]:
    return [line for line in block("sh").splitlines() if line.strip()]


def test_every_command_with_the_option_is_on_the_page() -> None:
    named = {line.split()[1] for line in commands() if line.startswith("dcpg ")}
    assert named == {
        "methods", "explain", "config", "train", "resume", "eval", "record", "analyse", "export", "bench", "sweep",
        "report",
    }  # fmt: skip
    assert len(code_block(PAGE, "dcpg-huber").splitlines()) < 40
    assert len(code_block(PAGE, "Strided").splitlines()) <= 25


def fresh(folder: Path) -> dict[str, str]:
    """The files that the page names in a new folder; returns the environment of its commands."""
    (folder / "huber.py").write_text(code_block(PAGE, "dcpg-huber"))
    (folder / "strided.py").write_text(code_block(PAGE, "Strided"))
    (folder / "mine.toml").write_text(block("toml"))
    shutil.copy(DOCS / "examples/corridor.py", folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.faults  # a minute and a half: each command is a process of its own, and Ray starts
def test_the_page_is_followed_in_a_fresh_folder(tmp_path: Path) -> None:
    environment, said = fresh(tmp_path), {}
    for line in commands():
        words = line.split("#")[0].split()
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            environment[name] = value
            continue
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        said[line.split("#")[0].strip()] = done.stdout
    printed = {" ".join(line.split()[1:3]): out for line, out in said.items()}
    assert "from " in printed["methods --plugin"]
    assert "dcpg-huber: DCPG that holds the value with a Huber loss." in printed["explain dcpg-huber"]
    assert "delta = 0.1" in printed["explain dcpg-huber"]
    assert re.search(r"algorithm\.delta +0\.1 +ours", printed["config dcpg-huber"])
    assert printed["sweep status"].count("2 done") == 1

    rows = read_rows(tmp_path / "runs/mine/metrics.jsonl")
    assert [row["steps"] for row in rows] == list(range(128, 1025, 128))
    assert all(row["policy.C_V"] >= 0 for row in rows)
    used = json.loads((tmp_path / "runs/mine/config.json").read_text())["plugins"]
    assert [(one["kind"], one["name"], Path(one["plugin"]).name) for one in used] == [
        ("method", "dcpg-huber", "huber.py"), ("encoder", "strided", "strided.py"),
    ]  # fmt: skip
    for file in ("curves.png", "replay.mp4", "analysis/stiffness.png", "export/model.safetensors"):
        assert (tmp_path / "runs/mine" / file).stat().st_size > 1_000, file
    for name in ("corridor-dcpg-0", "corridor-dcpg-huber-0"):
        local, ray = (tmp_path / "sweeps" / sweep / "runs" / name for sweep in ("mine", "ray"))
        for file in ("metrics.jsonl", "eval.jsonl"):
            assert (local / file).read_bytes() == (ray / file).read_bytes()
    report = json.loads((tmp_path / "report/report.json").read_text())
    labels = [entry["label"] for entry in report["methods"]]
    assert "dcpg-huber [encoder=strided]" in labels

    # a colleague without the plugins: the report and the status work, the agent says what it needs
    del environment["DCPG_PLUGINS"]
    bare = subprocess.run(
        ["dcpg", "report", "runs", "--out", "again"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert bare.returncode == 0, bare.stderr
    refused = subprocess.run(
        ["dcpg", "eval", "runs/mine"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert f"--plugin {tmp_path}/huber.py" in refused.stderr


def test_an_installed_entry_point_is_found(tmp_path: Path) -> None:
    """A package that is only metadata and one module, found as an installed one is."""
    (tmp_path / "their_methods.py").write_text(code_block(PAGE, "dcpg-huber"))
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dcpg.plugins]\ntheirs = their_methods\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "dcpg", "explain", "dcpg-huber"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "C_V" in done.stdout
    helped = [sys.executable, "-X", "importtime", "-m", "dcpg", "train", "--help"]
    shown = subprocess.run(helped, env=environment, capture_output=True, text=True)
    assert "their_methods" not in shown.stderr
    assert " torch" not in shown.stderr

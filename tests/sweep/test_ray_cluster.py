"""The temporary folders of a private Ray cluster, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcpg.sweep.ray import cluster
from dcpg.sweep.ray.cluster import private_folder


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of temporary folders, in which none counts as new."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(cluster, "NEW_SECONDS", -1.0)
    return tmp_path


def test_folders_of_drivers_that_were_killed_are_removed_at_the_next_start(short: Path) -> None:
    killed = (
        "import os; from dcpg.sweep.ray.cluster import private_folder\n"
        "with private_folder() as folder:\n    os.mkdir(folder + '/r'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == 9
    (abandoned,) = short.iterdir()
    assert (abandoned / "r").is_dir()
    (short / "dcpg-ray-link").symlink_to(short / "other")
    (short / "other").mkdir()
    with private_folder() as folder:
        assert sorted(path.name for path in short.iterdir()) == sorted(["dcpg-ray-link", "other", Path(folder).name])
        with private_folder() as second:  # a driver that lives keeps its folder
            assert Path(folder).is_dir()
            assert Path(second).is_dir()
    assert sorted(path.name for path in short.iterdir()) == ["dcpg-ray-link", "other"]


def test_a_new_folder_is_left_alone(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "NEW_SECONDS", 60.0)
    for name in ("new", "older-release"):
        (short / f"dcpg-ray-{name}").mkdir()
    (short / "dcpg-ray-new" / "driver").touch()
    with private_folder():
        assert (short / "dcpg-ray-new").is_dir()
    monkeypatch.setattr(cluster, "NEW_SECONDS", -1.0)
    with private_folder():
        assert (short / "dcpg-ray-older-release").is_dir()
        assert not (short / "dcpg-ray-new").exists()

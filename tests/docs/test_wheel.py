"""The wheel and the sdist: they build cleanly, and the wheel works in an environment without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import dcpg
from tests.docs.pages import ROOT

pytestmark = pytest.mark.faults  # half a minute


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed, without this process's paths."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of what is in the repository."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("built")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in names:
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=copy)
    return out


def test_they_hold_the_package_and_its_data(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name == f"dcpg-{dcpg.__version__}-py3-none-any.whl"
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "dcpg"
    wanted = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} == {n for n in inside if n.startswith("dcpg/")}
    assert wheel.stat().st_size < 500_000
    with tarfile.open(sdist) as archive:
        assert f"dcpg-{dcpg.__version__}/pyproject.toml" in archive.getnames()


def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """It has the packages that are installed here, but not the repository."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "zz-installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = tmp_path / "env" / "bin" / "python"
    assert str(packages) in run(python, "-c", "import dcpg; print(dcpg.__file__)", cwd=tmp_path)
    assert run(python, "-m", "dcpg", "--version", cwd=tmp_path) == f"dcpg {dcpg.__version__}\n"
    assert "BAD" not in run(python, "-m", "dcpg", "doctor", cwd=tmp_path)
    options = ["--preset", "tiny", "--steps", "256", "--set", "evaluation.max_steps=30", "--out", "run"]
    assert "Finished: 256 steps" in run(python, "-m", "dcpg", "train", "ppo", "--game", "maze", *options, cwd=tmp_path)

"""Without a package of an extra, one sentence names the extra; training and evaluation need none of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcpg.extras import EXTRAS
from tests.cli.test_cli import TINY, run

MODULES = sorted({module for _, packages in EXTRAS.values() for module in packages.values()})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dcpg import api

    out = tmp_path_factory.mktemp("extras") / "run"
    api.train("ppo", "maze", preset="tiny", steps=256, settings={"evaluation.max_steps": 30}, out=out)
    return out


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Hides every optional package."""
    for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
        monkeypatch.delitem(sys.modules, name)
    for module in MODULES:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "dcpg.runs.video", raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("extra", "package", "arguments"),
    [
        ("report", "matplotlib", ["report", "RUN", "--out", "NEW"]),
        ("report", "matplotlib", ["report", "RUN", "--out", "NEW", "--watch"]),
        ("report", "matplotlib", ["report", "RUN", "figure4", "--out", "NEW"]),
        ("report", "matplotlib", ["analyse", "values", "RUN"]),
        ("video", "av", ["record", "RUN"]),
        ("video", "av", ["export", "RUN", "--out", "NEW"]),
        ("ray", "ray", ["sweep", "laptop", "--engine", "ray", "--out", "NEW", "--set", "steps=2048"]),
        ("wandb", "wandb", ["sweep", "laptop", "--out", "NEW", "--set", "wandb=true"]),
        ("wandb", "wandb", ["train", "ppo", "--game", "maze", "--out", "NEW", *TINY, "--set", "wandb=true"]),
    ],
)
@pytest.mark.usefixtures("without")
def test_a_missing_extra_is_one_sentence(
    extra: str,
    package: str,
    arguments: list[str],
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(path for path in trained.rglob("*"))
    places = {"RUN": str(trained), "NEW": str(tmp_path / "new")}
    code, _, errors = run(capsys, *(places.get(word, word) for word in arguments))
    assert code == 2
    assert errors.strip().splitlines()[-1].endswith(f"needs {package}; run: pip install 'dcpg[{extra}]'")
    assert "Traceback" not in errors
    assert sorted(path for path in trained.rglob("*")) == before
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("without")
def test_tables_need_no_extra(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "report", str(trained), "table1", "--out", str(tmp_path))[0] == 0


def test_curves_need_matplotlib_only(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert "left out" not in run(capsys, "resume", str(trained))[1]


@pytest.mark.faults
def test_training_and_evaluation_need_no_extra(tmp_path: Path) -> None:
    """In a process of its own, which has imported nothing yet and finds none of the packages."""
    names = [name for _, packages in EXTRAS.values() for name in packages]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({MODULES}))
from dcpg.cli.app import main
from dcpg.tools import doctor
found = doctor._version
doctor._version = lambda name: None if name in {names} else found(name)
main()
"""

    def command(*arguments: str) -> str:
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = command("train", "ppo", "--game", "maze", "--steps", "256", "--out", "run", *TINY)
    assert "curves.png was left out: the picture needs matplotlib; run: pip install 'dcpg[report]'" in text
    assert "return" in command("eval", "run")
    assert "av                     not installed, optional (videos): pip install 'dcpg[video]'" in command("doctor")

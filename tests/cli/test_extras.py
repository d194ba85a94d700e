"""Without a package of an extra, one sentence names the extra; training and evaluation need none of them."""

from __future__ import annotations

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
        ("report", "matplotlib", ["analyse", "values", "RUN"]),
        ("video", "av", ["record", "RUN"]),
        ("video", "av", ["export", "RUN", "--out", "NEW"]),
        ("ray", "ray", ["sweep", "laptop", "--engine", "ray", "--out", "NEW", "--set", "steps=2048"]),
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
    assert not (tmp_path / "new" / "config.json").exists()


@pytest.mark.usefixtures("without")
def test_training_and_evaluation_need_no_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    code, text, _ = run(capsys, "train", "ppo", "--game", "maze", "--steps", "256", "--out", out, *TINY)
    assert code == 0
    assert "curves.png was left out: the picture needs matplotlib; run: pip install 'dcpg[report]'" in text
    assert run(capsys, "eval", out)[0] == 0
    code, text, _ = run(capsys, "doctor")
    assert code == 0
    assert "not installed, optional (videos): pip install 'dcpg[video]'" in text or "ok   av" in text

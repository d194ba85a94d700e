"""One analysis of many runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dcpg
from dcpg.cli.analyse_display import AnalyseDisplay
from tests import small
from tests.cli.test_cli import run as command
from tests.cli.test_display import shown

SMALL = ["--states", "64", "--burn-in", "8"]


def train(out: Path, method: str, steps: int = 128, seed: int = 0) -> None:
    settings = {"evaluation.episodes": 2, "evaluation.max_steps": 20, **small.SMALL}
    dcpg.train(method, game="bigfish", preset="tiny", steps=steps, seed=seed, out=out, settings=settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs with a discriminator and one without, in folders; the tests work on copies."""
    top = tmp_path_factory.mktemp("many")
    named = {"a/one": ("ddcpg", 0), "a/two": ("ddcpg", 1), "b/fi": ("dcpg+fi", 0), "b/ppo": ("ppo", 0)}
    for name, (method, seed) in named.items():
        train(top / name, method, seed=seed)
    return top


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def test_folders_are_analysed_once_and_again_when_asked(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "analyse", "ood-actions", str(runs / "a"), str(runs / "b"), *SMALL)
    assert code == 0
    lines = out.splitlines()
    kept = json.loads((runs / "a" / "one" / "analysis" / "ood-actions.json").read_text())
    assert kept["asked"] == {"states": 64, "burn_in": 8}
    figure = f"{kept['mean']:.2f} ± {kept['std']:.2f} wrong actions believed"
    assert lines[1] == f"1 of 4  {runs / 'a' / 'one'}: {figure}"
    assert lines[4].startswith(f"4 of 4  {runs / 'b' / 'ppo'}: left out: ppo has no discriminator to ask")
    assert lines[5:] == ["4 runs: 3 analysed, 0 there already, 1 left out."]

    before = (runs / "a" / "one" / "analysis" / "ood-actions.json").stat().st_mtime_ns
    code, out, _ = command(capsys, "analyse", "ood-actions", str(runs), *SMALL)
    lines = out.splitlines()
    assert (code, lines[1]) == (0, f"1 of 4  {runs / 'a' / 'one'}: {figure} (there already)")
    assert lines[5:] == [
        "4 runs: 0 analysed, 3 there already, 1 left out.",
        "Give --again to analyse those that were there already too.",
    ]
    assert (runs / "a" / "one" / "analysis" / "ood-actions.json").stat().st_mtime_ns == before

    code, out, _ = command(capsys, "analyse", "ood-actions", str(runs), *SMALL, "--again")
    assert (code, out.splitlines()[-1]) == (0, "4 runs: 3 analysed, 0 there already, 1 left out.")
    code, out, _ = command(capsys, "analyse", "ood-actions", str(runs), "--states", "64", "--burn-in", "0")  # others
    assert (code, out.splitlines()[-1]) == (0, "4 runs: 3 analysed, 0 there already, 1 left out.")


def test_newer_weights_and_evaluations_are_analysed_anew(runs: Path) -> None:
    states = [[one.state for one in dcpg.api.analyse_all(runs, analysis=name)] for name in ("values", "values")]
    assert states == [["analysed"] * 4, ["there"] * 4]
    dcpg.api.analyse_all(runs / "a", analysis="stiffness", states=64, burn_in=8)
    dcpg.resume(runs / "a" / "two", steps=256)
    found = dcpg.api.analyse_all(runs / "a", analysis="stiffness", states=64, burn_in=8)
    assert [one.state for one in found] == ["there", "analysed"]
    assert [one.result["steps"] for one in found if one.result is not None] == [128, 256]
    found = dcpg.api.analyse_all(runs, analysis="values")
    assert [one.state for one in found] == ["there", "analysed", "there", "there"]
    for state in ("analysed", "there"):
        assert dcpg.api.analyse_all(runs / "a", analysis="stiffness", states=64, burn_in=8, at=0)[1].state == state


def test_a_run_that_cannot_be_analysed_stops_no_other(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for checkpoint in (runs / "a" / "one" / "checkpoints").glob("0*/*"):
        checkpoint.write_bytes(b"")
    code, out, err = command(capsys, "analyse", "ood-actions", str(runs), *SMALL)
    assert code == 1
    assert "4 runs: 2 analysed, 0 there already, 1 left out, 1 failed." in out
    assert f"1 of 4  {runs / 'a' / 'one'}: failed: No valid checkpoint" in out
    assert f"dcpg: 1 of 4 runs could not be analysed. {runs / 'a' / 'one'}: No valid checkpoint" in err
    code, out, err = command(capsys, "analyse", "ood-actions", str(runs), *SMALL, "--json")
    assert code == 1
    rows = json.loads(out)
    assert [row["state"] for row in rows] == ["failed", "there", "there", "left out"]
    assert rows[1]["result"] == json.loads((runs / "a" / "two" / "analysis" / "ood-actions.json").read_text())
    assert "3 of 4" in err


def test_what_is_wrong_for_all_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command(capsys, "analyse", "values", str(runs), "--states", "9")
    assert (code, "states means nothing to values" in err) == (2, True)
    code, _, err = command(capsys, "analyse", "values", str(runs), str(runs / "none"))
    assert (code, err) == (2, f"dcpg: There is no directory {runs / 'none'}.\n")
    shutil.copytree(runs / "b" / "ppo", runs / "c" / "ppo")
    shutil.copytree(runs / "b" / "ppo", runs / "c" / "ppo2")
    code, _, err = command(capsys, "analyse", "ood-actions", str(runs / "c"))
    assert (code, "None of the runs can have this analysis: ppo has no discriminator" in err) == (2, True)
    assert not list(runs.glob("*/*/analysis"))


def test_a_terminal_has_a_bar(runs: Path) -> None:
    console, text = shown(on_terminal=True, width=80)
    display = AnalyseDisplay(console)
    display.open("values")
    for number, one in enumerate(dcpg.api.analyse_all(runs / "a", analysis="values"), 1):
        display.done(number, 2, one, "text")
    display.close()
    assert "2 of 2 runs" in text.getvalue()
    assert "━" in text.getvalue()
    assert f"1 of 2  {runs / 'a' / 'one'}: text" in text.getvalue().replace("\n", "").replace("\r", "")
    assert display.line() == "2 of 2 runs"

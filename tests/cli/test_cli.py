"""The command line, as people and programs meet it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dcpg.cli.app import main
from dcpg.config.resolve import resolve
from dcpg.methods import METHODS

TINY = ["--preset", "tiny", "--set", "evaluation.max_steps=30", "--set", "evaluation.episodes=3"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    before = sys.argv
    sys.argv = ["dcpg", *arguments]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    out = capsys.readouterr()
    return code, out.out, out.err


def test_methods_and_games(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "methods", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == list(METHODS)
    dcpg = next(row for row in rows if row["name"] == "dcpg")
    assert dcpg["policy_phase"][0]["terms"] == {"J_pi": 1.0, "C_V": 1.0, "H": -0.01}
    assert dcpg["auxiliary_phase"][0]["epochs"] == 6
    assert dcpg["N_pi"] == 32
    assert len(json.loads(run(capsys, "games", "--json")[1])) == 16
    assert "starpilot" in run(capsys, "games")[1].split("\n")
    for name in METHODS:
        assert name in run(capsys, "methods")[1]


@pytest.mark.parametrize("name", METHODS)
def test_explain_shows_every_term_with_equation_and_source(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "explain", name)
    assert code == 0
    terms = {term for terms in resolve(name, "bigfish").declared().adams.values() for term in terms}
    for term in terms:
        assert f"  {term} " in out
    chosen = {"ucb-drac": ["argmax Q + c sqrt(ln N / n)"], "plr": ["(1 - rho) P_S + rho P_C"]}.get(name, [])
    assert all(equation in out for equation in chosen)
    assert out.count("source: ") == len(terms) + len(chosen)
    assert "source: \n" not in out
    assert "64 x 256 steps" in out


def test_one_of_something_is_not_several(capsys: pytest.CaptureFixture[str]) -> None:
    one = ["--set", "algorithm.N_pi=1", "--set", "algorithm.minibatches=1", "--set", "algorithm.segments=1"]
    _, out, _ = run(capsys, "explain", "dcpg", *one)
    assert "with tau in 1 minibatch   [Adam: policy]" in out
    assert "with B, 1 segment per minibatch   [Adam: auxiliary]" in out


def test_config_lists_names_values_origins(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "config", "dcpg", "--preset", "tiny", "--set", "algorithm.beta_V=2", "--json")
    rows = json.loads(out)
    assert rows["algorithm.beta_V"] == {"value": 2.0, "origin": "given"}
    assert rows["algorithm.N_pi"] == {"value": 2, "origin": "preset tiny"}
    assert rows["algorithm.gamma"] == {"value": 0.999, "origin": "paper, Table 4"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "dcgp", "--game", "maze"], "did you mean 'dcpg'"),
        (["train", "dcpg", "--game", "mase"], "did you mean 'maze'"),
        (["train", "dcpg", "--game", "maze", "--preset", "huge"], "Unknown preset"),
        (["train", "dcpg", "--game", "maze", "--set", "algorithm.gamma=2"], "must be at most 1"),
        (["train", "dcpg", "--game", "maze", "--set", "gamma"], "KEY=VALUE"),
        (["train", "dcpg", "--game", "maze", "--set", "algorithm.minibatches=3"], "does not divide"),
        (["train", "dcpg", "--game", "maze", "--steps", "5"], "less than one rollout"),
        (["train", "dcpg", "--game", "maze", "--device", "gpu"], "device"),
        (["train", "dcpg", "--game", "maze", "--device", "cuda"], "cuda"),
        (["train", "dcpg", "--game", "maze", "--steps", "1.5"], "--steps takes a whole number of steps"),
        (["train", "dcpg", "--game", "maze", "--steps", "1e999999999999"], "got '1e999999999999'"),
        (["train", "dcpg", "--game", "maze", "--set", "steps=1.5"], "steps must be a whole number; got '1.5'"),
        (["resume", "no-such-run", "--steps", "1e"], "--steps takes a whole number of steps"),
        (["eval", "no-such-run", "--at", "1.5"], "--at takes a whole number of steps"),
        (["resume", "no-such-run"], "There is no run at no-such-run"),
        (["eval", "no-such-run"], "There is no run at no-such-run"),
        (["record", "no-such-run"], "There is no run at no-such-run"),
        (["report", "nowhere"], "There is no directory nowhere."),
        (["report", "runs/nowhere"], "There is no directory runs/nowhere."),
        (["report", "tabel1"], "did you mean 'table1'"),
        (["explain", "ddcgp"], "did you mean 'ddcpg'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_unknown_commands_and_options_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "trian")[0] == 2
    assert run(capsys, "train", "dcpg", "--gaem", "maze")[0] == 2
    assert run(capsys, "train", "dcpg")[0] == 2


def test_train_eval_record_resume(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, text, _ = run(capsys, "train", "dcpg", "--game", "starpilot", "--steps", "300", "--out", str(out), *TINY)
    assert code == 0
    assert "256 steps (2 rollouts of 128) on this machine: about" in text
    assert "GB of memory" in text
    assert "GB of disk" in text
    assert "300 asked for, floored to whole rollouts" in text
    assert (out / "curves.png").stat().st_size > 10_000
    summary = json.loads((out / "summary.json").read_text())
    assert {k: summary[k] for k in ("method", "game", "seed", "steps", "status")} == {
        "method": "dcpg", "game": "starpilot", "seed": 0, "steps": 256, "status": "finished",
    }  # fmt: skip
    code, text, _ = run(capsys, "eval", str(out), "--levels", "train", "--json")
    assert json.loads(text)["returns"] == summary["train_returns"]
    code, text, _ = run(capsys, "eval", str(out), "--levels", "5")
    assert "1 episode on this machine: about " in text
    assert "level 5, 1 episode, weights at 256 steps" in text
    code, text, _ = run(capsys, "eval", str(out), "--levels", "5-7")
    assert "levels 5-7, 3 episodes, weights at 256 steps" in text
    assert all(f"level {n:10d}" in text for n in (5, 6, 7))
    assert run(capsys, "eval", str(out), "--levels", "7-5")[0] == 2
    assert run(capsys, "train", "dcpg", "--game", "maze", "--out", str(out), *TINY)[0] == 2
    code, text, _ = run(capsys, "resume", str(out), "--steps", "3.84e2")
    assert code == 0
    assert json.loads((out / "config.json").read_text())["steps"] == 384
    assert json.loads((out / "summary.json").read_text())["steps"] == 384


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert "ok   pictures" in out
    assert "BAD" not in out


def test_help_needs_no_torch_and_teaches() -> None:
    code = "import sys, dcpg.cli; print([m for m in ('torch', 'gymnasium', 'matplotlib', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    done = subprocess.run([sys.executable, "-m", "dcpg", "train", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for word in (
        "--game",
        "--steps",
        "--seed",
        "--preset",
        "--out",
        "--device",
        "--precision",
        "--compile",
        "--init",
        "--set",
    ):
        assert word in done.stdout


def test_output_that_is_no_terminal_gets_plain_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dcpg", "train", "dcpg", "--game", "maze", "--steps", "256", "--out", "r", *TINY]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "evaluated" in done.stdout
    assert "unseen levels" in done.stdout
    assert done.stderr == ""


def test_help_tells_defaults_that_are_not_values() -> None:
    """Square brackets would be taken for markup and vanish."""
    done = subprocess.run([sys.executable, "-m", "dcpg", "train", "--help"], capture_output=True, text=True)
    assert "(default: the preset's)" in " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize("command", ["train", "eval", "sweep", "report", "bench"])
def test_help_shows_no_type_for_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert "--help" in out
    assert "bool" not in out.lower()

"""Names from files that may be anybody's: a terminal gets lines of text, whatever they hold."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dcpg
from dcpg.analysis.many import Analysed
from dcpg.cli.analyse_display import AnalyseDisplay
from dcpg.cli.sweep_display import SweepDisplay
from dcpg.config import environments
from dcpg.errors import BadInput, unknown
from dcpg.sweep.view import view_directory
from dcpg.text import csv_cell, csv_text, one_line, printable
from dcpg.training.display import RunDisplay
from tests import synthetic
from tests.cli.test_cli import TINY, run

PACKAGE = Path(__file__).parents[2] / "dcpg"
# a title for the window, colours in 7 and 8 bits, a forged line, text turned around, no width, half a character
WORDS = "n\x1b]0;title\x07\x1b[31m\x9b1m\r\nFinished: all\t\u202eback\u2066\u200b\ud800[bold]b[/bold][link=x]:bomb:"
SHOWN = "n?]0;title??[31m?1m??Finished: all??back???[bold]b[/bold][link=x]:bomb:"
WHOLE = WORDS.replace("\ud800", "")  # as the name of a method or an environment may be
NAME = WORDS.replace("\ud800", "?").replace("/", "?")  # of a file


def check_lines(text: str) -> None:
    """Only text in lines, and none of them forged."""
    assert not [c for c in text if not c.isprintable() and c != "\n"], repr(text)
    assert "\nFinished: all" not in text


def test_text_on_one_line() -> None:
    assert one_line(WORDS) == printable(WORDS) == SHOWN
    assert one_line("ß ± 漢 é") == "ß ± 漢 é"
    assert len(printable(WORDS * 20)) == 300
    assert len(one_line(WORDS * 20)) == 20 * len(SHOWN)
    assert str(BadInput(f"It is {WORDS}.")) == f"It is {SHOWN}."


def test_a_spreadsheet_computes_no_cell() -> None:
    for words in ("=1+1", "+1+1", "-1+1", "@SUM(1)", "\uff1d1", " =1", "-1 2", "-a", "--1"):
        assert csv_cell(words) == f"'{words}"
    assert [csv_cell(words) for words in ("\t=1", "\r=1", "\n-a", "\ud800=1")] == ["?=1", "?=1", "?-a", "?=1"]
    assert csv_cell("a;=1;b; -2") == "a;'=1;b;' -2"  # where the semicolon separates cells
    for same in ("-1.5", "-1e-05", "1.5e+16", "-3", "-", "", "3-4", "a=1", "dcpg+f", "seed 1, x-y"):
        assert csv_cell(same) == same
    assert csv_text([["=1", 'a "b", c'], [-1.5, 2]]) == '\'=1,"a ""b"", c"\n-1.5,2\n'


def test_unknown_names_are_cut() -> None:
    assert len(str(unknown("preset", "x" * 3_000_000, ["tiny", "paper"]))) < 400
    assert "did you mean 'paper'?" in str(unknown("preset", "papre", ["tiny", "paper"]))


def test_everything_that_is_printed_goes_through_one_function() -> None:
    """`say` prints lines; JSON for programs has no other characters than those of ASCII."""
    found, allowed = [], [PACKAGE / "text.py"]
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        json = [id(call.func) for call in calls if call.args and ast.unparse(call.args[0]).startswith("json.dumps(")]
        names = [node for node in nodes if isinstance(node, ast.Name) and node.id == "print" and id(node) not in json]
        found += [path for _ in names]
    assert found == allowed


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an environment with such a name, in a directory with such a name."""
    out = tmp_path_factory.mktemp("names") / NAME
    settings = {"evaluation.max_steps": 10, "evaluation.episodes": 2, "network.features": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environments, "NAME", re.compile("(?s:.*)"))  # a name that --name would refuse
        dcpg.train("ppo", env="CartPole-v1", test_env="CartPole-v1", name=WHOLE, preset="tiny", steps=128, out=out,
                   settings=settings)  # fmt: skip
    synthetic.configured(lambda plain: plain.update(versions={WORDS: WORDS}))(out)
    return out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["resume", "DIR"], 0),
        (["eval", "DIR"], 0),
        (["record", "DIR"], 0),
        (["export", "DIR"], 0),
        (["analyse", "values", "DIR"], 0),
        (["analyse", "stiffness", "DIR", "--states", "16", "--burn-in", "0"], 0),
        (["analyse", "levels", "DIR"], 2),  # which is not for it
        (["analyse", "values", "DIR", "TOP"], 0),  # as several
        (["report", "TOP", "--out", "OUT"], 0),
        (["report", "TOP", "table1", "--out", "OUT"], 2),  # which needs Procgen
        (["train", "ppo", "--game", "maze", "--out", "DIR", *TINY], 2),  # there is a run already
        (["train", "ppo", "--game", "maze", "--init", "DIR", "--out", "OUT", *TINY], 2),
        (["train", WORDS.replace("\ud800", ""), "--game", "maze"], 2),
        (["explain", "ppo", "--set", f"{WORDS}=1"], 2),
        (["explain", "ppo", "--plugin", WORDS], 2),
        (["sweep", "status", "DIR"], 2),
        (["sweep", "DIR"], 2),
    ],
)
def test_every_command_prints_text(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    places = {"DIR": str(trained), "TOP": str(trained.parent), "OUT": str(tmp_path / "out")}
    ended, out, err = run(capsys, *(places.get(word, word) for word in arguments))
    assert ended == code, err
    check_lines(out)
    check_lines(err)


COMMANDS = (["resume"], ["eval"], ["record"], ["export"], ["analyse", "values"], ["sweep", "status"], ["report"])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_runs_of_strangers(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Methods and plugins with such names, text for numbers, and a sweep that names them."""
    top = tmp_path / NAME
    path = synthetic.of_a_stranger(top / "runs" / "one", WHOLE)
    synthetic.configured(lambda plain: plain.update(init=None))(path)
    synthetic.of_a_stranger(top / "runs" / "two", WHOLE, 1)
    synthetic.edit("eval.jsonl", lambda rows: rows[0].update({WORDS: WORDS, "train_return": WORDS}))(top / "runs/two")
    configs = [json.loads((top / "runs" / name / "config.json").read_text()) for name in ("one", "two")]
    jobs = [{"label": WORDS, "config": config, "analyses": [WORDS]} for config in configs]
    configs = [config | {"init": None} for config in configs]
    plan = {"schema": 1, "name": WORDS, "sweep": {}, "runs": ["one", "three"], "jobs": jobs, "command": WORDS}
    (top / "sweep.json").write_text(json.dumps(plan))
    events = [{"run": "three", "event": name, "last_lines": WORDS} for name in ("started", "ended", "failed")]
    (top / "index.jsonl").write_text("".join(json.dumps(e | {"attempt": 1, "time": ""}) + "\n" for e in events))
    out = ["--out", str(tmp_path / "out")] if arguments == ["report"] else []
    where = path if arguments[0] not in ("sweep", "report") else top
    code, text, err = run(capsys, *arguments, str(where), *out)
    assert code == (0 if where == top else 2), err
    assert "\nFinished" not in text.replace("Finished: all??back", "")
    check_lines(text)
    check_lines(err)
    if arguments[0] == "sweep":
        for on_terminal in (True, False):
            check_console(lambda console: check_sweep(console, top), on_terminal)


def check_sweep(console: Console, top: Path) -> None:
    plan, now = view_directory(top)
    display = SweepDisplay(console)
    display.start(plan, WORDS)
    display.update(now)
    display.close()


def check_console(show: Any, on_terminal: bool) -> None:
    text = io.StringIO()
    show(Console(file=text, force_terminal=on_terminal, width=1000))
    found = re.sub(r"\x1b\[\?25[lh]|\x1b\[[0-9;]*[mAKG]", "", text.getvalue()) if on_terminal else text.getvalue()
    check_lines(found.replace("\r", ""))
    assert SHOWN.split("[31m")[1] in found


@pytest.mark.parametrize("on_terminal", [True, False])
def test_displays(on_terminal: bool) -> None:
    def show_run(console: Console) -> None:
        RunDisplay(console).warn(WORDS)

    def show_analyses(console: Console) -> None:
        display = AnalyseDisplay(console)
        display.open(WORDS)
        display.done(1, 1, Analysed(Path(WORDS), "failed", error=BadInput(WORDS)), WORDS)
        display.close()

    for show in (show_run, show_analyses):
        check_console(show, on_terminal)

"""`dcpg report`: which files it writes and removes, and what it refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dcpg.cli.report_display import ReportDisplay
from dcpg.report.write import write_report
from tests.report.grid import ALL_TABLES, FIGURES, Command
from tests.synthetic import few, some


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_names_make_these_files_and_no_others(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo", "dcpg"), (0, 1))
    code, out, err, report = command(tmp_path / "runs", "table1", "figure4", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert files_in(tmp_path / "out") == [
        "figures/figure4.pdf", "figures/figure4.png", "report.json", "tables/table1.csv", "tables/table1.md",
        "tables/table1.tex",
    ]  # fmt: skip
    listed = [name for name in files_in(tmp_path / "out") if name != "report.json"]
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == {"files": listed}
    assert report is not None
    assert (report.tables, report.figures, report.version) == (["table1"], ["figure4"], "")
    assert "8 runs (2,048 steps, preset tiny, 200 training levels): 8 finished, 0 unfinished." in out
    assert "Tables: table1\nFigures: figure4\n" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["figure2"], "These runs do not allow figure2;"),
        (["table1", "table3", "figure2"], "These runs do not allow table3, figure2;"),
        (["tabel1"], "Unknown run, table or figure 'tabel1'; did you mean 'table1'?"),
        (["figure99"], "Unknown run, table or figure 'figure99'"),
    ],
)
def test_a_name_that_cannot_be_made(words: list[str], sentence: str, tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo",), (0,))
    code, out, err, _ = command(tmp_path / "runs", *words, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.startswith(f"dcpg: {sentence}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_folders_without_runs(tmp_path: Path, command: Command) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for words, sentence in (
        ([tmp_path / "empty"], f"{tmp_path / 'empty'} holds no run: no config.json at or below it."),
        ([tmp_path / "nowhere"], f"There is no directory {tmp_path / 'nowhere'}."),
        ([tmp_path / "file"], f"There is no directory {tmp_path / 'file'}."),
        (["table1"], "Name at least one run or folder of runs"),
    ):
        code, out, err, _ = command(*words, "--out", tmp_path / "out")
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1
    run = some(tmp_path / "one", "dcpg").path
    (run / "eval.jsonl").write_text("")
    code, _, err, _ = command(run, "--out", tmp_path / "out")
    assert (code, err) == (2, "dcpg: No evaluation yet in 1 run; come back when there is one.\n")
    (run / "config.json").write_text("{}")
    code, _, err, _ = command(run, "--out", tmp_path / "out")
    assert code == 2
    assert err.startswith("dcpg: No run can be used: ")
    assert not (tmp_path / "out").exists()


def test_a_report_tells_what_it_is_making(tmp_path: Path) -> None:
    few(tmp_path / "runs", ("ppo",), (0, 1))
    told = list[tuple[str, int, int]]()
    made = write_report([tmp_path / "runs"], tmp_path / "out", tell=lambda *now: told.append(now))
    assert told[:5] == [("reading runs", done, 4) for done in range(4)] + [("tables", 0, 1)]
    assert [now for now in told if now[0] == "writing figures"] == [
        ("writing figures", done, len(made.figures)) for done in range(len(made.figures))
    ]
    drawn = [now[1:] for now in told if now[0] == "drawing figures"]
    assert drawn == [(done, len(FIGURES) - len(made.same)) for done in range(len(drawn))]
    assert told[-1] == ("the page", 0, 1)


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcpg.training.display.LINE_SECONDS", -1.0)  # every line is shown
    monkeypatch.setattr("dcpg.training.display.REDRAW_SECONDS", -1.0)
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        display = ReportDisplay(console)
        display.open("Report on runs")
        display.tell("reading runs", 800, 2400)
        display.tell("drawing figures", 3, 15)
        display.close()
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("\x1b[" in text, "━" in text) == (terminal, terminal)
        if terminal:
            assert "800 of 2,400" in text
            assert "drawing figures" in text
        else:
            assert text == "reading runs, 800 of 2,400 done\ndrawing figures, 3 of 15 done\n"


def test_what_is_no_longer_possible_is_removed_and_nothing_else(tmp_path: Path) -> None:
    some(tmp_path / "runs" / "ppo", "ppo")
    out = tmp_path / "out"
    older = [f"tables/{name}.{ending}" for name in ALL_TABLES for ending in ("csv", "md", "tex")]
    older += [f"figures/{name}.{ending}" for name in FIGURES for ending in ("png", "pdf")]
    mine = ["tables/mine.csv", "tables/table1.txt", "tables/table12.csv", "figures/figure2.svg", "figures/mine.png",
            "figures/table1.csv", "table1.csv", "figure2.png", "notes/table3.csv", "README",
            "figures/figure3.png", "figures/figure3.pdf", "tables/table2.csv"]  # fmt: skip
    for name in (*older, *mine):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("older")
    listed = [name for name in older if name not in mine]
    (out / "report.json").write_text(json.dumps({"files": [*listed, "README", "../runs/ppo/config.json", 7, None]}))
    first = write_report([tmp_path / "runs"], out, ["table1"])
    assert files_in(out) == sorted({*older, *mine, "report.json"})
    assert first.tables == ["table1"]
    second = write_report([tmp_path / "runs"], out, pictures=False)
    figures = [name for name in listed if name.startswith("figures/")]
    tables = [f"tables/{name}.{ending}" for name in ("table1", "table7", "claims") for ending in ("csv", "md", "tex")]
    assert second.tables == ["table1", "table7", "claims"]
    assert files_in(out) == sorted([*tables, *figures, *mine, "report.html", "report.json"])
    assert json.loads((out / "report.json").read_text())["files"] == sorted([*tables, *figures])
    for name in (*mine, *figures):
        assert (out / name).read_text() == "older"
    third = write_report([tmp_path / "runs"], out)
    assert third.figures == ["figure5", "figure11", "figure15", "sample-efficiency"]  # one run has no profile
    drawn = [f"figures/{name}.{ending}" for name in third.figures for ending in ("png", "pdf")]
    assert files_in(out) == sorted([*tables, *drawn, *mine, "report.html", "report.json"])
    assert sorted(p.relative_to(out).as_posix() for p in third.files) == sorted(
        [*tables, *drawn, "report.html", "report.json"]
    )
    data = json.loads((out / "report.json").read_text())
    assert data["files"] == sorted([*tables, *drawn])
    assert data["figures"] == third.figures  # not the user's own figure3.pdf
    for name in mine:
        assert (out / name).read_text() == "older"
    for name in drawn:
        assert (out / name).stat().st_size > 3000
    assert (tmp_path / "runs" / "ppo" / "config.json").is_file()


@pytest.mark.parametrize("text", [None, '{"setting": 1, "list": 2, "problems": 3}', '{"files": []}'])
def test_without_a_list_of_the_report_before_nothing_is_removed(text: str | None, tmp_path: Path) -> None:
    """There was none, or it was of an older version."""
    some(tmp_path / "runs" / "ppo", "ppo")
    mine = ["figures/figure2.pdf", "figures/profiles.png", "tables/table2.csv", "tables/grid.md"]
    for name in mine:
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    if text is not None:
        (tmp_path / "out" / "report.json").write_text(text)
    write_report([tmp_path / "runs"], tmp_path / "out", pictures=False)
    assert [(tmp_path / "out" / name).read_text() for name in mine] == ["mine"] * len(mine)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["figures"] == []


def test_a_file_that_no_report_has_written_is_not_replaced(tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo", "dcpg"), (0,))
    mine = tmp_path / "paper" / "tables" / "table1.tex"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for words in (["table1"], []):
        code, out, err, _ = command(tmp_path / "runs", *words, "--out", tmp_path / "paper")
        assert (code, out) == (2, "")
        assert err == (
            f"dcpg: {mine} would be replaced, but no report has written it, as far as can be told; move it away, or "
            "choose another --out.\n"
        )
        assert files_in(tmp_path / "paper") == ["tables/table1.tex"]
        assert mine.read_text() == "mine"
    assert command(tmp_path / "runs", "table7", "--out", tmp_path / "paper")[0] == 0
    assert command(tmp_path / "runs", "table1", "--out", tmp_path / "paper")[0] == 2
    mine.unlink()
    for words in (["table1", "table7"], [], ["table1"]):  # reports over reports
        assert command(tmp_path / "runs", *words, "--out", tmp_path / "paper")[0] == 0
    assert mine.read_text() != "mine"
    page = tmp_path / "other" / "report.html"
    page.parent.mkdir()
    page.write_text("mine")
    code, _, err, _ = command(tmp_path / "runs", "--out", tmp_path / "other")
    assert (code, page.read_text()) == (2, "mine")
    assert err.startswith(f"dcpg: {page} would be replaced")
    assert command(tmp_path / "runs", "table1", "--out", tmp_path / "other")[0] == 0  # makes no page, nor owns it
    assert command(tmp_path / "runs", "--out", tmp_path / "other")[0] == 2
    assert page.read_text() == "mine"


@pytest.mark.parametrize(
    "text", ['{"tests": 5}', "[]", "7", "torn {", "{}", '{"files": 3}', '{"files": "report.html"}']
)
def test_a_report_json_of_another_program_is_not_replaced(text: str, tmp_path: Path, command: Command) -> None:
    few(tmp_path / "runs", ("ppo", "dcpg"), (0,))
    others = tmp_path / "out" / "report.json"
    others.parent.mkdir()
    others.write_text(text)
    for words in ([], ["table1"]):
        code, _, err, _ = command(tmp_path / "runs", *words, "--out", tmp_path / "out")
        assert (code, err.startswith(f"dcpg: {others} would be replaced")) == (2, True)
        assert (files_in(tmp_path / "out"), others.read_text()) == (["report.json"], text)


def test_a_report_of_an_older_release_or_one_that_was_killed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(tmp_path / "runs", ("ppo", "dcpg"), (0,))
    out = tmp_path / "out"
    write_report([tmp_path / "runs"], out, pictures=False)
    plain = json.loads((out / "report.json").read_text())
    del plain["files"]
    (out / "report.json").write_text(json.dumps(plain))
    write_report([tmp_path / "runs"], out, ["table1"])
    assert json.loads((out / "report.json").read_text()) == plain  # or the other tables would be nobody's
    write_report([tmp_path / "runs"], out, pictures=False)
    write_report([tmp_path / "runs"], out, pictures=False)
    assert json.loads((out / "report.json").read_text())["files"]

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    for moment in ("page_data", "_remove_stale"):
        with monkeypatch.context() as patch:
            patch.setattr(f"dcpg.report.write.{moment}", killed)
            with pytest.raises(KeyboardInterrupt):
                write_report([tmp_path / "runs"], tmp_path / moment, pictures=False)
        assert "tables/table1.csv" in files_in(tmp_path / moment)
        write_report([tmp_path / "runs"], tmp_path / moment, pictures=False)

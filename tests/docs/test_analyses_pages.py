"""The pages of analyses and reports list what the code writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dcpg
from dcpg.cli.analyse import Analysis
from dcpg.cli.app import app
from dcpg.storage.rows import read_rows
from tests.docs.pages import DOCS, section, table_rows
from tests.small import SMALL


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that measured itself."""
    settings = {"analyse": "stiffness,ood-actions", "evaluation.max_steps": 20, "evaluation.episodes": 2, **SMALL}
    out = tmp_path_factory.mktemp("docs") / "run"
    return dcpg.train("ddcpg", game="bigfish", preset="tiny", steps=128, settings=settings, out=out).directory


def keys_of(plain: dict[str, Any]) -> set[str]:
    """The keys, dotted, with SPLIT for train and test."""
    found = set()
    for key, value in plain.items():
        name = "SPLIT" if key in ("train", "test") else key
        found |= {f"{name}.{below}" for below in value} if isinstance(value, dict) else {name}
    return found


@pytest.mark.parametrize("name", list(Analysis))
def test_an_analysiss_page_lists_what_is_kept(name: str, analysed: Path) -> None:
    sizes = {"stiffness": ["--states", "16"], "ood-actions": ["--states", "16"], "levels": ["--levels", "2"]}
    result = CliRunner().invoke(app, ["analyse", name, str(analysed), "--json", *sizes.get(name, [])])
    assert result.exit_code == 0, result.output
    shared = table_rows((DOCS / "analyses/index.md").read_text().split("Every JSON file has")[1].split("\n## ")[0])
    rows = table_rows(section(DOCS / f"analyses/{name}.md", "What is printed and kept"))
    listed = [key for row in [*shared, *rows] for key in re.findall(r"`([\w.]+)`", row[0])]
    assert len(set(listed)) == len(listed)
    assert set(listed) == keys_of(json.loads(result.output))


def test_the_analyses_pages_list_the_columns_of_a_run(analysed: Path) -> None:
    (row,) = read_rows(analysed / "metrics.jsonl")
    listed = [
        column
        for page in ("stiffness", "ood-actions")
        for cells in table_rows(section(DOCS / f"analyses/{page}.md", "While a run trains"))[1:]
        for column in re.findall(r"`(\w+)`", cells[0])
    ]
    assert listed == [column for column in row if column.startswith(("stiffness", "ood_actions"))]


def test_the_analyses_pages_name_every_analysis_and_special_action() -> None:
    from dcpg.core.wrong_actions import SPECIAL_ACTIONS
    from dcpg.envs.procgen import GAMES

    linked = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\)", (DOCS / "analyses/index.md").read_text(), re.MULTILINE)
    assert linked == list(Analysis)
    assert {page.stem for page in (DOCS / "analyses").glob("*.md")} == {"index", *Analysis}
    idle, special = table_rows(section(DOCS / "analyses/ood-actions.md", "The formula"))[1:]
    assert set(re.findall(r"`(\w+)`", special[0])) == SPECIAL_ACTIONS
    assert set(re.findall(r"`(\w+)`", idle[0])) == set(GAMES) - SPECIAL_ACTIONS


def test_the_report_page_lists_every_table_and_figure() -> None:
    from dcpg.report.paper import method_title
    from dcpg.report.tables import METHODS_OF_TABLES
    from dcpg.report.write import NAMES

    rows = {row[0].strip("`"): row[2] for row in table_rows(section(DOCS / "report.md", "Tables and figures"))[1:]}
    assert sorted(rows) == sorted(NAMES)
    for name, methods in METHODS_OF_TABLES.items():
        assert [m for m in methods if not re.search(rf"{re.escape(method_title(m))}(?![\w+])", rows[name])] == []

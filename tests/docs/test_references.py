"""References, links and tables: what a page points to exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dcpg.methods import METHODS
from tests.docs.pages import DOCS, PAGES, ROOT, names_in, section, table_rows


def test_every_reference_of_algorithm_to_code_resolves() -> None:
    text = (DOCS / "algorithm-to-code.md").read_text()
    references = re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
    assert len(references) == text.count("::") - text.count("`file::symbol`")
    assert len(references) > 50
    missing = [
        f"{file}::{symbol}"
        for file, symbol in references
        if not (ROOT / file).is_file() or symbol not in names_in(ast.parse((ROOT / file).read_text()).body)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("Algorithm 1, (Dynamics-aware) Delayed-Critic Policy Gradient", list(range(1, 14))),
        ("Algorithm 3, Separate Delayed-Critic Policy Gradient", [5, 7, 8, 10, 13, 14]),  # where it differs
    ],
)
def test_every_line_of_the_algorithms_has_code(algorithm: str, expected: list[int]) -> None:
    rows = table_rows(section(DOCS / "algorithm-to-code.md", algorithm))
    lines = [int(m[1]) for paper, code in rows if (m := re.match(r"line (\d+),", paper)) and "::" in code]
    assert sorted(set(lines)) == expected


def test_every_objective_is_in_algorithm_to_code() -> None:
    tree = ast.parse((ROOT / "dcpg/core/objectives.py").read_text())
    text = (DOCS / "algorithm-to-code.md").read_text()
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [name for name in functions if f"`dcpg/core/objectives.py::{name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`((?:dcpg|tests|docs|examples)/[\w/.]+\.\w+)", page.read_text()))
    named -= {"dcpg/methods/dcpg_huber.py"}  # the example of a new variant
    assert page.name == "CHANGELOG.md" or [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_inside_the_project_is_broken(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    paths = {(page.parent / target).resolve() for target in targets if target}
    assert [p for p in paths if not p.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_have_as_many_cells_in_every_row(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(row) for row in table_rows(table)}) == 1, table


def test_the_index_links_every_method() -> None:
    text = (DOCS / "index.md").read_text()
    assert [name for name in METHODS if f"](methods/{name}.md)" not in text] == []
    assert {page.stem for page in (DOCS / "methods").glob("*.md")} == set(METHODS)


def test_the_index_links_every_page() -> None:
    text = (DOCS / "index.md").read_text()
    named = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    assert [name for name in sorted(named) if f"]({name})" not in text] == []


def test_no_page_has_a_placeholder() -> None:
    for page in PAGES:
        assert re.findall(r"^[A-Z]{3,}$|\b(?:TODO|TBD|FIXME)\b", page.read_text(), re.MULTILINE) == [], page

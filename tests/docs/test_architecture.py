"""The architecture page shows the tree and the layers as they are, and the limits on sizes are kept."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import names_in

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dcpg"
PAGE = ROOT / "docs" / "architecture.md"
OF_THE_REPOSITORY = ("dcpg/", "tests/", "docs/", "pyproject.toml")  # other paths are relative to the package


def section(page: Path, heading: str) -> str:
    return page.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def blocks(text: str) -> list[list[str]]:
    """The lines of every block of plain text."""
    return [found.splitlines() for found in re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]


def entries(lines: list[str]) -> list[str]:
    """The paths of a printed tree, folders with a slash at the end; every one must have a description."""
    (top, *rest), folders, found = lines, list[str](), list[str]()
    assert top.endswith("/")
    for line in rest:
        shown = re.fullmatch(r"((?:  )+)(\S+)  +\S.*", line)
        assert shown, f"{line!r} has no description"
        depth, name = len(shown[1]) // 2, shown[2]
        folders = folders[: depth - 1]
        assert len(folders) == depth - 1, f"{line!r} is not inside a folder"
        found.append("".join([*folders, name]))
        if name.endswith("/"):
            folders.append(name)
    return found


def folders_of(top: Path) -> set[str]:
    """The folders directly inside another one that hold a file."""
    return {
        f"{path.name}/"
        for path in top.iterdir()
        if path.name != "__pycache__" and any(p.is_file() and "__pycache__" not in p.parts for p in path.rglob("*"))
    }


def layers() -> list[str]:
    """As import-linter is told them, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["dcpg"]]
    return [str(layer) for layer in found]


def flat_modules() -> set[str]:
    return {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}


# -- the tree


def test_every_file_of_the_package_is_listed_once_and_nothing_else() -> None:
    listed = entries(blocks(section(PAGE, "The tree"))[0])
    files = [path for path in listed if path.endswith(".py")]
    there = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(files) == sorted(there)
    others = [path for path in listed if path not in files]
    assert [path for path in others if not (path.endswith("/") and (PACKAGE / path).is_dir())] == []
    folders = {path.parent.relative_to(PACKAGE).as_posix() + "/" for path in PACKAGE.rglob("*.py")} - {"./"}
    assert folders <= set(others)
    assert len(set(others)) == len(others)


def test_the_tree_is_in_the_order_of_the_layers() -> None:
    listed = [path for path in entries(blocks(section(PAGE, "The tree"))[0]) if "/" not in path.rstrip("/")]
    in_order = [name for layer in layers() for name in layer.split(" | ")]
    assert [path.removesuffix("/").removesuffix(".py") for path in listed] == in_order


def test_every_folder_of_the_tests_is_listed() -> None:
    listed = entries(blocks(section(PAGE, "The tree"))[1])
    assert sorted(listed) == sorted(folders_of(ROOT / "tests"))


def test_the_readme_prints_the_top_of_the_tree() -> None:
    text = section(ROOT / "README.md", "Architecture")
    (lines,) = blocks(text)
    assert lines[0] == "dcpg/"
    assert sorted(entries(lines)) == sorted(folders_of(PACKAGE) | flat_modules())
    assert "](docs/architecture.md)" in text


# -- what the page says


def test_the_layers_are_those_that_are_enforced() -> None:
    assert blocks(section(PAGE, "The layers")) == [layers()]


def test_every_path_and_symbol_on_the_page_exists() -> None:
    text = PAGE.read_text().replace(section(PAGE, "The tree"), "")
    found = re.findall(r"(?<![\w/.])((?:[\w-]+/)*[\w.-]+\.(?:py|md|toml))(?:::([\w.]+))?", text)
    found += [(path, "") for path in re.findall(r"`((?:[\w-]+/)+)`", text)]
    assert len(found) > 80
    missing = []
    for name, symbol in found:
        path = (ROOT if name.startswith(OF_THE_REPOSITORY) else PACKAGE) / name
        if not path.exists() or (symbol and symbol not in names_in(ast.parse(path.read_text()).body)):
            missing.append(f"{name}::{symbol}" if symbol else name)
    assert missing == []


# -- limits


def test_the_package_has_few_flat_modules() -> None:
    assert len(flat_modules()) <= 8, sorted(flat_modules())


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("dcpg/core/algorithm.py", 150), ("docs/examples/dcpg_single_file.py", 350), ("tests/**/*.py", 600)],
)
def test_files_stay_short(pattern: str, most: int) -> None:
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in ROOT.glob(pattern)}
    assert sizes
    assert {name: lines for name, lines in sizes.items() if lines > most} == {}


def test_docstrings_say_something() -> None:
    """At most 15 in the whole package have three words or fewer."""
    short = [
        f"{path.relative_to(ROOT).as_posix()}::{node.name}: {docstring}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if (docstring := ast.get_docstring(node)) and len(docstring.split()) <= 3
    ]
    assert len(short) <= 15, "\n".join([f"{len(short)}:", *short])

"""Reading the pages of the documentation: code blocks, sections and tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def code_block(page: Path, containing: str = "") -> str:
    """The first Python block of a page that contains a text."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if containing in block)


def table_rows(text: str) -> list[list[str]]:
    """The cells of every line of every table, headings included, rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def section(page: Path, heading: str) -> str:
    return page.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Every function, class, method, field and attribute that statements define, dotted."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found |= names_in(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found |= names_in(node.body, prefix)
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name | ast.Attribute):
                found.add(prefix + (target.id if isinstance(target, ast.Name) else target.attr))
    return found

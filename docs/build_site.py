"""Builds the documentation as a site in a new folder: `python docs/build_site.py FOLDER`.

The pages lie in the site as they lie in the repository, so a link from file to file works in both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BESIDE_DOCS = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "examples/quickstart.ipynb",
    "results/README.md", "results/PROTOCOL.md",
)  # fmt: skip


def build(site: Path) -> None:
    """Build from a copy: all that the generator finds next to a page becomes part of the site."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        shutil.copy(ROOT / "zensical.toml", copy)
        shutil.copytree(ROOT / "docs", copy / "pages" / "docs", ignore=shutil.ignore_patterns("__pycache__"))
        # beside the pages: docstrings and types are read from the sources, which are no part of the site
        shutil.copytree(ROOT / "dcpg", copy / "dcpg", ignore=shutil.ignore_patterns("__pycache__"))
        for file in BESIDE_DOCS:
            (copy / "pages" / file).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / file, copy / "pages" / file)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=copy, capture_output=True, encoding="utf-8", check=False)  # noqa: S603
        if done.returncode or "griffe: " in done.stderr:  # what griffe says of docstrings does not fail the build
            sys.exit(done.stdout + done.stderr)
        for page in copy.glob("site/**/*.html"):
            page.write_text(without_escapes(page.read_text(encoding="utf-8")), encoding="utf-8")
        shutil.copytree(copy / "site", site)


def without_escapes(html: str) -> str:
    """Remove the backslash of an escaped bar in the code of a table, as code hosts do; Python's Markdown keeps it."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: python docs/build_site.py NEW-FOLDER")
    build(Path(sys.argv[1]))

"""Adds files from the top of the repository to the site, and turns links to them into links within the site.

The same Markdown thus also works on a code host, where links point from file to file of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
IN_SITE = {  # file at the top of the repository -> its name in the site
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "LICENSE.txt",
    "CITATION.cff": "CITATION.cff",
}
LINK = re.compile(r"(\]\()([^)\s#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files under names of their own: mkdocs would take README.md for an index."""
    for path, name in IN_SITE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn every link from file to file into a link from page to page."""
    name = page.file.src_uri
    in_repository = next((path for path, added in IN_SITE.items() if added == name), f"docs/{name}")
    here = posixpath.dirname(in_repository)

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, found[2]))
        in_site = IN_SITE.get(target, target.removeprefix("docs/"))
        if "://" in found[2] or (in_site == target and not target.startswith("docs/")):
            return found[0]  # another site, or a file that the site does not have, which mkdocs reports
        return found[1] + posixpath.relpath(in_site, posixpath.dirname(name) or ".")

    return LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the backslash of an escaped bar in the code of a table, as code hosts do; Python's Markdown keeps it."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)

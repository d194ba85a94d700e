"""The site is built without warnings, and is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from tests.docs.pages import DOCS, ROOT


class Page(HTMLParser):
    """What a page of the site points to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loaded, self.pictures = list[str](), list[str](), list[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag == "link":
            self.loaded.append(str(given["href"]))
        elif tag in ("img", "script") and given.get("src"):
            (self.pictures if tag == "img" else self.loaded).append(str(given["src"]))


def test_the_site_is_built_strictly_and_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    pages = {path: Page(path) for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    beside = {"readme", "changelog", "contributing"}
    written = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert {path.relative_to(tmp_path).with_suffix("").as_posix() for path in pages} == written | beside
    reached = {(tmp_path / unquote(link.split("#")[0])).resolve() for link in pages[tmp_path / "index.html"].links}
    assert set(pages) <= reached

    for path, page in pages.items():
        assert [address for address in page.loaded + page.pictures if "//" in address] == [], path  # no network
        targets = [t.split("#")[0] for t in page.links + page.loaded + page.pictures if "://" not in t]
        assert [t for t in targets if t and not (path.parent / unquote(t)).exists()] == [], path
    shown = {(path.parent / unquote(picture)).name for path, page in pages.items() for picture in page.pictures}
    assert shown == {picture.name for picture in (DOCS / "images").iterdir()}
    assert sorted(path.name for path in tmp_path.rglob("*.py*")) == ["corridor.py", "dcpg_single_file.py"]

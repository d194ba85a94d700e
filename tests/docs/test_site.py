"""The site is built without warnings, and is whole."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import dcpg
from dcpg import methods
from tests.docs.pages import DOCS, PAGES, ROOT


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


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, root / "docs" / "build_site.py", site], capture_output=True, text=True)


def test_the_site_is_built_strictly_and_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = build(ROOT, site)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    written = {page.relative_to(ROOT).with_suffix(".html").as_posix() for page in PAGES}
    beside = {"index.html", "results/index.html", "results/PROTOCOL.html"}  # README.md and what is in results/
    assert {path.relative_to(site).as_posix() for path in pages} == written - {"README.html"} | beside
    reached = {(site / unquote(link.split("#")[0])).resolve() for link in pages[site / "index.html"].links}
    assert set(pages) <= reached

    for path, page in pages.items():
        assert [address for address in page.loaded + page.pictures if "//" in address] == [], path  # no network
        targets = [t.split("#")[0] for t in page.links + page.loaded + page.pictures if "://" not in t]
        assert [t for t in targets if t and not (path.parent / unquote(t)).exists()] == [], path
    shown = {(path.parent / unquote(picture)).name for path, page in pages.items() for picture in page.pictures}
    assert shown == {picture.name for picture in (DOCS / "images").iterdir()}
    assert sorted(path.name for path in site.rglob("*.py*")) == sorted(path.name for path in DOCS.glob("examples/*.py"))

    shown = (site / "docs/api.html").read_text()
    public = [f"dcpg.{name}" for name in dcpg.__all__]
    public += [f"dcpg.methods.{name}" for name in methods.__all__ if not inspect.ismodule(getattr(methods, name))]
    assert [name for name in public if f'id="{name}"' not in shown] == []
    assert "Train a method on a Procgen game or on your own environment" in shown
    assert "Environment steps, floored to whole rollouts" in shown


def copied(tmp_path: Path) -> None:
    for name in ("zensical.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("docs", "examples", "dcpg", "results"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.faults
def test_a_docstring_that_names_a_parameter_that_is_not_there_stops_the_build(tmp_path: Path) -> None:
    copied(tmp_path)
    api = tmp_path / "dcpg/api.py"
    api.write_text(api.read_text().replace("        seed: Decides every", "        sede: Decides every"))
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "'sede' does not appear in the function signature" in done.stderr


def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    copied(tmp_path)
    with (tmp_path / "docs" / "scale.md").open("a") as page:
        page.write("\n[no page](nowhere.md), [no heading](sweeps.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    for problem in ("page does not exist", "anchor does not exist", "2 issues found"):
        assert problem in done.stderr
    assert not (tmp_path / "site").exists()

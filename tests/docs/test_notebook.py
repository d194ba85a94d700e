"""The notebook is executed, and what it shows is there: the video plays and the page draws its charts."""

from __future__ import annotations

import base64
import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import av
import nbformat
import pytest
from nbclient import NotebookClient

from tests.browser import browser
from tests.docs.pages import ROOT

pytestmark = pytest.mark.faults  # a minute
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """The outputs of every cell of code, in a folder of their own."""
    folder, patch = tmp_path_factory.mktemp("notebook"), pytest.MonkeyPatch()
    patch.setenv("TMPDIR", str(folder))
    patch.setenv("IPYTHONDIR", str(folder / "ipython"))
    patch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with patch.context():
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    patch.undo()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def data(outputs: list[list[dict[str, Any]]], kind: str, part: str) -> str:
    found = [o["data"][kind] for outs in outputs for o in outs if part in o.get("data", {}).get(kind, "")]
    assert len(found) == 1
    return str(found[0])


def test_nothing_is_stored_in_the_notebook() -> None:
    plain = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in plain["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert {cell["execution_count"] for cell in code} == {None}


def test_it_evaluates_three_kinds_of_levels(shown: list[list[dict[str, Any]]]) -> None:
    printed = "".join(o.get("text", "") for outputs in shown for o in outputs)
    assert "BAD" not in printed
    episodes = dict(re.findall(r"^(\S+) +return -?[\d.]+ of (\d+) episodes$", printed, re.MULTILINE))
    assert episodes == {"train": "8", "test": "8", "1000-1003": "4"}


def test_the_video_plays(shown: list[list[dict[str, Any]]]) -> None:
    video = re.search(r"data:video/mp4;base64,([^\"]+)", data(shown, "text/html", "<video controls"))
    assert video is not None
    with av.open(io.BytesIO(base64.b64decode(video[1]))) as container:
        assert sum(1 for _ in container.decode(video=0)) > 10


def test_the_page_draws_its_charts(shown: list[list[dict[str, Any]]], tmp_path: Path) -> None:
    frame = data(shown, "text/html", "<iframe srcdoc=")
    assert "StarPilot" in unescape(frame)
    (tmp_path / "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{frame}")
    with browser() as found:
        page = found.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "cell.html").as_uri())
        page.frame_locator("iframe").locator(".js-plotly-plot").first.wait_for(timeout=60_000)
        assert errors == []

"""Fixtures of the tests of the report."""

from __future__ import annotations

import fcntl
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage

from dcpg.cli.app import main
from dcpg.report import write as making
from tests.browser import WIDE, View, browser, until
from tests.report.grid import Built, Command, build


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built once, even if several processes share the tests."""
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        return build(tmp_path_factory.mktemp("grid"))
    shared = tmp_path_factory.getbasetemp().parent
    with open(shared / "grid.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / "grid.pickle"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(build(tmp_path_factory.mktemp("grid"))))
        found: Built = pickle.loads(kept.read_bytes())
        return found


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`dcpg report ...`: exit code, what it printed, and the report itself."""
    made: list[making.Report] = []
    original = making.write_report

    def write_and_keep(*given: Any, **more: Any) -> making.Report:
        made.append(original(*given, **more))
        return made[-1]

    monkeypatch.setattr(making, "write_report", write_and_keep)

    def run(*arguments: str | Path) -> tuple[int, str, str, making.Report | None]:
        made.clear()
        monkeypatch.setattr(sys, "argv", ["dcpg", "report", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err, made[-1] if made else None

    return run


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def look(chromium: Browser) -> Iterator[Callable[..., View]]:
    contexts = []

    def opened(address: str, size: tuple[int, int] = WIDE, scheme: Any = "light") -> View:
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        view = View(page, [], [])

        def note_message(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                view.errors.append(message.text)

        page.on("console", note_message)
        page.on("pageerror", lambda error: view.errors.append(str(error)))
        page.on("request", lambda request: view.requests.append(request.url))
        page.goto(address)
        until(page, "window.dcpgReport !== undefined")
        return view

    yield opened
    for context in contexts:
        context.close()

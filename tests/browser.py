"""A real Chromium for tests of the page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

PHONE, WIDE = (390, 844), (1360, 900)  # windows
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REQUIRED = "DCPG_BROWSER_REQUIRED"  # set if the tests of the page must not be skipped


def executable() -> str:
    """The path of any Chromium or Chrome on this system."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        why = "there is no Chromium or Chrome here (Debian: apt-get install chromium)"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, but {why}.")
        pytest.skip(f"the page is not tested: {why}")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser; root in a container must run it without its sandbox."""
    path = executable()
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield found
        finally:
            found.close()


@dataclass
class View:
    """A page in a window, its errors and its requests."""

    page: Page
    errors: list[str]
    requests: list[str]

    def charts(self, where: str) -> list[dict[str, Any]]:
        """Each chart of a section: its game, and the names, x and y of its lines."""
        self.page.evaluate("dcpgReport.drawAll()")
        found: list[dict[str, Any]] = self.page.evaluate(
            """(where) => [...document.querySelectorAll(`#${where} .chart`)].map((node) => ({
                title: node.layout.title ? node.layout.title.text : "", width: node.clientWidth,
                marks: node.querySelectorAll("path.js-line, .point, .points path, .hm image").length,
                lines: node.data.filter((t) => t.meta !== "band").map((t) => ({
                    name: t.name, x: [...t.x], y: [...t.y], z: t.z ? t.z.map((r) => [...r]) : null})),
                bands: node.data.filter((t) => t.meta === "band").length }))""",
            where,
        )
        return found

    def press(self, control: str, value: str, within: str = "") -> None:
        self.page.click(f'{within} [data-control="{control}"] [data-value="{value}"]')


def until(page: Page, condition: str) -> None:
    """The browser's own waiting would evaluate text, which the page forbids; a reload may interrupt it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if page.evaluate(condition):
                return
        except Error:
            page.wait_for_load_state()
        page.wait_for_timeout(100)
    raise AssertionError(f"this never became true: {condition}")

"""A real Chromium for tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REQUIRED = "DCPG_BROWSER_REQUIRED"  # set where the tests of the page must not be left out


def executable() -> str:
    """Any Chromium or Chrome of this system."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        why = "there is no Chromium or Chrome here (Debian: apt-get install chromium)"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, but {why}.")
        pytest.skip(f"the page is not tested: {why}")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Headless; a container's root needs it without its sandbox."""
    path = executable()
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield found
        finally:
            found.close()

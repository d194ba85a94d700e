"""What all tests of sweeps share."""

from __future__ import annotations

import pytest

from dcpg.sweep import driver


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that failed are tried again at once."""
    monkeypatch.setattr(driver, "RETRY_SECONDS", 0.0)

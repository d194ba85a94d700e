"""How many faults were injected and recovered from: counted by the tests, added over all processes, and printed."""

from __future__ import annotations

from typing import Any

import pytest

FIGURES: dict[str, tuple[int, int]] = {}  # fault -> (injections, recoveries)


def record(fault: str, injections: int, recoveries: int) -> None:
    """Keep a figure for the summary at the end of the session; those of one fault are added."""
    before = FIGURES.get(fault, (0, 0))
    FIGURES[fault] = (before[0] + injections, before[1] + recoveries)


# -- hooks of pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One process of several hands its figures on."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Those of a process that died are lost, and its tests have failed."""
    for fault, figures in getattr(node, "workeroutput", {}).get("faults", {}).items():
        record(fault, *figures)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The figures, by the driver and never by hand."""
    if FIGURES:
        terminalreporter.section("faults: injections and recoveries")
        for fault, (injections, recoveries) in sorted(FIGURES.items()):
            terminalreporter.line(f"{fault:70s} {injections:4d} injections {recoveries:4d} recoveries")
        failed = len(terminalreporter.stats.get("failed", []))
        if failed:
            terminalreporter.line(
                f"{failed} tests failed: a fault that was injected alone and not recovered is not above"
            )
        total = [sum(column) for column in zip(*FIGURES.values(), strict=True)]
        terminalreporter.line(f"{'total':70s} {total[0]:4d} injections {total[1]:4d} recoveries")

"""What the driver of a sweep asks of an engine."""

from __future__ import annotations

from typing import Protocol

from dcpg.sweep.attempt import Attempt, Outcome


class Engine(Protocol):
    """Carries out attempts, as many side by side as there is room for. Every attempt has exactly one outcome."""

    def submit(self, attempt: Attempt) -> None:
        """Accept an attempt, which starts as soon as there is room."""

    def wait(self, seconds: float) -> list[Outcome]:
        """The outcomes since the last call; waits at most `seconds` for the first one."""

    def describe(self) -> str:
        """Where the runs are carried out and how many side by side, for messages."""

    def stop(self) -> None:
        """Start no further attempt, and ask the running ones to save and end; they all have an outcome (code 75)."""

    def close(self) -> None:
        """Kill whatever still runs, and release all resources."""

"""What the driver of a sweep asks of an engine."""

from __future__ import annotations

from typing import Protocol

from dcpg.sweep.attempt import Order, Outcome


class Engine(Protocol):
    """Carries out attempts, as many side by side as there is room for. Every order has exactly one outcome."""

    def submit(self, order: Order) -> None:
        """Take an order; it begins when there is room."""

    def wait(self, seconds: float) -> list[Outcome]:
        """The attempts that ended since the last call; waits at most so long for the first."""

    def describe(self) -> str:
        """For people: where, and how many side by side."""

    def stop(self) -> None:
        """Ask every attempt to save and end, and begin no other; their outcomes still come (exit code 75)."""

    def close(self) -> None:
        """End everything at once and free what is held."""

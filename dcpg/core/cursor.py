"""The position of the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dcpg.core.method import Optimise


@dataclass
class Cursor:
    """The position of the loop; with the seed it determines every random draw, and where a resume continues."""

    rollout: int = 0  # completed rollouts
    line: int = 0  # 0: tau is not collected yet; k: at the k-th "Optimise" line
    epoch: int = 0
    minibatch: int = 0

    def __str__(self) -> str:
        return f"rollout {self.rollout + 1}, epoch {self.epoch + 1}, minibatch {self.minibatch + 1}"

    def remaining(self, line: int, epochs: int) -> Iterator[tuple[int, int]]:
        """Yield the remaining (epoch, minibatch) of a line, while `advance` moves the cursor."""
        if self.line < line:
            self.line, self.epoch, self.minibatch = line, 0, 0
        while self.line == line and self.epoch < epochs:
            yield self.epoch, self.minibatch
        if self.line == line:
            self.line, self.epoch, self.minibatch = line + 1, 0, 0

    def advance(self, minibatches: int) -> None:
        """Move on by one minibatch; an epoch has `minibatches` of them."""
        self.minibatch += 1
        if self.minibatch == minibatches:
            self.epoch, self.minibatch = self.epoch + 1, 0

    def next_rollout(self) -> None:
        self.rollout, self.line, self.epoch, self.minibatch = self.rollout + 1, 0, 0, 0

    @classmethod
    def restored(cls, plain: Mapping[str, Any], lines: tuple[Optimise, ...]) -> Self:
        """A cursor from JSON data; raise ValueError for a position that a loop over these lines cannot have."""
        cursor = cls(**{name: int(value) for name, value in plain.items()})
        inside = 0 <= cursor.line <= len(lines) + 1 and min(cursor.rollout, cursor.epoch, cursor.minibatch) >= 0
        inside = inside and (cursor.line > 0 or cursor.epoch == cursor.minibatch == 0)
        if not inside or (1 <= cursor.line <= len(lines) and cursor.epoch > lines[cursor.line - 1].epochs):
            raise ValueError(f"the loop cannot be at {dict(plain)}")
        return cursor

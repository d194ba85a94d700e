"""Texts that tell environments of one's own apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from dcpg.config.identity import _stable


def test_long_arrays_inside_of_something_else_make_another_environment() -> None:
    """numpy's text of a long array shows its ends alone."""
    mazes = [np.zeros((64, 64)), np.zeros((64, 64))]
    mazes[1][32, 32] = 1.0
    assert repr(mazes[0]) == repr(mazes[1])
    for wrapped in (lambda maze: {"maze": maze}, lambda maze: [maze], lambda maze: SimpleNamespace(maze=maze)):
        one, same, other = (_stable(wrapped(maze), 3) for maze in (mazes[0], mazes[0].copy(), mazes[1]))
        assert one == same != other
    for plain in ([1, 2], {"a": "b"}, "...", None, 3.5):  # what their text tells is kept as it was
        assert _stable(plain, 3) == repr(plain)

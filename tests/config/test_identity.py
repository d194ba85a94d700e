"""Names and ids of functions that make environments."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dcpg.config.identity import declaration, identity, without_folders


def make(num_envs: int, seed: int, **more: Any) -> None: ...


class Made:
    def __call__(self, num_envs: int, seed: int) -> None: ...


def test_what_a_file_declares() -> None:
    assert declaration(make) is make
    assert declaration(functools.partial(functools.partial(make, level=1), size=2)) is make
    assert declaration(Made()) is Made
    assert identity(functools.partial(make, 2, level=[1]))[1] == f"{__file__}:make(2, level=[1])"


@pytest.mark.parametrize(
    ("place", "without"),
    [
        ("/home/me/env.py:make", "env.py:make"),
        ("/home/my files (old)/a.pyx/env.py:make", "env.py:make"),
        ("/home/a:b/env.py:make(level='/data/set: 1/one.json', n=2)", "env.py:make(level='one.json', n=2)"),
        ("/home/me/env.py:Made.make-1a2b3c4d", "env.py:Made.make-1a2b3c4d"),
        ("/home/me/plugins (new)/declared", "declared"),
        ("/home/me/method.py", "method.py"),
        ("package.envs:make", "package.envs:make"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("ale_py:ALE/Pong-v5", "ale_py:ALE/Pong-v5"),
        ("CartPole-v1", "CartPole-v1"),
        ("", ""),
    ],
)
def test_folders_of_this_machine_are_left_out(place: str, without: str) -> None:
    assert without_folders(place) == without
    assert without_folders(without) == without

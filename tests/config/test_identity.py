"""Names and ids of functions that make environments."""

from __future__ import annotations

import functools
import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dcpg.config.identity import _stable, anonymous, declaration, identity, without_folder


def make(num_envs: int, seed: int, **more: Any) -> None: ...


class Made:
    def __call__(self, num_envs: int, seed: int) -> None: ...


def test_what_a_file_declares() -> None:
    assert declaration(make) is make
    assert declaration(functools.partial(functools.partial(make, level=1), size=2)) is make
    assert declaration(Made()) is Made
    assert identity(functools.partial(make, 2, level=[1]))[1] == f"{__file__}:make(2, level=[1])"


FOLDERS = {
    name: hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    for name in ("/home/me", "/home/a (b): c", "/data/set: 1", "/home/me (x)", "/caf\udce9")
}


@pytest.mark.parametrize(
    ("place", "published"),
    [
        ("/home/me/env.py:make", "{/home/me}/env.py:make"),
        ("/home/a (b): c/env.py:make", "{/home/a (b): c}/env.py:make"),
        (
            "/home/me/env.py:make(a='/data/set: 1/one.json', b=2)",
            "{/home/me}/env.py:make(a='{/data/set: 1}/one.json', b=2)",
        ),
        ("/home/me/env.py:Made.make-1a2b3c4d", "{/home/me}/env.py:Made.make-1a2b3c4d"),
        ("/home/me/declared", "{/home/me}/declared"),
        ("/home/me (x)/maze:make", "{/home/me (x)}/maze:make"),
        ("/home/me/env.py:make('/home/me (x)/one')", "{/home/me}/env.py:make('{/home/me (x)}/one')"),
        ("/caf\udce9/env.py:make", "{/caf\udce9}/env.py:make"),
        ("/home/me/method.py", "{/home/me}/method.py"),
        ("package.envs:make", "package.envs:make"),
        ("package.envs:make('/home/me/one.json')", "package.envs:make('{/home/me}/one.json')"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("ale_py:ALE/Pong-v5", "ale_py:ALE/Pong-v5"),
        ("CartPole-v1", "CartPole-v1"),
        ("", ""),
    ],
)
def test_folders_of_this_machine_are_not_published(place: str, published: str) -> None:
    for folder, digest in FOLDERS.items():
        published = published.replace(f"{{{folder}}}", digest)
    assert anonymous(place) == anonymous(published) == published
    assert without_folder(place) == without_folder(published)


def test_a_file_in_any_folder() -> None:
    assert without_folder("/home/me/env.py:make") == "env.py:make"
    assert without_folder("/home/me/method.py") == "method.py"
    first, second = (without_folder(f"/x/env.py:make('/data/{name}/one.json')") for name in "ab")
    assert first.startswith("env.py:make('")
    assert first != second


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


def made_with(extra: Any) -> str:
    return identity(functools.partial(make, extra=extra))[1]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_tensors_that_numpy_does_not_take_are_told_apart(kind: torch.dtype) -> None:
    """A learned reward: long weights that need gradients, or are rounded."""
    tensor = torch.arange(5000, dtype=torch.float32).to(kind)
    other = tensor.clone()
    other[2500] = -1
    ids = [made_with(x.requires_grad_()) for x in (tensor, tensor.clone(), other)]
    assert ids[0] == ids[1] != ids[2]


def test_arrays_of_objects_have_no_addresses_in_their_ids() -> None:
    tables = [np.array([f"row {i + k}" for i in range(5000)], dtype=object) for k in (0, 0, 1)]
    ids = [made_with(table) for table in tables]
    assert ids[0] == ids[1] != ids[2]
    ids = [made_with(table.reshape(50, 10, 10)) for table in tables]
    assert ids[0] == ids[1] != ids[2]


def test_an_object_that_is_no_array_after_all_has_an_id() -> None:
    class Broken:
        def __array__(self) -> None:
            raise RuntimeError("not now")

        def __repr__(self) -> str:
            return "0 ... 9"

    assert _stable(Broken(), 3) == "0 ... 9"

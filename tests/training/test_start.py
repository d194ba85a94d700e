"""What is refused before a run is estimated, timed or created."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dcpg
from dcpg.errors import BadInput, InUse
from dcpg.machine import estimate
from dcpg.storage.lock import Lock
from dcpg.training import start
from tests.small import SMALL

TINY = {"evaluation.max_steps": 30, "evaluation.episodes": 2, **SMALL}


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever computes what a run needs or how long it takes fails."""
    for owner, name in ((estimate, "costs"), (start, "needs_of"), (start, "training_of")):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("something was estimated"))


@pytest.fixture
def in_use(tmp_path: Path) -> Iterator[Path]:
    """A directory that a process is training in, without a run so far."""
    (tmp_path / "used").mkdir()
    lock = Lock(tmp_path / "used" / "lock")
    lock.acquire()
    yield tmp_path / "used"
    lock.release()


def refused(out: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as error:
        dcpg.train("ppo", "maze", **{"preset": "tiny", "steps": 128, "out": out, "settings": TINY, **options})
    return str(error.value)


@pytest.mark.usefixtures("hasty")
def test_a_directory_that_cannot_be_used_is_refused_first(tmp_path: Path, in_use: Path) -> None:
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'} is a file; choose another out=."
    for place in (tmp_path / "file" / "run", tmp_path / "file" / "a" / "run"):
        assert refused(place) == f"{place} cannot be written to (Not a directory); choose another out=."
    assert f"{in_use} is in use by process {os.getpid()} on " in refused(in_use)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("hasty")
def test_a_directory_without_permission_is_not_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answer is put in."""

    def denied(dir: Path) -> None:
        assert dir == tmp_path
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dcpg.storage.rundir.tempfile.TemporaryFile", denied)
    out = tmp_path / "a" / "run"
    assert refused(out) == f"{out} cannot be written to (Permission denied); choose another out=."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("hasty")
def test_a_missing_extra_and_missing_weights_are_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    settings = {**TINY, "wandb": True}
    assert refused(tmp_path / "run", settings=settings) == "wandb=true needs wandb; run: pip install 'dcpg[wandb]'"
    assert refused(tmp_path / "run", init=tmp_path / "no") == f"There is no run at {tmp_path / 'no'}."
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_in_use_is_not_resumed_nor_timed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = dcpg.train("ppo", "maze", preset="tiny", steps=128, out=tmp_path / "run", settings=TINY)
    lock = Lock(run.directory / "lock")
    lock.acquire()
    request.getfixturevalue("hasty")
    with pytest.raises(InUse, match=f"in use by process {os.getpid()}"):
        dcpg.resume(run, steps=256)
    lock.release()


def test_runs_that_began_with_something_else_have_pages_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stub stands in for Weights & Biases. A resumed run keeps its page."""
    pages: list[str] = []

    class Page:
        def log(self, numbers: Any, step: int) -> None: ...

        def finish(self) -> None: ...

    def init(**given: Any) -> Page:
        pages.append(given["id"])
        return Page()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, __spec__=ModuleSpec("wandb", None)))
    settings = {**TINY, "wandb": True}
    for name, steps, begun in (("first", 128, None), ("same", 256, None), ("other", 128, tmp_path / "first")):
        dcpg.train("ppo", "maze", preset="tiny", steps=steps, out=tmp_path / name, settings=settings, init=begun)
    dcpg.resume(tmp_path / "first", steps=256)
    first, same, other, again = pages
    assert first == same == again  # the steps of a run may change
    assert other != first

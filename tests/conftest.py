"""What several tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from dcpg import api, text
from dcpg.envs import procgen
from dcpg.machine import estimate
from tests.faults.figures import (  # noqa: F401  # hooks of pytest
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

# under nohup it is ignored, all processes inherit that, and runs let it be
signal.signal(signal.SIGHUP, signal.SIG_DFL)


TOGETHER = ("test_sweep_ray.py", "test_notebook.py")  # one cluster at a time; a notebook that is executed once


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types for it
    """Sends the tests of some files to one process, and all others wherever there is time.

    Marks would do (--dist loadgroup), but xdist 3.8 writes groups where pytest 9.2 does not look.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", maxsplit=1)[0]
        return file if file.endswith(TOGETHER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether | None:
    return FilesTogether(config, log) if config.getvalue("dist") == "loadscope" else None


DRAWING = ("test_cli.py", "test_extras.py", "test_outside.py", "test_run.py", "test_plugins.py")


@pytest.fixture(autouse=True, scope="session")
def few_pictures() -> Iterator[None]:
    """The curves of a run that has ended are drawn in the tests of that alone: it takes longer than a small run."""
    finished = api._finished

    def drawn(run: api.Run) -> api.Run:
        return finished(run) if any(name in os.environ["PYTEST_CURRENT_TEST"] for name in DRAWING) else run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_finished", drawn)
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small networks are fastest, and tests steadiest, on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_probe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not time themselves before they start, but in the tests of that."""
    if request.node.path.name not in ("test_display.py", "test_estimate.py"):
        monkeypatch.setattr(estimate, "costs", lambda config, spaces: estimate.Costs(0.1, 0.2, 0.3))


@pytest.fixture(autouse=True)
def no_trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of Procgen are taken untried, but in the tests of that: a second process loads the library's pictures."""
    if request.node.path.name != "test_states.py":
        monkeypatch.setattr(procgen, "try_states", lambda game, mode, states: None)


@pytest.fixture(autouse=True)
def called_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name Python calls, whatever command an earlier test has run in this process."""
    monkeypatch.setattr(text, "_typed_a_command", False)

"""Every covered method equals the authors' code on the fixture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fidelity import COVERED, hold

FIXTURE = Path(__file__).parents[1] / "data" / "reference.npz"


@pytest.mark.parametrize("name", COVERED)
def test_method_equals_the_authors_code(name: str) -> None:
    checks = hold(np.load(FIXTURE, allow_pickle=False), name)
    assert len(checks) > 60
    assert [c for c in checks if not c.holds] == []


def test_every_method_of_the_fixture_is_covered() -> None:
    assert set(COVERED) == {"ppo", "ppg", "daac", "dcpg", "ddcpg"}


def test_the_command_fails_on_a_wrong_figure(tmp_path: Path) -> None:
    data = dict(np.load(FIXTURE, allow_pickle=False))
    data["dcpg/values"] = data["dcpg/values"] * 1.001
    np.savez(tmp_path / "wrong.npz", **data)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fidelity", str(tmp_path / "wrong.npz"), "dcpg"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "values" in done.stdout
    assert "FAILS" in done.stdout

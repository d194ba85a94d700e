"""Names of runs cannot lead out of the sweep's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcpg.errors import BadInput
from dcpg.sweep.attempt import Attempt, run_attempt
from dcpg.sweep.directory import SweepDirectory


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/../b", "a/b", "/etc/passwd", "", "A", "a b", "a;rm", "$(x)", "a\n", "a..b", "-x", ".x",
             "~", "a\0", "a" * 201, "ä", "a|b", "a'b", 'a"b', "a`b", "*"],
)  # fmt: skip
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    directory = SweepDirectory(tmp_path)
    for path in (directory.run, directory.log):
        with pytest.raises(BadInput, match="cannot be the name"):
            path(name)
    with pytest.raises(BadInput):
        run_attempt(Attempt(str(tmp_path), name, {}), lambda: False)
    assert list(tmp_path.iterdir()) == []

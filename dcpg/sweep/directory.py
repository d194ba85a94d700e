"""Where a sweep's files are, all of them inside its directory."""

from __future__ import annotations

import re
from pathlib import Path

from dcpg.errors import BadInput

NAME = re.compile(r"[a-z0-9][a-z0-9+=.,_-]{0,199}")


class Layout:
    """The paths of a sweep."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = root / "sweep.json"
        self.index = root / "index.jsonl"
        self.lock = root / "lock"
        self.nodes = root / "nodes"  # where nodes prove that they see this directory

    def run(self, name: str) -> Path:
        """A run's directory."""
        return self.root / "runs" / checked(name)

    def log(self, name: str) -> Path:
        """What a run's attempts printed."""
        return self.root / "logs" / f"{checked(name)}.log"


def checked(name: str) -> str:
    """A run's name, which cannot lead out of the sweep's directory."""
    if not NAME.fullmatch(name) or ".." in name:
        raise BadInput(f"{name!r} cannot be the name of a run's directory.")
    return name

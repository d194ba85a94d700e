"""Where the files of a sweep are, all of them inside its directory."""

from __future__ import annotations

import re
from pathlib import Path

from dcpg.errors import BadInput

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9+=.,_-]{0,199}")


class SweepDirectory:
    """The paths of a sweep."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan = root / "sweep.json"
        self.index = root / "index.jsonl"
        self.lock = root / "lock"
        self.logs = root / "logs"
        self.nodes = root / "nodes"  # where the nodes of a cluster look for the driver's file

        self.runs = root / "runs"

    def run(self, name: str) -> Path:
        return self.runs / check_name(name)

    def check_own(self, *more: Path) -> None:
        """Refuse links in place of the folders that a sweep writes to: they lead elsewhere."""
        for folder in (self.runs, self.logs, self.nodes, *more):
            if folder.is_symlink():
                raise BadInput(f"{folder} is a link; a sweep's files must be in its own directory.")

    def log(self, name: str) -> Path:
        """What the attempts at a run have printed."""
        return self.logs / f"{check_name(name)}.log"


def check_name(name: str) -> str:
    """The name of a run, unless it could lead out of the sweep's directory."""
    if not RUN_NAME.fullmatch(name) or ".." in name:
        raise BadInput(f"{name!r} cannot be the name of a run's directory.")
    return name

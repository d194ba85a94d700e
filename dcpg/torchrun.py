"""The variables that torchrun sets for each process of a run; without torchrun there is one process."""

from __future__ import annotations

import os


def processes() -> int:
    """How many processes torchrun started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_here() -> int:
    """How many processes of this run are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process prints messages and writes files."""
    return os.environ.get("RANK", "0") == "0"

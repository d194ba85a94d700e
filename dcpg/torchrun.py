"""What torchrun tells each process of a run through its environment; without it, there is one."""

from __future__ import annotations

import os


def processes() -> int:
    """How many processes torchrun started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_here() -> int:
    """How many of them are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process is the one that speaks and writes."""
    return os.environ.get("RANK", "0") == "0"

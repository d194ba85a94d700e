"""Memory limits from the control groups (version 2) of this process, such as those of a container or a batch job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


MEMBERSHIP = Path("/proc/self/cgroup")


def _own_group() -> Path | None:
    try:
        name = next(line[3:] for line in MEMBERSHIP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    return ROOT / name.lstrip("/")


def room() -> Iterator[float]:
    """Free bytes of each group that has a limit, from this process's group up to the root."""
    group = _own_group()
    if group is None:
        return
    for folder in (group, *group.parents):
        try:
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                used = int((folder / "memory.current").read_text()) - int(stat["inactive_file"])
                yield float(int(limit) - used)
        except (OSError, ValueError, KeyError):
            continue
        if folder == ROOT:
            return


def kills() -> int:
    """How many processes of this group were killed for lack of memory; 0 if the system does not count them."""
    group = _own_group()
    if group is None:
        return 0
    try:
        events = (group / "memory.events").read_text().splitlines()
        return int(next(line.split()[1] for line in events if line.startswith("oom_kill ")))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0

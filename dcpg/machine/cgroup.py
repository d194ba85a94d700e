"""What the control groups (version 2) of this process say about memory: a container's or a job's limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


MEMBERSHIP = Path("/proc/self/cgroup")


def _own() -> Path | None:
    try:
        name = next(line[3:] for line in MEMBERSHIP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    return ROOT / name.lstrip("/")


def room() -> Iterator[float]:
    """Bytes left in each group that has a limit, from this process's own up to the root."""
    group = _own()
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
    """How many processes of this group the system has killed for want of memory; 0 where nobody counts."""
    group = _own()
    if group is None:
        return 0
    try:
        events = (group / "memory.events").read_text().splitlines()
        return int(next(line.split()[1] for line in events if line.startswith("oom_kill ")))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0

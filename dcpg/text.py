"""Numbers as text for messages."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A duration in seconds, minutes, hours or days, whichever fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def gigabytes(size: float) -> str:
    """Bytes in GB, with two decimals below one."""
    return f"{size / 1e9:.2f} GB" if size < 1e9 else f"{size / 1e9:.1f} GB"

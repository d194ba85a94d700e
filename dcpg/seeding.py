"""Every random draw of the project comes from a generator keyed by its purpose.

A key is (seed, name, position...), so a cursor alone restores every generator, no generator state is ever
stored, and the order in which draws happen changes nothing.
"""

from __future__ import annotations

import hashlib

import torch


def key(seed: int, name: str, *position: int | str) -> int:
    """A 63-bit hash of the whole key."""
    text = "\x1f".join([str(seed), name, *map(str, position)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, name: str, *position: int | str) -> torch.Generator:
    """A CPU generator for one purpose at one position of the run."""
    return torch.Generator().manual_seed(key(seed, name, *position))


def rand_seed(seed: int, name: str, *position: int | str) -> int:
    """A 31-bit seed, as Procgen expects."""
    return key(seed, name, *position) % (2**31 - 1)

"""What `auto` stands for on a given device; `dcpg/machine/automatic.py` finds out which device it is."""

from __future__ import annotations

import dataclasses
import math

from dcpg.config.schema import Config, Machine
from dcpg.core.encoders import is_image
from dcpg.settings import dotted

# Frames that go through the encoder at once on a CPU, by the pixels of a frame and the number of threads (the last
# column: or more). Measured; docs/performance.md has the figures.
CHUNKS: dict[int, dict[int, int]] = {
    64 * 64: {1: 120, 2: 120},
    32 * 32: {1: 480, 2: 480},
    16 * 16: {1: 1024, 2: 1024},
}
AUTOMATIC = {"machine.device": "auto", "machine.precision": "auto", "machine.chunk": 0}
FLAT = 1024  # observations that are not images


def cpu_chunk(shape: tuple[int, ...], threads: int) -> int:
    """The chunk for frames of this shape: the table's for the next larger frame, fewer frames if none is as large."""
    if not is_image(shape):
        return FLAT
    pixels = math.prod(shape[:2])
    largest = max(CHUNKS)
    if pixels > largest:
        return max(_by_threads(largest, threads) * largest // pixels, 1)
    return _by_threads(min(size for size in CHUNKS if size >= pixels), threads)


def _by_threads(pixels: int, threads: int) -> int:
    row = CHUNKS[pixels]
    return row[min(threads, max(row))]


def wants_bf16(config: Config, shape: tuple[int, ...]) -> bool:
    """Whether `machine.precision=auto` means bfloat16 on a device where it is faster."""
    return config.preset == "laptop" and is_image(shape)


def is_automatic(name: str, value: object) -> bool:
    """Whether a setting is left to the start of a run; `machine.threads` is not, which `resolve` counts."""
    return value == AUTOMATIC.get(name)


def is_settled(config: Config) -> bool:
    """Whether nothing is left to the start of the run."""
    return not any(is_automatic(name, value) for name, value, _ in dotted(config))


def as_in(config: Config, machine: Machine) -> Config:
    """The configuration with everything that is automatic as in another run."""
    own = config.machine
    settled = dataclasses.replace(
        own,
        device=machine.device if own.device == "auto" else own.device,
        precision=machine.precision if own.precision == "auto" else own.precision,
        chunk=own.chunk or machine.chunk,
    )
    return dataclasses.replace(config, machine=settled)

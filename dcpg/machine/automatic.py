"""Resolves what is automatic in a configuration: the device, the precision and the chunk, once, at a run's start.

config.json holds the resolved values, and a resumed run keeps them. Nothing is timed.
"""

from __future__ import annotations

import torch

from dcpg.config.automatic import as_in, cpu_chunk, is_settled, wants_bf16
from dcpg.config.build import known_spaces
from dcpg.config.schema import MOST_FRAMES, Config, Machine
from dcpg.envs.base import Spaces
from dcpg.machine.devices import bf16_pays, device_named, device_of
from dcpg.machine.needs import frame_bytes, frames_at_once
from dcpg.torchrun import processes

FOR_CHUNKS = 0.5  # share of a GPU's free memory that a chunk's graph may take


def settled(config: Config, spaces: Spaces | None = None) -> Config:
    """The configuration with nothing automatic left; your own environment must be made first, for its spaces."""
    spaces = spaces or known_spaces(config)
    if spaces is None or is_settled(config):
        return config
    device = device_named(config.machine.device)
    if device.type == "cuda" and not torch.cuda.is_available():  # a sweep's driver without a GPU: the node resolves it
        return config
    precision = "bf16" if wants_bf16(config, spaces.shape) and bf16_pays(device) else "fp32"
    config = as_in(config, Machine(device=device.type, precision=precision))
    return config if config.machine.chunk else as_in(config, Machine(chunk=chunk_of(config, spaces, device)))


def chunk_of(config: Config, spaces: Spaces, device: torch.device) -> int:
    """On a CPU what the table says; on a GPU the whole minibatch, or what half of the free memory holds."""
    if device.type == "cpu":
        return cpu_chunk(spaces.shape, config.machine.threads)
    free, total = torch.cuda.mem_get_info(device_of(config))
    # ranks must agree on the chunk, and each of them changes what is free
    return cuda_chunk(config, spaces, free if processes() == 1 else total)


def cuda_chunk(config: Config, spaces: Spaces, free: float) -> int:
    """The frames of the largest minibatch, as far as the graph of them fits into a share of the free memory."""
    fits = int(FOR_CHUNKS * free / frame_bytes(config, spaces))
    return max(min(frames_at_once(config), fits, MOST_FRAMES), 1)

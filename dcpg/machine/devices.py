"""Chooses the torch device of a run."""

from __future__ import annotations

import os

import torch

from dcpg.config.schema import Config
from dcpg.errors import BadInput
from dcpg.torchrun import processes_here


def device_of(config: Config) -> torch.device:
    """The device that `machine.device` names; one that this machine does not have is refused."""
    name = config.machine.device
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"machine.device must be cpu, cuda or cuda:N; got {name!r}.") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"machine.device must be cpu, cuda or cuda:N; got {name!r}.")
    if device.type == "cuda" and processes_here() > 1:
        if device.index is not None:
            raise BadInput(f"machine.device is {name!r}, but torchrun gives each process its own; use cuda.")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"machine.device is {name!r}, but torch sees {torch.cuda.device_count()} cuda devices; use cpu.")
    return device

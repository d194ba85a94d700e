"""The memory and disk that a run may need, and whether they are free.

The figures are upper bounds for Procgen: B is counted as if its frames compressed as badly as those of the worst game.
Images of the user's own environment may compress worse; other observations are counted uncompressed.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from dcpg.config.build import network_shapes
from dcpg.config.schema import Config
from dcpg.core.draws import draw_negatives, draw_wrong_actions_from_B
from dcpg.core.encoders import encoder_class
from dcpg.core.loader import AHEAD
from dcpg.core.method import Method, Optimise, Tau
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput, OutOfMemory
from dcpg.machine import cgroup
from dcpg.machine.devices import device_named, device_of
from dcpg.machine.memory import address_limit, address_room
from dcpg.text import for_audience, gigabytes, given
from dcpg.torchrun import processes, processes_here

PROGRAM = 0.85e9  # bytes of the interpreter, torch and Procgen's assets


CUDA_BUILD = 0.5e9  # bytes of the libraries that a torch for CUDA loads, even where there is no GPU


# bytes of address space: of libraries that are loaded late, of a thread, and of all that any command still loads
LIBRARIES, THREAD, LATER = 0.3e9, 0.1e9, 0.6e9


ENVIRONMENT = 0.2e6  # bytes of one Procgen environment


COMPRESSION = 9  # zstd's lowest compression ratio of segments on any of the 16 games


KEPT = 1.1  # bytes that the allocator holds for each byte in use


CHECKPOINTS = 4  # three that are kept and one that is being written


STATE = 2**21  # bytes that the state of one environment may have
SMALL = 2**26  # bytes of a checkpoint for all that does not grow with a setting


ROW = 20_000  # bytes that a rollout adds to metrics.jsonl, timing.jsonl and TensorBoard's file


@dataclass(frozen=True)
class Needs:
    """Upper bounds of what a run needs, in bytes."""

    memory: float  # of this machine
    buffer: float  # the part of `memory` that a full B takes
    device: float  # of the accelerator; 0 on the CPU
    disk: float
    states: int = 0  # of environments in a checkpoint
    checkpoint: int = 0  # the largest that may be read: a larger one is not this run's

    def sentence(self) -> str:
        buffer = f" (B: {gigabytes(self.buffer)})" if self.buffer >= 5e7 else ""
        device = f", {gigabytes(self.device)} on the device" if self.device else ""
        return f"at most {gigabytes(self.memory)} of memory{buffer}{device} and {gigabytes(self.disk)} of disk"


def needs_of(config: Config, spaces: Spaces) -> Needs:
    """What a run may need on this machine; its chunk and precision must be settled."""
    method = config.declared()
    network = network_shapes(config, spaces.shape, spaces.actions)
    weights = 4 * sum(p.numel() for p in network.parameters())
    moments = 2 * weights * len(method.adams)
    frames = config.rollout_size * math.prod(spaces.single) * spaces.dtype.itemsize
    tau = frames / (COMPRESSION if spaces.dtype == np.uint8 else 1) + 64 * config.rollout_size
    phase = tau + 4 * spaces.actions * config.rollout_size
    buffer = max(method.lengths(config.rollouts)) * phase if method.auxiliary_phase else 0.0
    device = device_named(config.machine.device).type  # which the driver of a sweep need not have
    graph, gathered = map(max, zip(*(_step_bytes(config, method, line, spaces) for line in method.lines), strict=True))
    opened = (AHEAD[device] + 1) * gathered  # this minibatch and those of B that are opened ahead
    computing = 2 * weights + moments + KEPT * (graph + opened)
    environments = config.env.num_envs / processes() + config.evaluation.most_episodes
    program = PROGRAM + (CUDA_BUILD if torch.version.cuda else 0)
    own = program + ENVIRONMENT * environments + (frames + tau + buffer) / processes()
    on_device = device != "cpu"
    saved = weights + moments
    milestones = config.steps // config.keep_every if config.keep_every else 0
    # a checkpoint may be of a longer run with longer phases, which is resumed with fewer steps
    longest = max(method.lengths(max(config.rollouts, 1000)))
    rollouts = 1 + (longest if method.auxiliary_phase else 0)
    states = most_states(config.env.num_envs, math.prod(spaces.shape) * spaces.dtype.itemsize)
    stored = config.env.num_envs * (config.rollout_length + spaces.stack) * math.prod(spaces.single)
    uncompressed = rollouts * (stored * spaces.dtype.itemsize + (64 + 4 * spaces.actions) * config.rollout_size)
    return Needs(
        memory=processes_here() * (own + (2 * (saved + opened) if on_device else computing + saved)),
        buffer=buffer,
        device=computing + frames / processes() if on_device else 0.0,
        # a phase's first checkpoint is written before the previous phase's is removed, so B may be on disk twice
        disk=CHECKPOINTS * saved + 2 * (tau + buffer) + milestones * weights + config.rollouts * ROW,
        states=states,
        # twice, because a checkpoint that is refused wrongly is lost
        checkpoint=int(2 * (saved + uncompressed) + states + SMALL),
    )


def most_states(num_envs: int, observation: int) -> int:
    """Bytes that the states of environments and of their level chooser may have, with the last observations."""
    return (STATE + 2 * observation) * (num_envs + 1)


def _step_bytes(config: Config, method: Method, line: Optimise, spaces: Spaces) -> tuple[float, float]:
    """Bytes of one optimiser step: the graph of one chunk or of the whole minibatch, and the frames of a minibatch."""
    samples, frames = _minibatch(config, line)
    chunk = min(config.machine.chunk, samples)
    held, passing = _graph_bytes(config, spaces)
    graph = _views(method, line) * len(method.networks) * (frames if line.couples else chunk) * held
    gathered = _views(method, line) * frames * math.prod(spaces.shape) * spaces.dtype.itemsize
    return graph + chunk * passing, gathered


def _minibatch(config: Config, line: Optimise) -> tuple[int, int]:
    """The samples of a line's minibatch, and its frames, of which some only serve as s'."""
    if isinstance(line.data, Tau):
        samples = math.ceil(config.rollout_size / line.data.minibatches)
        return samples, samples
    samples = line.data.segments * config.rollout_length
    return samples, samples + line.data.segments


def _views(method: Method, line: Optimise) -> int:
    """How often each frame goes through an encoder: twice if there is another view of it, or another state."""
    return 2 if method.augmented or line.draw not in (None, draw_negatives, draw_wrong_actions_from_B) else 1


def _graph_bytes(config: Config, spaces: Spaces) -> tuple[float, float]:
    """Bytes that one frame's graph holds, and those that its backward pass needs temporarily."""
    size = 2 if config.machine.precision == "bf16" else 4
    return encoder_class(spaces.shape, config.network).graph_bytes(spaces.shape, config.network, size)


def frames_at_once(config: Config) -> int:
    """The frames of the largest minibatch of any line."""
    return max(_minibatch(config, line)[1] for line in config.declared().lines)


def frame_bytes(config: Config, spaces: Spaces) -> float:
    """Bytes of a training pass for each frame of a chunk, in the line that needs most."""
    method, (held, passing) = config.declared(), _graph_bytes(config, spaces)
    return max(_views(method, line) for line in method.lines) * len(method.networks) * held + passing


def check_room(needs: Needs, config: Config, directory: Path) -> None:
    """Refuse a run that needs more memory or disk than is free, with advice, unless `check_room` is false."""
    missing = missing_room(needs, config, directory) if config.check_room else []
    if missing:
        smaller = for_audience("--preset laptop", 'preset="laptop"')
        raise BadInput(
            f"There is no room for this run: {'; '.join(missing)}. Make room, or make the run smaller ({smaller}, "
            "or lower env.num_envs, rollout_length, algorithm.N_pi or machine.chunk), or start it anyway with "
            f"{given('check_room', 'false')}."
        )


def missing_room(needs: Needs, config: Config, directory: Path) -> list[str]:
    """What is too scarce for a run, one clause per resource."""
    device, missing = device_of(config), []
    loaded = processes_here() * min(psutil.Process().memory_info().rss, PROGRAM)  # already part of what is needed
    free = max(free_memory() + loaded, 0.0)
    if needs.memory > free:
        buffer = f" (B alone {gigabytes(needs.buffer)})" if needs.buffer >= 5e7 else ""
        missing.append(f"it may need {gigabytes(needs.memory)} of memory{buffer} and {gigabytes(free)} are free")
    own, room = needs.memory / processes_here(), address_room() - _reserved(config) + loaded / processes_here()
    if own > room:  # a limit of each process, not of the machine
        missing.append(
            f"a process may need {gigabytes(own)} of memory and {gigabytes(max(room, 0.0))} are free under the limit "
            f"of its address space, {gigabytes(address_limit())} (ulimit -v)"
        )
    if device.type == "cuda" and needs.device > (free := torch.cuda.mem_get_info(device)[0]):
        missing.append(f"it may need {gigabytes(needs.device)} of memory on {device} and {gigabytes(free)} are free")
    if needs.disk > (free := max(free_disk(directory), 0.0)):
        missing.append(f"it may need {gigabytes(needs.disk)} of disk at {directory} and {gigabytes(free)} are free")
    return missing


def _reserved(config: Config) -> float:
    """Bytes of address space that are mapped and hardly used: of libraries, and of each thread."""
    return LIBRARIES + config.machine.threads * THREAD


def check_address_space() -> None:
    """Refuse to begin under a limit in which Procgen does not fit: without memory its library ends the process."""
    room = address_room()
    if room < LATER:
        raise OutOfMemory(
            f"There is no room for the program: under the limit of its address space, {gigabytes(address_limit())} "
            f"(ulimit -v), {gigabytes(max(room, 0.0))} are free, and it takes {gigabytes(LATER)} more. Raise the limit."
        )


def free_memory() -> float:
    """Bytes that this process can still allocate: the machine's free memory, or less under a container's limit."""
    return min([float(psutil.virtual_memory().available), *cgroup.room()])


def free_disk(directory: Path, held: bool = True) -> float:
    """Free bytes for a directory that may not exist yet; with `held`, its present files count as free."""
    there = next(place for place in (directory.absolute(), *directory.absolute().parents) if os.path.exists(place))
    size = 0
    if held and os.path.isdir(directory):
        for file in directory.rglob("*"):
            with contextlib.suppress(OSError):  # it may be removed meanwhile
                size += file.stat().st_size if file.is_file() else 0
    return float(shutil.disk_usage(there).free + size)

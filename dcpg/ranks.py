"""The processes of one run: one, or as many as torchrun started, each with its own environments and device.

With a single process, every operation here is the identity. Several ranks sum gradients and moments, gather the inputs
of the reward normaliser and the episode counter, and agree on when to save and stop. Control messages use gloo on the
CPU, so no accelerator waits for them; nothing is pickled.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dcpg import errors
from dcpg.errors import BadInput, DcpgError, RankLost

T = TypeVar("T")


PATIENCE = timedelta(hours=1)  # the longest wait is for the first rank's evaluation, which is much shorter


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of processes of the run."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the process group until this process ends; gradients use NCCL on CUDA devices and gloo on the CPU."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            # Functions of this module take the group that exists when it is imported as a default value. Imported after
            # the group was made (by torch.optim, say), they would keep it alive, and its threads, past _leave.
            importlib.import_module("torch.distributed.nn")
            gradients = f",cuda:{dist.Backend.NCCL}" if device.type == "cuda" else ""
            try:
                dist.init_process_group(f"cpu:gloo{gradients}", timeout=PATIENCE)
            except (RuntimeError, ValueError) as error:
                raise BadInput(f"The processes of this run did not find each other ({error}); use torchrun.") from None
            atexit.register(_leave)
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes the files of the run."""
        return self.rank == 0

    @property
    def suffix(self) -> str:
        """The suffix of files that belong to this rank alone."""
        return "" if self.alone else f".rank{self.rank}"

    def slice(self, num_envs: int) -> slice:
        """The indices of this rank's environments among those of the whole run."""
        each = num_envs // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    # -- collective operations: every rank must call these at the same point of the loop

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if not self.alone:
            with _collective():
                dist.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any rank has raised it."""
        if self.alone:
            return list(flags)
        return [count > 0 for count in self.total(torch.tensor(flags, dtype=torch.int32)).tolist()]

    def columns(self, mine: Tensor) -> Tensor:
        """Gather [T, n] of each rank's environments into [T, N] of all environments, in order."""
        if self.alone:
            return mine
        sent = mine.to(torch.uint8) if mine.dtype == torch.bool else mine.contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with _collective():
            dist.all_gather(parts, sent)
        return torch.cat(parts, 1).to(mine.dtype)

    def together(self, work: Callable[[], T]) -> list[T]:
        """Run `work` on every rank and gather the results (JSON data); an error on one rank is raised on all."""
        if self.alone:
            return [work()]
        mine: dict[str, Any]
        try:
            mine = {"result": work()}
        except OSError as error:
            mine = {"os": error.errno, "message": error.strerror or str(error)}
        except DcpgError as error:
            mine = {"dcpg": type(error).__name__, "message": str(error)}
        everyone = self._gather(mine)
        for one in everyone:
            if "os" in one:
                raise OSError(one["os"], one["message"])
            if "dcpg" in one:
                raise getattr(errors, one["dcpg"])(one["message"])
        return [one["result"] for one in everyone]

    def first_does(self, work: Callable[[], T]) -> T:
        """Run `work` on the first rank only; the others wait for its result or error."""
        return self.together(lambda: work() if self.first else None)[0]  # type: ignore[return-value]

    def _gather(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _collective():
            dist.all_gather(lengths, torch.tensor([len(data)]))
            longest = int(max(lengths))
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        return [json.loads(bytes(part[: int(n)].numpy().tobytes())) for part, n in zip(parts, lengths, strict=True)]


ALONE = Ranks()


def _leave() -> None:
    """End the threads of the group while Python still runs.

    A thread that is slow to let go of its last tensor would otherwise ask a finished interpreter for its lock, which
    ends the process with SIGABRT after all work is done.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def _collective() -> Iterator[None]:
    """Raise RankLost if a collective operation fails: then another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(
            f"Another process of this run is gone ({str(error).splitlines()[0][:200]}). Nothing was saved now; the "
            "last complete checkpoint is kept."
        ) from None


@dataclass(frozen=True)
class Group:
    """A group of environments; every minibatch takes equally from each group (`shards`)."""

    key: tuple[int, ...]  # part of the key of its random draws; empty if there is one group
    envs: range  # indices among this process's environments


def groups(shards: int, num_envs: int, ranks: Ranks) -> tuple[Group, ...]:
    """The groups of this process: all groups in a single process, otherwise the group of its rank."""
    each = num_envs // shards
    if shards == 1:
        return (Group((), range(num_envs)),)
    if not ranks.alone:
        return (Group((ranks.rank,), range(each)),)
    return tuple(Group((g,), range(g * each, (g + 1) * each)) for g in range(shards))

"""The processes of one run: one, or as many as torchrun started, each with its own environments and device.

Alone, every operation here is the identity. Several ranks sum gradients and moments, gather what the reward normaliser
and the episode counter must see, and agree on when to save and to stop. Control goes over gloo on the CPU, so no
accelerator waits for it; nothing is pickled.
"""

from __future__ import annotations

import contextlib
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


PATIENCE = timedelta(hours=1)  # an evaluation of the first rank, for which the others wait, is much shorter


@dataclass(frozen=True)
class Ranks:
    """This process's place among those of the run."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Find the others; the run's device decides how gradients travel."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            gradients = f",cuda:{dist.Backend.NCCL}" if device.type == "cuda" else ""
            try:
                dist.init_process_group(f"cpu:gloo{gradients}", timeout=PATIENCE)
            except (RuntimeError, ValueError) as error:
                raise BadInput(f"The processes of this run did not find each other ({error}); use torchrun.") from None
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def alone(self) -> bool:
        """Whether there is one process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    @property
    def suffix(self) -> str:
        """What marks a file as this rank's own."""
        return "" if self.alone else f".rank{self.rank}"

    def slice(self, num_envs: int) -> slice:
        """This rank's environments among all of the run."""
        each = num_envs // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    # -- together: every rank must call these at the same place of the loop

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if not self.alone:
            with _peers():
                dist.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any rank has raised it."""
        if self.alone:
            return list(flags)
        return [count > 0 for count in self.total(torch.tensor(flags, dtype=torch.int32)).tolist()]

    def columns(self, mine: Tensor) -> Tensor:
        """[T, n] of this rank's environments -> [T, N] of all, in their order."""
        if self.alone:
            return mine
        sent = mine.to(torch.uint8) if mine.dtype == torch.bool else mine.contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        with _peers():
            dist.all_gather(parts, sent)
        return torch.cat(parts, 1).to(mine.dtype)

    def together(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives on every rank (plain data); what it raises on one, all raise."""
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
        """Only the first rank does it; the others wait, and learn what came of it."""
        return self.together(lambda: work() if self.first else None)[0]  # type: ignore[return-value]

    def _gather(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _peers():
            dist.all_gather(lengths, torch.tensor([len(data)]))
            longest = int(max(lengths))
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        return [json.loads(bytes(part[: int(n)].numpy().tobytes())) for part, n in zip(parts, lengths, strict=True)]


ALONE = Ranks()


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """A collective that cannot be completed means that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(
            f"Another process of this run is gone ({str(error).splitlines()[0][:200]}). Nothing was saved now; the "
            "last complete checkpoint stands."
        ) from None


@dataclass(frozen=True)
class Group:
    """One of the groups of environments that every minibatch takes equally from (`shards`)."""

    key: tuple[int, ...]  # of its random draws; empty if it is the only one
    envs: range  # among this process's environments


def groups(shards: int, num_envs: int, ranks: Ranks) -> tuple[Group, ...]:
    """The groups of this process: all of them, or that of its rank."""
    each = num_envs // shards
    if shards == 1:
        return (Group((), range(num_envs)),)
    if not ranks.alone:
        return (Group((ranks.rank,), range(each)),)
    return tuple(Group((g,), range(g * each, (g + 1) * each)) for g in range(shards))

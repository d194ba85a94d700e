"""Minibatches of tau or B, by epoch and number: every random draw is keyed by the position of the loop."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.buffer import Buffer
from dcpg.core.method import Optimise
from dcpg.core.rollout import Rollout
from dcpg.ranks import ALONE, Ranks, groups
from dcpg.seeding import generator

AHEAD = {"cpu": 1, "cuda": 4}  # minibatches of B that are opened ahead, each by a thread of its own


class Loader:
    """Makes the minibatches of a line. With shards, every minibatch takes equally from each group of environments."""

    def __init__(
        self,
        *,
        seed: int,
        num_envs: int,  # in this process
        actions: int,
        device: torch.device,
        shards: int = 1,
        ranks: Ranks = ALONE,
        ahead: int = 0,  # 0: as many as suit the device
    ) -> None:
        self.seed, self.actions, self.device, self.ranks = seed, actions, device, ranks
        self.groups = groups(shards, num_envs * ranks.size, ranks)
        self.ahead = ahead or AHEAD[device.type]
        self.opener = ThreadPoolExecutor(self.ahead, "segments")  # opens minibatches of B while the current one trains

    def open(self, line: Optimise, data: Rollout | Buffer, rollout: int, number: int) -> Minibatches:
        """The minibatches of the `number`-th line in a rollout."""
        return Minibatches(self, line, data, (rollout, number))

    def count(self, line: Optimise, data: Rollout | Buffer) -> int:
        """The number of minibatches per epoch, over all ranks."""
        return line.data.minibatches_of(len(data) * self.ranks.size)

    def generators(self, name: str, *place: int) -> list[torch.Generator]:
        """One generator per group, keyed by its purpose and the position of the loop."""
        return [generator(self.seed, name, *place, *group.key) for group in self.groups]

    def staged(self, batch: Batch) -> Batch:
        """A batch on the CPU, ready for its copy to the device."""
        return batch.pinned() if self.device.type == "cuda" else batch


class Minibatches:
    """Every sample of some data once per epoch, in an order that depends on (rollout, line, epoch)."""

    def __init__(self, loader: Loader, line: Optimise, data: Rollout | Buffer, place: tuple[int, int]) -> None:
        self.loader, self.line, self.place = loader, line, place
        self.parts = [data.part(group.envs) for group in loader.groups]
        self.count = loader.count(line, data)
        self.opens_ahead = isinstance(data, Buffer)
        self._epoch, self._splits = -1, list[tuple[Tensor, ...]]()
        self._opening: dict[int, Future[list[Batch]]] = {}

    def __len__(self) -> int:
        """The number of minibatches per epoch."""
        return self.count

    def load(self, epoch: int, minibatch: int) -> list[Batch]:
        """One batch per group, with what the line draws, on the device. Minibatches must be loaded in order."""
        loader, place = self.loader, (*self.place, epoch)
        if self._epoch != epoch:
            generators = loader.generators("order", *place)
            orders = [part.order(g) for part, g in zip(self.parts, generators, strict=True)]
            self._epoch, self._splits = epoch, [order.tensor_split(self.count) for order in orders]
        batches = self._opened_ahead(minibatch) if self.opens_ahead else self._open(minibatch)
        if self.line.draw is not None:
            drawing = zip(batches, self.parts, loader.generators("draw", *place, minibatch), strict=True)
            batches = [self.line.draw(batch, part, g, loader.actions) for batch, part, g in drawing]
        return [loader.staged(batch).to(loader.device) for batch in batches]

    def _opened_ahead(self, minibatch: int) -> list[Batch]:
        for number in range(minibatch, min(minibatch + self.loader.ahead + 1, self.count)):
            if number not in self._opening:
                self._opening[number] = self.loader.opener.submit(self._open, number)
        return self._opening.pop(minibatch).result()

    def _open(self, minibatch: int) -> list[Batch]:
        chosen = zip(self.parts, self._splits, strict=True)
        return [self.loader.staged(part.minibatch(split[minibatch])) for part, split in chosen]

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
    ) -> None:
        self.seed, self.actions, self.device, self.ranks = seed, actions, device, ranks
        self.groups = groups(shards, num_envs * ranks.size, ranks)
        self.opener = ThreadPoolExecutor(1, "segments")  # opens the next minibatch of B while the current one trains

    def open(self, line: Optimise, data: Rollout | Buffer, rollout: int, number: int) -> Minibatches:
        """The minibatches of the `number`-th line in a rollout."""
        return Minibatches(self, line, data, (rollout, number))

    def generators(self, name: str, *place: int) -> list[torch.Generator]:
        """One generator per group, keyed by its purpose and the position of the loop."""
        return [generator(self.seed, name, *place, *group.key) for group in self.groups]


class Minibatches:
    """Every sample of some data once per epoch, in an order that depends on (rollout, line, epoch)."""

    def __init__(self, loader: Loader, line: Optimise, data: Rollout | Buffer, place: tuple[int, int]) -> None:
        self.loader, self.line, self.place = loader, line, place
        self.parts = [data.part(group.envs) for group in loader.groups]
        self.count = line.data.minibatches_of(len(data) * loader.ranks.size)
        self.opens_ahead = isinstance(data, Buffer)
        self._epoch, self._splits = -1, list[tuple[Tensor, ...]]()
        self._ahead: Future[list[Batch]] | None = None

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
        batches = self._ahead.result() if self._ahead is not None else self._open(minibatch)
        more = self.opens_ahead and minibatch + 1 < self.count
        self._ahead = loader.opener.submit(self._open, minibatch + 1) if more else None
        if self.line.draw is not None:
            drawing = zip(batches, self.parts, loader.generators("draw", *place, minibatch), strict=True)
            batches = [self.line.draw(batch, part, g, loader.actions) for batch, part, g in drawing]
        return [batch.to(loader.device) for batch in batches]

    def _open(self, minibatch: int) -> list[Batch]:
        return [part.minibatch(split[minibatch]) for part, split in zip(self.parts, self._splits, strict=True)]

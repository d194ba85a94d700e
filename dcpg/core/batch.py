"""A minibatch, with named tensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """b samples. Fields that a line does not need stay empty.

    The first b frames are the states s_t; frames after them only serve as s' (the last frame of each segment).
    """

    frames: Tensor  # env dtype [b or more, *observation]
    valid: Tensor  # float32 [b], 0 for a dead step
    returns: dict[str, Tensor]  # value head -> value target R_t, float32 [b]
    # from tau
    rows: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [b], each sample's row in the flat [T, N]
    actions: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [b]
    log_probs: Tensor = field(default_factory=lambda: torch.empty(0))  # log pi_old(a|s), float32 [b]
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))  # normalised over the rollout, float32 [b]
    old_values: dict[str, Tensor] = field(default_factory=dict)  # value head -> V_old(s_t), float32 [b]
    # from B
    old_log_policy: Tensor = field(default_factory=lambda: torch.empty(0))  # log pi_old(.|s), float32 [b, actions]
    next_rows: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [b], the row of frames that is s_{t+1}
    # float32 [b], 1 where s_{t+1} belongs to another episode
    crosses: Tensor = field(default_factory=lambda: torch.empty(0))
    segments: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [S], the segments of B in this batch
    # drawn
    augmentation: dict[str, Tensor] = field(default_factory=dict)  # the augmentation in use -> its parameters [b, k]
    # another state of each state's level, or a wrong s' that is not in this batch
    other_frames: Tensor = field(default_factory=lambda: torch.empty(0))
    other_is_earlier: Tensor = field(default_factory=lambda: torch.empty(0))  # float32 [b], 1 if that one is earlier
    # int64 [b], the sample whose s' is used as the wrong s'
    negative_next: Tensor = field(default_factory=lambda: torch.empty(0))
    negative_actions: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [b], the wrong actions

    def __len__(self) -> int:
        return self.valid.shape[0]

    def chunks(self, size: int) -> Iterator[Batch]:
        """The batch in consecutive parts of at most `size` samples and nearly equal sizes."""
        parts = math.ceil(len(self) / size)
        if parts <= 1:
            yield self
            return
        for k in range(parts):
            part = slice(len(self) * k // parts, len(self) * (k + 1) // parts)
            yield self._map(lambda x, part=part: x[part] if x.numel() else x)

    def pinned(self) -> Self:
        """The batch in page-locked memory, from which a copy to a GPU does not wait."""
        return self._map(lambda x: x.pin_memory() if x.device.type == "cpu" else x)

    def to(self, device: torch.device) -> Self:
        return self if device.type == "cpu" else self._map(lambda x: x.to(device, non_blocking=True))

    def _map(self, function: Any) -> Self:
        changed: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            changed[f.name] = {k: function(v) for k, v in value.items()} if isinstance(value, dict) else function(value)
        return dataclasses.replace(self, **changed)

"""A rollout tau: T steps of N environments, with named tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dcpg.core.batch import Batch


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments. Nothing is written to it once its targets are computed."""

    frames: Tensor  # env dtype [T+1, N, *observation]
    actions: Tensor  # int64 [T, N]
    log_probs: Tensor  # float32 [T, N], log pi(a|s) while acting
    values: dict[str, Tensor]  # value head -> V(s_t) while acting, float32 [T+1, N]
    final_values: dict[str, Tensor]  # value head -> V at a truncated episode's last observation, else 0, float32 [T, N]
    raw_rewards: Tensor  # float32 [T, N]
    dones: Tensor  # bool [T, N], the step ended an episode
    valid: Tensor  # bool [T, N], False for a dead step
    crosses: Tensor  # bool [T, N], frames[t+1] is not the successor of frames[t]
    levels: Tensor  # int64 [T, N], the level of s_t
    rewards: Tensor = field(default_factory=lambda: torch.empty(0))  # normalised, float32 [T, N]
    step_counts: Tensor = field(default_factory=lambda: torch.empty(0))  # int64 [T, N], steps of its episode before s_t
    returns: dict[str, Tensor] = field(default_factory=dict)  # value head -> value target R_t, float32 [T, N]
    advantages_raw: Tensor = field(default_factory=lambda: torch.empty(0))  # float32 [T, N]
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))  # normalised over the rollout, float32 [T, N]
    augmentation: str = ""  # the one that DrAC's terms use with this rollout

    def __len__(self) -> int:
        return self.actions.numel()

    def minibatch(self, rows: Tensor) -> Batch:
        """The transitions at `rows` of the flattened [T, N]."""

        def flat(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, rows)

        steps = self.actions.shape[0]
        return Batch(
            frames=flat(self.frames),
            valid=torch.ones(len(rows)),
            returns={head: flat(x) for head, x in self.returns.items()},
            rows=rows,
            actions=flat(self.actions),
            log_probs=flat(self.log_probs),
            advantages=flat(self.advantages),
            old_values={head: flat(x[:steps]) for head, x in self.values.items()},
        )

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the frames, under flat names."""
        flat: dict[str, Tensor] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, dict):
                flat |= {f"{f.name}/{head}": x for head, x in value.items()}
            elif isinstance(value, Tensor) and f.name != "frames":
                flat[f.name] = value
        return flat

    @classmethod
    def from_tensors(cls, frames: Tensor, flat: Mapping[str, Tensor]) -> Rollout:
        """From `tensors()` and the frames."""
        nested: dict[str, Any] = {"values": {}, "final_values": {}, "returns": {}}
        for name, value in flat.items():
            field_name, _, head = name.partition("/")
            if head:
                nested[field_name][head] = value
            else:
                nested[name] = value
        return cls(frames=frames, **nested)

    def part(self, envs: range) -> Rollout:
        """This rollout with the transitions of some environments alone counted as valid."""
        if len(envs) == self.valid.shape[1]:
            return self
        among = torch.zeros_like(self.valid[0])
        among[envs.start : envs.stop] = True
        return dataclasses.replace(self, valid=self.valid & among)

    def order(self, generator: torch.Generator) -> Tensor:
        """The rows of all valid transitions, shuffled."""
        rows = self.valid.flatten().nonzero().squeeze(1)
        return rows[torch.randperm(len(rows), generator=generator)]

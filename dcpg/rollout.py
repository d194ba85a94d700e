"""A rollout tau: sampling it with the policy, and its targets (Algorithm 1, line 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcpg.batch import Batch
from dcpg.envs.base import VectorEnv
from dcpg.envs.normaliser import RewardNormaliser
from dcpg.methods.base import Method
from dcpg.networks import Network, Outputs
from dcpg.ranks import ALONE, Ranks
from dcpg.targets import gae, normalise


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
            elif f.name != "frames":
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


def with_rewards(tau: Rollout, normaliser: RewardNormaliser) -> Rollout:
    """tau with normalised rewards; the normaliser moves on."""
    rewards = normaliser(tau.raw_rewards.numpy(), tau.dones.numpy(), tau.valid.numpy())
    return dataclasses.replace(tau, rewards=torch.from_numpy(rewards))


def with_targets(tau: Rollout, method: Method, ranks: Ranks = ALONE) -> Rollout:
    """tau with the value targets of the method and the advantages of the head it names."""
    cut = tau.dones | ~tau.valid
    returns: dict[str, Tensor] = {}
    advantages: dict[str, Tensor] = {}
    for head, target in method.targets.items():
        rewards = tau.rewards + target.gamma * tau.final_values[head]
        advantages[head] = gae(rewards, tau.values[head], cut, target.gamma, target.lam)
        returns[head] = advantages[head] + tau.values[head][:-1]
    raw = advantages[method.advantages]
    return dataclasses.replace(tau, returns=returns, advantages_raw=raw, advantages=normalise(raw, tau.valid, ranks))


def sample_actions(log_policy: Tensor, uniform: Tensor) -> Tensor:
    """Actions by inverse CDF: the same entry of the table gives the same action however the batch is split."""
    cumulative = log_policy.double().exp().cumsum(1)
    actions = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1)
    return actions.clamp_(max=log_policy.shape[1] - 1)


class Actor:
    """The network without gradient, on frames from the environments."""

    def __init__(
        self, network: Network, heads: tuple[str, ...], chunk: int, device: torch.device, precision: str
    ) -> None:
        self.network, self.heads, self.chunk, self.device = network, heads, chunk, device
        self.autocast = precision == "bf16"

    def __call__(self, frames: NDArray[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """log pi(.|s) and V(s) for a batch of observations, on the CPU."""
        with self._outputs(frames) as out:
            return out.log_policy.cpu(), {head: out.value(head).cpu() for head in self.heads}

    def log_policy(self, frames: NDArray[Any]) -> Tensor:
        """log pi(.|s) alone."""
        with self._outputs(frames) as out:
            return out.log_policy.cpu()

    def values(self, frames: NDArray[Any]) -> dict[str, Tensor]:
        """V(s) alone."""
        with self._outputs(frames) as out:
            return {head: out.value(head).cpu() for head in self.heads}

    @contextmanager
    def _outputs(self, frames: NDArray[Any]) -> Iterator[Outputs]:
        tensor = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            yield Outputs(self.network, Batch(tensor, torch.ones(len(frames)), {}), self.chunk)


def collect(
    env: VectorEnv,
    actor: Actor,
    uniform: Tensor,  # float64 [T, N], one entry an action
    between_steps: Callable[[], None],
) -> Rollout:
    """Sample T steps with the policy; rewards are normalised afterwards, for acting does not need them."""
    T, N = uniform.shape
    first, levels_now = env.observe()
    frames = np.empty((T + 1, *first.shape), first.dtype)
    frames[0] = first
    actions = torch.empty(T, N, dtype=torch.int64)
    log_probs = torch.empty(T, N)
    values = {head: torch.empty(T + 1, N) for head in actor.heads}
    final_values = {head: torch.zeros(T, N) for head in actor.heads}
    rewards = np.empty((T, N), np.float32)
    dones, valid, crosses = np.empty((3, T, N), bool)
    levels = np.empty((T, N), np.int64)
    for t in range(T):
        between_steps()
        log_policy, value = actor(frames[t])
        actions[t] = sample_actions(log_policy, uniform[t])
        log_probs[t] = log_policy.gather(1, actions[t][:, None]).squeeze(1)
        for head, v in value.items():
            values[head][t] = v
        levels[t] = levels_now
        step = env.step(actions[t].numpy())
        frames[t + 1], rewards[t], dones[t], valid[t] = step.frames, step.rewards, step.dones, step.valid
        crosses[t], levels_now = step.crosses, step.levels
        if step.final_frames is not None and step.truncated.any():
            cut = torch.from_numpy(step.truncated)
            for head, v in actor.values(step.final_frames[step.truncated]).items():
                final_values[head][t, cut] = v
    for head, v in actor.values(frames[T]).items():
        values[head][T] = v
    return Rollout(
        frames=torch.from_numpy(frames),
        actions=actions,
        log_probs=log_probs,
        values=values,
        final_values=final_values,
        raw_rewards=torch.from_numpy(rewards),
        dones=torch.from_numpy(dones),
        valid=torch.from_numpy(valid),
        crosses=torch.from_numpy(crosses),
        levels=torch.from_numpy(levels),
    )

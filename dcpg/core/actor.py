"""Acting: the networks' outputs for frames, without gradients, and the sampling of actions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcpg.core.batch import Batch
from dcpg.core.networks import Network, Outputs


def sample_actions(log_policy: Tensor, uniform: Tensor) -> Tensor:
    """Sample actions by inverse CDF: each uniform number gives the same action however the batch is split."""
    cumulative = log_policy.double().exp().cumsum(1)
    actions = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1)
    return actions.clamp_(max=log_policy.shape[1] - 1)


class Actor:
    """Runs the network on frames from the environments, without gradients."""

    def __init__(self, network: Network, heads: tuple[str, ...], chunk: int, device: torch.device) -> None:
        self.network, self.heads, self.chunk, self.device = network, heads, chunk, device

    def __call__(self, frames: NDArray[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """log pi(.|s) and V(s) for a batch of observations, on the CPU."""
        with self._outputs(frames) as out:
            return out.log_policy.cpu(), {head: out.value(head).cpu() for head in self.heads}

    def log_policy(self, frames: NDArray[Any]) -> Tensor:
        with self._outputs(frames) as out:
            return out.log_policy.cpu()

    def values(self, frames: NDArray[Any]) -> dict[str, Tensor]:
        with self._outputs(frames) as out:
            return {head: out.value(head).cpu() for head in self.heads}

    @contextmanager
    def _outputs(self, frames: NDArray[Any]) -> Iterator[Outputs]:
        tensor = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
        with torch.no_grad():
            yield Outputs(self.network, Batch(tensor, torch.ones(len(frames)), {}), self.chunk)

"""An encoder in bfloat16, with weights in float32.

The encoder computes with copies of its weights that are rounded once per optimiser step. Gradients of the copies are
summed over chunks in float32. Frames of uint8 are whole numbers up to 255, which bfloat16 holds exactly: their division
by 255 is part of the rounded copy of the first weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

LARGEST = 255.0  # value of uint8 frames


class Rounded:
    """Runs an encoder on copies of its weights in bfloat16."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        self.run: Callable[..., Tensor] = lambda weights, x: functional_call(encoder, weights, (x,))
        self.copies: dict[str, Tensor] = {}
        self._versions: list[Any] = []
        self._weights: list[nn.Parameter] = []

    def __call__(self, frames: Tensor) -> Tensor:
        """Features of observations, float32."""
        self._refresh()
        weights = {name: self._copy(name, p) for name, p in self._named()}
        return self.run(weights, self._inputs(frames)).float()

    def compile(self) -> None:
        # of torch's compiler, to itself, when it looks at weights that are not leaves
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed")
        self.run = torch.compile(self.run)

    def _copy(self, name: str, weight: nn.Parameter) -> Tensor:
        """A copy for one pass: gradients of several passes meet in the weight, in float32."""
        out: Tensor = _Copy.apply(weight, self.copies[name], self._factor(name))  # type: ignore[no-untyped-call]
        return out

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.encoder.named_parameters())

    def _factor(self, name: str) -> float:
        return 1 / LARGEST if name == self.encoder.first else 1.0

    def _inputs(self, frames: Tensor) -> Tensor:
        """Observations in bfloat16, LARGEST times their scaled values if the first weight makes up for it."""
        if frames.dtype == torch.uint8:
            exact = frames.to(torch.bfloat16)
            return exact if self.encoder.first else exact.div_(LARGEST)
        return (frames.float() * LARGEST if self.encoder.first else frames).to(torch.bfloat16)

    def _refresh(self) -> None:
        """Round the weights again if an optimiser step or a restored checkpoint changed them."""
        weights = list(self.encoder.parameters())
        versions = [(id(p), p._version, p.device) for p in weights]
        if versions != self._versions:
            with torch.no_grad():
                self.copies = {name: (p * self._factor(name)).to(torch.bfloat16) for name, p in self._named()}
            self._versions, self._weights = versions, weights  # held, so that no other tensor gets their id


class _Copy(torch.autograd.Function):
    """The identity from a weight to its rounded copy; the gradient comes back as float32."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].float()
        return grad.mul_(ctx.factor) if ctx.factor != 1 else grad, None, None

"""The encoder's two blocks with hand-written backward passes.

They compute what autograd would, in fewer passes over memory (docs/performance.md has the figures): bias gradients are
summed separately, because oneDNN's backward convolution computes them slowly, and the gradient of a ReLU's input
overwrites that of its output.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

POOL = ([3, 3], [2, 2], [1, 1])  # size, stride, padding


def pooled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max-pool(conv(x)): a 3x3 convolution, then a 3x3 max-pool with stride 2."""
    if not torch.is_grad_enabled():
        return F.max_pool2d(F.conv2d(x, weight, bias, padding=1), *POOL)
    out: Tensor = _Pooled.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def residual(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, rectified: bool = False
) -> Tensor:
    """x + conv(relu(conv(relu(x)))), with 3x3 convolutions; `rectified`: relu(x) + ..."""
    out: Tensor = _Residual.apply(x, weight1, bias1, weight2, bias2, rectified)  # type: ignore[no-untyped-call]
    return out


def _convolution_gradients(grad: Tensor, x: Tensor, weight: Tensor, of_x: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a 3x3 convolution's input (if it is wanted), weight and bias."""
    of_input, of_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [of_x, True, False]
    )
    return of_input, of_weight, grad.sum((0, 2, 3))


def _through_relu_(grad: Tensor, output: Tensor) -> Tensor:
    """The gradient of a ReLU's input, written over that of its output."""
    return torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)  # type: ignore[no-any-return]


def _index_type(picture: Tensor) -> torch.dtype:
    """The smallest type for a place in a picture [b, c, H, W]; PyTorch's own takes four times as much."""
    return torch.int16 if picture.shape[2] * picture.shape[3] < 2**15 else torch.int32


class _Pooled(torch.autograd.Function):
    """Does not keep the convolution's output, which would be two fifths of a graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        full = F.conv2d(x, weight, bias, padding=1)
        pooled, indices = torch.ops.aten.max_pool2d_with_indices(full, *POOL)
        ctx.save_for_backward(x, weight, indices.to(_index_type(full)))
        ctx.full = full.shape
        return pooled  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        x, weight, indices = ctx.saved_tensors
        shape_of = torch.empty(ctx.full, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)
        places = indices.to(torch.int64)
        of_full = torch.ops.aten.max_pool2d_with_indices_backward(grad, shape_of, *POOL, [1, 1], False, places)
        return _convolution_gradients(of_full, x, weight, of_x=ctx.needs_input_grad[0])


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, rectified: bool
    ) -> Tensor:
        first = F.relu(x)
        second = F.conv2d(first, weight1, bias1, padding=1).relu_()
        ctx.save_for_backward(first, weight1, second, weight2)
        ctx.rectified = rectified
        return F.conv2d(second, weight2, bias2, padding=1).add_(first if rectified else x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        first, weight1, second, weight2 = ctx.saved_tensors
        (grad,) = grads
        inner, of_weight2, of_bias2 = _convolution_gradients(grad, second, weight2)
        of_x, of_weight1, of_bias1 = _convolution_gradients(_through_relu_(inner, second), first, weight1)
        of_x = _through_relu_(of_x.add_(grad), first) if ctx.rectified else _through_relu_(of_x, first).add_(grad)
        return of_x, of_weight1, of_bias1, of_weight2, of_bias2, None

"""Value stiffness: the mean cosine between the value-loss gradients of two states (paper, Section 3.1 and Appendix A).

The gradient of state i is g_i = d_i grad V(s_i) with d_i = V(s_i) - R_i, so its direction is
u_i = sign(d_i) grad V(s_i) / |grad V(s_i)|, and with S = sum_i u_i the mean over all pairs i != j of cos(g_i, g_j) is
(|S|^2 - n) / (n (n - 1)). Gradients of single states are computed one chunk at a time and never kept: memory does not
depend on the number of states. It is measured in float32, whatever the precision of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcpg.core.encoders import Encoder, scaled
from dcpg.core.networks import Network
from dcpg.core.rollout import Rollout

MOST_STATES = 256  # at once: they keep more than a training pass, and a GPU's chunk may be a whole minibatch


@dataclass(frozen=True)
class Stiffness:
    """Value stiffness over the states whose gradient is not zero."""

    stiffness: float  # as defined in the paper
    sign_free: float  # the same for grad V alone, ignoring the sign of the error
    sign_agreement: float  # the mean over pairs of sign(d_i) sign(d_j)
    states: int

    def row(self) -> dict[str, float]:
        """The columns of metrics.jsonl; fewer than two states have no pairs."""
        if self.states < 2:
            return {}
        return {
            "stiffness": self.stiffness,
            "stiffness_sign_free": self.sign_free,
            "stiffness_sign_agreement": self.sign_agreement,
            "stiffness_states": self.states,
        }


@dataclass(frozen=True)
class Layer:
    """The inputs and outputs of a layer of the value network on one chunk."""

    module: nn.Conv2d | nn.Linear
    inputs: Tensor
    outputs: Tensor


def stiffness(
    network: Network,
    head: str,
    frames: Tensor,  # [n, *observation]
    returns: Tensor,  # float32 [n], the value targets
    chunk: int,
    between_chunks: Callable[[], None] = lambda: None,
) -> Stiffness:
    """The stiffness of a value head and its encoder on n states and their targets."""
    chunk = min(chunk, MOST_STATES)
    size = sum(p.numel() for p in parameters_of(network, head))
    device = next(parameters_of(network, head)).device
    signed, plain = torch.zeros(2, size, dtype=torch.float64, device=device)
    signs, n = 0.0, 0
    for part, target in zip(torch.split(frames, chunk), torch.split(returns, chunk), strict=True):
        between_chunks()
        part, target = part.to(device), target.to(device)
        each, values = _gradients(network, head, part)
        with torch.no_grad():
            norms = torch.stack([g.squared_norms() for g in each]).sum(0).sqrt()
            sign = torch.sign(values - target).double()
            some = (norms > 0) & (sign != 0)  # a gradient of zero has no direction
            unit = torch.where(some, 1 / norms, torch.zeros_like(norms))
            signed += torch.cat([g.weighted_sum(unit * sign) for g in each])
            plain += torch.cat([g.weighted_sum(unit) for g in each])
            signs += float(sign[some].sum())
            n += int(some.sum())
    if n < 2:
        return Stiffness(float("nan"), float("nan"), float("nan"), n)

    def mean_over_pairs(squared: float) -> float:
        return (squared - n) / (n * (n - 1))

    return Stiffness(
        mean_over_pairs(float(signed @ signed)), mean_over_pairs(float(plain @ plain)), mean_over_pairs(signs**2), n
    )


def _gradients(network: Network, head: str, frames: Tensor) -> tuple[list[_Gradient], Tensor]:
    """The gradients of V for single states, in parts, and V itself."""
    encoder = network.get_submodule(network.encoder_of[head])
    assert isinstance(encoder, Encoder)
    if encoder.walks:
        layers, values = _forward(network, encoder, head, frames)
        grads = torch.autograd.grad(values.sum(), [layer.outputs for layer in layers])
        return [_Gradient.of(layer, grad) for layer, grad in zip(layers, grads, strict=True)], values
    last = network.get_submodule(head)
    weights = {f"{at}.{name}": p for at, part in enumerate((encoder, last)) for name, p in part.named_parameters()}

    def value(weights: dict[str, Tensor], frame: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.func.functional_call(nn.Sequential(encoder, last), weights, (frame[None],)).squeeze()
        return out, out

    of_each = torch.func.vmap(torch.func.grad(value, has_aux=True), in_dims=(None, 0))
    grads, values = of_each({name: p.detach() for name, p in weights.items()}, scaled(frames))
    none = values.new_zeros(len(values), 0)
    return [_Gradient(torch.cat([g.flatten(1) for g in grads.values()], 1), none, none)], values


@dataclass(frozen=True)
class _Gradient:
    """The gradients of single states with respect to a layer's weight and bias, never written out for linear layers."""

    weight: Tensor  # convolution, or all layers of an encoder without `walk`: [b, weight]; linear: empty
    inputs: Tensor  # linear: [b, inputs]
    bias: Tensor  # [b, outputs]

    @classmethod
    def of(cls, layer: Layer, grad: Tensor) -> _Gradient:
        if isinstance(layer.module, nn.Linear):
            return cls(grad.new_empty(0), layer.inputs, grad)
        return cls(_convolution_weights(layer.inputs, grad), grad.new_empty(0), grad.sum((2, 3)))

    def squared_norms(self) -> Tensor:
        """The squared norm of each state's gradient, float64 [b]."""
        bias = self.bias.double().square().sum(1)
        if self.weight.numel():
            return self.weight.double().square().sum(1) + bias
        return self.inputs.double().square().sum(1) * bias + bias  # |x g^T| = |x| |g|

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """sum_i w_i g_i, flat, float64."""
        w = weights.to(self.bias.dtype)[:, None]
        weight = self.weight.T @ w if self.weight.numel() else (self.bias * w).T @ self.inputs
        return torch.cat([weight.flatten(), (self.bias * w).sum(0)]).double()


def _convolution_weights(x: Tensor, grad: Tensor) -> Tensor:
    """Each state's gradient of a 3x3 convolution's weight, [b, outputs * 9 * inputs]: products of shifted rows."""
    b, c, h, w = x.shape
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    rows = padded.as_strided((b, h + 2, w, 3 * c), (padded.stride(0), padded.stride(1), c, 1)).contiguous()
    along = grad.permute(0, 2, 3, 1).reshape(b, h * w, -1).transpose(1, 2)  # [b, outputs, h w]
    parts = [torch.bmm(along, rows[:, k : k + h].reshape(b, h * w, 3 * c)) for k in range(3)]
    return torch.cat(parts, 2).flatten(1)


def _forward(network: Network, encoder: Encoder, head: str, frames: Tensor) -> tuple[list[Layer], Tensor]:
    """V of a chunk, and every layer of the forward pass."""
    layers: list[Layer] = []

    def through(module: Any, x: Tensor) -> Tensor:
        out: Tensor = nn.Conv2d.forward(module, x) if isinstance(module, nn.Conv2d) else module(x)
        layers.append(Layer(module, x.detach(), out))
        return out

    x = encoder.walk(frames, through)
    return layers, through(network.get_submodule(head), x).squeeze(1)


def parameters_of(network: Network, head: str) -> Iterator[nn.Parameter]:
    """The parameters of the value network: the head's encoder and the head."""
    yield from network.get_submodule(network.encoder_of[head]).parameters()
    yield from network.get_submodule(head).parameters()


def states_and_targets(tau: Rollout, head: str) -> tuple[Tensor, Tensor]:
    """The states of a rollout [n, *observation] and a value head's targets [n]; dead steps have none."""
    returns, rows = tau.returns[head].flatten(), tau.valid.flatten().nonzero().squeeze(1)
    if tau.stack == 1 and len(rows) == len(returns):
        return tau.frames[:-1].flatten(0, 1), returns  # no copy
    return tau.states(rows), returns[rows]

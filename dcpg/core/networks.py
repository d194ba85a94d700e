"""The IMPALA encoder, the heads, and which head is on which encoder (paper, Figure 1; authors' initialisation).

Initialisation: convolutions Xavier-uniform, fully connected layers orthogonal, all biases zero. The gains of the
heads are the authors': 0.01 for the policy, 1 for values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.kernels import pooled, residual
from dcpg.core.state import State, check_tensors

if TYPE_CHECKING:
    from dcpg.core.batch import Batch


SQRT2 = math.sqrt(2)


def orthogonal(layer: nn.Linear, gain: float, generator: Generator) -> None:
    """Orthogonal weights with a gain, zero bias."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)


Through = Callable[[nn.Module, Tensor], Tensor]  # how `walk` applies a layer: (convolution or linear layer, input)


def stack_sizes(shape: tuple[int, ...], channels: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """(input channels, channels, height, width) of each stack of an encoder; pooling then halves both."""
    height, width, channels_in = shape
    for c in channels:
        yield channels_in, c, height, width
        channels_in, height, width = c, (height + 1) // 2, (width + 1) // 2


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))); the skip carries the un-rectified x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv1, self.conv2
        assert a.bias is not None
        assert b.bias is not None
        return residual(x, a.weight, a.bias, b.weight, b.bias)

    def walk(self, x: Tensor, through: Through) -> Tensor:
        return x + through(self.conv2, F.relu(through(self.conv1, F.relu(x))))


class Stack(nn.Module):
    """conv 3x3 -> max-pool 3x3 stride 2 -> two residual blocks."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.block0 = Residual(channels)
        self.block1 = Residual(channels)

    def forward(self, x: Tensor) -> Tensor:
        assert self.conv.bias is not None
        out: Tensor = self.block1(self.block0(pooled(x, self.conv.weight, self.conv.bias)))
        return out

    def walk(self, x: Tensor, through: Through) -> Tensor:
        x = F.max_pool2d(through(self.conv, x), 3, stride=2, padding=1)
        return self.block1.walk(self.block0.walk(x, through), through)


class Impala(nn.Module):
    """Frames [b, H, W, C] to features [b, size]: three stacks, ReLU, linear, ReLU.

    `forward` uses the kernels; `walk` is the same in plain PyTorch, layer by layer, for code that must see each layer.
    """

    def __init__(self, shape: tuple[int, ...], channels: tuple[int, ...], size: int) -> None:
        super().__init__()
        outputs = math.prod(shape)
        for i, (channels_in, c, height, width) in enumerate(stack_sizes(shape, channels)):
            self.add_module(f"stack{i}", Stack(channels_in, c))
            outputs = c * ((height + 1) // 2) * ((width + 1) // 2)
        self.fc = nn.Linear(outputs, size)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, frames: Tensor) -> Tensor:
        # The permuted view of [b, H, W, C] is channels-last memory, the fastest layout for convolutions on the CPU.
        x = scaled(frames).permute(0, 3, 1, 2)
        for stack in self.stacks():
            x = stack(x)
        return F.relu(self.fc(F.relu(x.flatten(1))))

    def walk(self, frames: Tensor, through: Through) -> Tensor:
        x = scaled(frames).permute(0, 3, 1, 2)
        for stack in self.stacks():
            x = stack.walk(x, through)
        return F.relu(through(self.fc, F.relu(x.flatten(1))))

    def stacks(self) -> list[Stack]:
        """The stacks in the order of the forward pass."""
        return [stack for stack in self.children() if isinstance(stack, Stack)]

    def initialise(self, generator: Generator) -> None:
        """Xavier-uniform convolutions, orthogonal linear layer with gain sqrt(2)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                assert module.bias is not None
                nn.init.xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)
        orthogonal(self.fc, SQRT2, generator)


class Flat(nn.Module):
    """The encoder of observations that are not images of at least 16x16: two tanh layers on the flat observation."""

    def __init__(self, shape: tuple[int, ...], hidden: int, size: int) -> None:
        super().__init__()
        self.fc0 = nn.Linear(math.prod(shape), hidden)
        self.fc1 = nn.Linear(hidden, size)

    def forward(self, frames: Tensor) -> Tensor:
        return self.walk(frames, lambda layer, x: layer(x))

    def walk(self, frames: Tensor, through: Through) -> Tensor:
        return torch.tanh(through(self.fc1, torch.tanh(through(self.fc0, scaled(frames).flatten(1)))))

    def initialise(self, generator: Generator) -> None:
        """Orthogonal with gain sqrt(2)."""
        orthogonal(self.fc0, SQRT2, generator)
        orthogonal(self.fc1, SQRT2, generator)


def scaled(frames: Tensor) -> Tensor:
    """Observations as float32; only uint8 is divided by 255."""
    return frames.float().div_(255) if frames.dtype == torch.uint8 else frames.float()


class Discriminator(nn.Sequential):
    """f(s, a, s'): a logit from [feature(s), one-hot a, feature(s')]."""

    def __init__(self, features: int, actions: int, hidden: int) -> None:
        super().__init__(
            nn.Linear(2 * features + actions, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        self.actions = actions

    def logit(self, now: Tensor, actions: Tensor, following: Tensor) -> Tensor:
        """The logit that (s, a, s') is a true transition, [b]."""
        one_hot = F.one_hot(actions, self.actions).to(now.dtype)
        out: Tensor = self(torch.cat([now, one_hot, following], dim=1))
        return out.squeeze(1)

    def initialise(self, generator: Generator) -> None:
        """Hidden layers with gain sqrt(2), the output with gain 1."""
        for layer, gain in zip((self[0], self[2], self[4]), (SQRT2, SQRT2, 1.0), strict=True):
            assert isinstance(layer, nn.Linear)
            orthogonal(layer, gain, generator)


class LinearHead(nn.Linear):
    """A linear head with its own gain."""

    def __init__(self, features: int, outputs: int, gain: float) -> None:
        super().__init__(features, outputs)
        self.gain = gain

    def initialise(self, generator: Generator) -> None:
        """Orthogonal with the head's gain."""
        orthogonal(self, self.gain, generator)


Head = Callable[[int, int, int], nn.Module]  # (feature size, number of actions, hidden width) -> head


def policy_head(features: int, actions: int, hidden: int) -> nn.Module:
    """A linear head for the logits over actions."""
    return LinearHead(features, actions, 0.01)


def value_head(features: int, actions: int, hidden: int) -> nn.Module:
    """A linear head for V(s)."""
    return LinearHead(features, 1, 1.0)


def advantage_head(features: int, actions: int, hidden: int) -> nn.Module:
    """A linear head for A(s, a), on [feature(s), one-hot a]."""
    return LinearHead(features + actions, 1, 1.0)


def order_head(features: int, actions: int, hidden: int) -> nn.Module:
    """Logits of which state of a pair comes later in its episode, on [feature(s), feature(other s)]."""
    return LinearHead(2 * features, 2, 1.0)


def discriminator(features: int, actions: int, hidden: int) -> nn.Module:
    """The discriminator f(s, a, s') as a head."""
    return Discriminator(features, actions, hidden)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether IMPALA is the encoder: for observations [H, W, C] of at least 16x16."""
    return len(shape) == 3 and min(shape[:2]) >= 16


class Network(nn.Module):
    """The encoders of a method and the heads on them, under the names theta, phi, policy, value, ..."""

    def __init__(
        self,
        layout: Mapping[str, Mapping[str, Head]],  # encoder -> the heads on it
        shape: tuple[int, ...],
        actions: int,
        channels: tuple[int, ...],
        features: int,
        hidden: int = 256,
        device: str = "cpu",  # "meta": only shapes, no memory
    ) -> None:
        super().__init__()
        self.encoder_of = {head: encoder for encoder, heads in layout.items() for head in heads}
        with torch.device("meta"):  # no random numbers here: `initialise` draws every weight from its generator
            for encoder, heads in layout.items():
                body = Impala(shape, channels, features) if is_image(shape) else Flat(shape, features, features)
                self.add_module(encoder, body)
                for head, make in heads.items():
                    self.add_module(head, make(features, actions, hidden))
        self.to_empty(device=device)

    def initialise(self, generator: Generator) -> Network:
        """Draw every weight from one generator, in the order of the layout."""
        for child in self.children():
            child.initialise(generator)  # type: ignore[operator]
        return self

    def state(self) -> State:
        return State(tensors={k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()})

    def restore(self, state: State) -> None:
        """Load parameters; raise ValueError if a name, shape or dtype differs, or a value is not finite."""
        assert state.tensors is not None
        check_tensors("weights", state.tensors, self.state_dict())
        self.load_state_dict(dict(state.tensors))

    def encode(self, encoder: str, frames: Tensor, chunk: int) -> Tensor:
        """Features of frames, the encoder run over cache-sized chunks."""
        body = self.get_submodule(encoder)
        parts: list[Tensor] = [body(part) for part in torch.tensor_split(frames, math.ceil(len(frames) / chunk))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Outputs:
    """The networks' outputs for a batch, each computed once, when a term first asks for it."""

    def __init__(self, network: Network, batch: Batch, chunk: int) -> None:
        self.network, self.batch, self.chunk = network, batch, chunk
        self._all_features: dict[str, Tensor] = {}

    def all_features(self, encoder: str) -> Tensor:
        """Features of every frame of the batch, including those that only serve as s'."""
        if encoder not in self._all_features:
            self._all_features[encoder] = self.network.encode(encoder, self.batch.frames, self.chunk).float()
        return self._all_features[encoder]

    def features(self, encoder: str) -> Tensor:
        """Features of the batch's states s_t, [b, size]."""
        return self.all_features(encoder)[: len(self.batch)]

    def head(self, name: str) -> Tensor:
        """A head's output on its own encoder's features."""
        out: Tensor = self.network.get_submodule(name)(self.features(self.network.encoder_of[name]))
        return out

    @cached_property
    def log_policy(self) -> Tensor:
        """log pi(. | s), float32 [b, actions]."""
        return F.log_softmax(self.head("policy").float(), dim=1)

    def value(self, head: str) -> Tensor:
        """V(s) of a value head, float32 [b]."""
        return self.head(head).float().squeeze(1)

    @cached_property
    def augmented(self) -> Outputs:
        """The same networks on the batch's states under its augmentation."""
        ((name, parameters),) = self.batch.augmentation.items()
        return self._on(AUGMENTATIONS[name].apply(scaled(self.batch.frames), parameters))

    @cached_property
    def other(self) -> Outputs:
        """The same networks on the other state of each pair."""
        return self._on(self.batch.other_frames)

    def _on(self, frames: Tensor) -> Outputs:
        return Outputs(self.network, dataclasses.replace(self.batch, frames=frames), self.chunk)

"""Encoders: from observations to features. One class declares all that the program needs to know of an encoder.

`impala` is the paper's. `impoola` takes the mean over the last stack's picture instead of flattening it (Trumpp et al.,
RLC 2025). `@encoder(NAME)` adds another one. Observations that are not images go through `Flat`, whatever
`network.encoder` says.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from dcpg.core.kernels import pooled, residual
from dcpg.core.registry import Registry
from dcpg.errors import BadInput
from dcpg.settings import Section, setting

SQRT2 = math.sqrt(2)
MOST_STACKS = 16  # each halves the picture

SKIPS = ("plain", "rectified")  # what a residual block's skip carries: x itself, or relu(x)

Through = Callable[[nn.Module, Tensor], Tensor]  # how `walk` applies a layer: (convolution or linear layer, input)


@dataclass(frozen=True)
class Net(Section):
    """The encoders' architecture, and the sizes of the encoders and the discriminator."""

    encoder: str = setting("impala", "paper, Section 5 (impoola: a mean over the last picture instead of flattening)")
    channels: tuple[int, ...] = setting((16, 32, 32), "authors' code (IMPALA)", low=1, high=4096)
    width: int = setting(1, "ours: multiplies the channels", low=1, high=64)
    skip: str = setting(
        "plain", "authors' code: x (rectified: relu(x), as in the code of DAAC, UCB-DrAC and PLR)", choices=SKIPS
    )
    features: int = setting(256, "authors' code (IMPALA)", low=1, high=65_536)
    discriminator: int = setting(256, "paper, Appendix D (hidden sizes [256, 256])", low=1, high=65_536)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.channels) <= MOST_STACKS:
            raise BadInput(f"channels must be 1 to {MOST_STACKS} numbers; got {len(self.channels)}.")

    @property
    def wide_channels(self) -> tuple[int, ...]:
        """The channels of each stack, multiplied by the width."""
        return tuple(self.width * c for c in self.channels)


class Encoder(nn.Module, ABC):
    """Observations [b, *shape] to features [b, net.features].

    An encoder has `__init__(shape, net)` and `forward(frames)`, which begins with `scaled(frames)`. All else may be
    left to this class.
    """

    first: ClassVar[str] = ""  # the weight that multiplies the observations, if nothing happens to them before
    walks: ClassVar[bool] = False  # whether it has a `walk` of its own

    def __init_subclass__(cls) -> None:
        """A class with its own `forward` does not inherit what describes another: `walk`, `first`, `graph_bytes`."""
        super().__init_subclass__()
        if "forward" in cls.__dict__:
            for name in ("first", "graph_bytes", "walk", "walks"):
                if name not in cls.__dict__:
                    setattr(cls, name, Encoder.__dict__[name])
        if "walk" in cls.__dict__ and cls.__dict__["walk"] is not Encoder.__dict__["walk"]:
            cls.walks = True

    def __init__(self, shape: tuple[int, ...], net: Net) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, frames: Tensor) -> Tensor: ...

    def walk(self, frames: Tensor, through: Through) -> Tensor:
        """`forward` in plain PyTorch, with every layer passed to `through`, for the value stiffness.

        For encoders whose layers are linear or 3x3 convolutions of stride 1; the others' stiffness is computed from
        `forward`, more slowly.
        """
        raise TypeError(f"{type(self).__name__} has no walk")

    def initialise(self, generator: Generator) -> None:
        """Xavier-uniform convolutions and orthogonal linear layers with gain sqrt(2), as the paper's encoder has them.

        Other modules are reset with PyTorch's own defaults, with random numbers that follow from the generator.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                xavier(module, generator)
            elif isinstance(module, nn.Linear):
                orthogonal(module, SQRT2, generator)
            elif hasattr(module, "reset_parameters"):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                    module.reset_parameters()  # type: ignore[operator]

    @classmethod
    def graph_bytes(cls, shape: tuple[int, ...], net: Net, size: int) -> tuple[float, float]:
        """Bytes that one frame's graph holds, and those that its backward pass needs temporarily.

        `size` is that of a number: 4, or 2 in bfloat16. Here they are what autograd keeps of a pass on two frames.
        """
        kept: dict[int, Tensor] = {}
        with torch.random.fork_rng(devices=[]):  # PyTorch draws weights when a layer is made
            encoder = cls(shape, net)
        weights = {p.untyped_storage()._cdata for p in encoder.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(lambda t: _noted(t, kept), lambda t: t):
            encoder(torch.zeros(2, *shape))
        sizes = [size * t.numel() / 2 for storage, t in kept.items() if storage not in weights]
        return sum(sizes) + 4 * net.features, 3 * max(sizes, default=0.0)


def _noted(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    kept[tensor.untyped_storage()._cdata] = tensor
    return tensor


def xavier(layer: nn.Conv2d, generator: Generator) -> None:
    """Xavier-uniform weights, zero bias."""
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def orthogonal(layer: nn.Linear, gain: float, generator: Generator) -> None:
    """Orthogonal weights with a gain, zero bias."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def stack_sizes(shape: tuple[int, ...], net: Net) -> Iterator[tuple[int, int, int, int]]:
    """(input channels, channels, height, width) of each stack of an encoder; pooling then halves both."""
    height, width, channels_in = shape
    for c in net.wide_channels:
        yield channels_in, c, height, width
        channels_in, height, width = c, (height + 1) // 2, (width + 1) // 2


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))); the skip carries the un-rectified x, or relu(x)."""

    def __init__(self, channels: int, rectified: bool = False) -> None:
        super().__init__()
        self.rectified = rectified
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv1, self.conv2
        assert a.bias is not None
        assert b.bias is not None
        return residual(x, a.weight, a.bias, b.weight, b.bias, self.rectified)

    def walk(self, x: Tensor, through: Through) -> Tensor:
        first = F.relu(x)
        return (first if self.rectified else x) + through(self.conv2, F.relu(through(self.conv1, first)))


class Stack(nn.Module):
    """conv 3x3 -> max-pool 3x3 stride 2 -> two residual blocks."""

    def __init__(self, channels_in: int, channels: int, rectified: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.block0 = Residual(channels, rectified)
        self.block1 = Residual(channels, rectified)

    def forward(self, x: Tensor) -> Tensor:
        assert self.conv.bias is not None
        out: Tensor = self.block1(self.block0(pooled(x, self.conv.weight, self.conv.bias)))
        return out

    def walk(self, x: Tensor, through: Through) -> Tensor:
        x = F.max_pool2d(through(self.conv, x), 3, stride=2, padding=1)
        return self.block1.walk(self.block0.walk(x, through), through)


class Impala(Encoder):
    """Stacks, ReLU, the last picture as one vector, linear, ReLU."""

    first = "stack0.conv.weight"

    def __init__(self, shape: tuple[int, ...], net: Net) -> None:
        super().__init__(shape, net)
        picture = shape[2], *shape[:2]
        for i, (channels_in, c, height, width) in enumerate(stack_sizes(shape, net)):
            self.add_module(f"stack{i}", Stack(channels_in, c, net.skip == "rectified"))
            picture = c, (height + 1) // 2, (width + 1) // 2
        self.fc = nn.Linear(self.vector_size(picture), net.features)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def vector_size(picture: tuple[int, ...]) -> int:
        """The size of what the linear layer sees of the last picture (channels, height, width)."""
        return math.prod(picture)

    @staticmethod
    def vector(x: Tensor) -> Tensor:
        """What the linear layer sees of the last picture."""
        return F.relu(x.flatten(1))

    def forward(self, frames: Tensor) -> Tensor:
        # The permuted view of [b, H, W, C] is channels-last memory, the fastest layout for convolutions on the CPU.
        x = scaled(frames).permute(0, 3, 1, 2)
        for stack in self.stacks():
            x = stack(x)
        return F.relu(self.fc(self.vector(x)))

    def walk(self, frames: Tensor, through: Through) -> Tensor:
        x = scaled(frames).permute(0, 3, 1, 2)
        for stack in self.stacks():
            x = stack.walk(x, through)
        return F.relu(through(self.fc, self.vector(x)))

    def stacks(self) -> list[Stack]:
        """The stacks in the order of the forward pass."""
        return [stack for stack in self.children() if isinstance(stack, Stack)]

    def initialise(self, generator: Generator) -> None:
        """Xavier-uniform convolutions, orthogonal linear layer with gain sqrt(2)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                xavier(module, generator)
        orthogonal(self.fc, SQRT2, generator)

    @classmethod
    def graph_bytes(cls, shape: tuple[int, ...], net: Net, size: int) -> tuple[float, float]:
        held, passing = float(size * math.prod(shape)), 0.0
        for _, c, height, width in stack_sizes(shape, net):
            full, half = c * height * width, c * ((height + 1) // 2) * ((width + 1) // 2)
            held += (2 + 5 * size) * half  # the pool's indices, two tensors of each residual block, the stack's output
            passing = max(passing, 3.0 * size * full)  # its gradient and the copies that a convolution makes
        return held + 16 * net.features, passing


class Impoola(Impala):
    """Stacks, ReLU, the mean over the last picture, linear, ReLU: a sixth of IMPALA's weights at the paper's sizes."""

    @staticmethod
    def vector_size(picture: tuple[int, ...]) -> int:
        return picture[0]

    @staticmethod
    def vector(x: Tensor) -> Tensor:
        return F.relu(x).mean((2, 3))


class Flat(Encoder):
    """The encoder of observations that are not images of at least 16x16: two tanh layers on the flat observation."""

    first = "fc0.weight"

    def __init__(self, shape: tuple[int, ...], net: Net) -> None:
        super().__init__(shape, net)
        self.fc0 = nn.Linear(math.prod(shape), net.features)
        self.fc1 = nn.Linear(net.features, net.features)

    def forward(self, frames: Tensor) -> Tensor:
        return self.walk(frames, lambda layer, x: layer(x))

    def walk(self, frames: Tensor, through: Through) -> Tensor:
        return torch.tanh(through(self.fc1, torch.tanh(through(self.fc0, scaled(frames).flatten(1)))))

    def initialise(self, generator: Generator) -> None:
        """Orthogonal with gain sqrt(2)."""
        orthogonal(self.fc0, SQRT2, generator)
        orthogonal(self.fc1, SQRT2, generator)

    @classmethod
    def graph_bytes(cls, shape: tuple[int, ...], net: Net, size: int) -> tuple[float, float]:
        return 4.0 * (math.prod(shape) + 4 * net.features), 0.0


ENCODERS: Registry[type[Encoder]] = Registry("the encoder")
"""Every encoder by its name, as `network.encoder` takes it."""

E = TypeVar("E", bound=type[Encoder])


def encoder(name: str) -> Callable[[E], E]:
    """Enter a class of encoders under a name for `network.encoder`."""

    def register(declared: E) -> E:
        if not (isinstance(declared, type) and issubclass(declared, Encoder)):
            raise BadInput(f"@encoder({name!r}) needs a subclass of dcpg.methods.Encoder; got {declared!r}.")
        ENCODERS.enter(name, declared, declared)
        return declared

    return register


encoder("impala")(Impala)
encoder("impoola")(Impoola)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether `network.encoder` is used: for observations [H, W, C] of at least 16x16."""
    return len(shape) == 3 and min(shape[:2]) >= 16


def encoder_class(shape: tuple[int, ...], net: Net) -> type[Encoder]:
    """The encoder for such observations."""
    return ENCODERS[net.encoder] if is_image(shape) else Flat


def scaled(frames: Tensor) -> Tensor:
    """Observations as float32; only uint8 is divided by 255. Those in bfloat16 are as `Rounded` made them."""
    if frames.dtype == torch.bfloat16:
        return frames
    return frames.float().div_(255) if frames.dtype == torch.uint8 else frames.float()

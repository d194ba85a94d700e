"""The heads, and which head is on which encoder (paper, Figure 1; authors' initialisation).

Initialisation: convolutions Xavier-uniform, fully connected layers orthogonal, all biases zero. The gains of the
heads are the authors': 0.01 for the policy, 1 for values.

In bfloat16 the encoders compute with rounded copies of their weights. The weights themselves, the sums of their
gradients, the features' heads and everything after them are float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from dcpg.core.augmentations import AUGMENTATIONS
from dcpg.core.encoders import SQRT2, Net, encoder_class, orthogonal, scaled
from dcpg.core.rounded import Rounded
from dcpg.core.state import State, check_tensors
from dcpg.errors import BadInput

if TYPE_CHECKING:
    from dcpg.core.batch import Batch


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


Head = Callable[[int, int, int], nn.Module]
"""Makes a head: (feature size, number of actions, hidden width) -> module with `initialise(generator)`."""


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


class Network(nn.Module):
    """The encoders of a method and the heads on them, under the names theta, phi, policy, value, ..."""

    def __init__(
        self,
        layout: Mapping[str, Mapping[str, Head]],  # encoder -> the heads on it
        shape: tuple[int, ...],
        actions: int,
        net: Net,
        precision: str = "fp32",  # of the encoders' arithmetic
        device: str = "cpu",  # "meta": only shapes, no memory
    ) -> None:
        super().__init__()
        self.encoder_of = {head: encoder for encoder, heads in layout.items() for head in heads}
        with torch.device("meta"):  # no random numbers here: `initialise` draws every weight from its generator
            for encoder, heads in layout.items():
                self.add_module(encoder, encoder_class(shape, net)(shape, net))
                for head, make in heads.items():
                    self.add_module(head, make(net.features, actions, net.discriminator))
        self.to_empty(device=device)
        self.rounded = {name: Rounded(self.get_submodule(name)) for name in layout if precision == "bf16"}

    def initialise(self, generator: Generator) -> Network:
        """Draw every weight from one generator, in the order of the layout."""
        with torch.no_grad():
            for weight in self.parameters():
                weight.fill_(torch.nan)  # to find the weights that are not drawn
            for child in self.children():
                child.initialise(generator)  # type: ignore[operator]
        for name, weight in self.named_parameters():
            if not weight.isfinite().all():
                part = type(self.get_submodule(name.split(".")[0])).__name__
                raise BadInput(f"{part}.initialise leaves {name} without finite values; it must draw every weight.")
        return self

    def compile_encoders(self) -> None:
        """Let torch compile the encoders, in the precision in which they compute."""
        for encoder in dict.fromkeys(self.encoder_of.values()):
            (self.rounded.get(encoder) or self.get_submodule(encoder)).compile()

    def state(self) -> State:
        return State(tensors={k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()})

    def restore(self, state: State) -> None:
        """Load parameters; raise ValueError if a name, shape or dtype differs, or a value is not finite."""
        assert state.tensors is not None
        check_tensors("weights", state.tensors, self.state_dict())
        self.load_state_dict(dict(state.tensors))

    def encode(self, encoder: str, frames: Tensor, chunk: int) -> Tensor:
        """Features of frames, float32, the encoder run over cache-sized chunks."""
        body = self.get_submodule(encoder)
        rounded = self.rounded.get(encoder)
        parts: list[Tensor] = [
            rounded(part) if rounded else body(part)
            for part in torch.tensor_split(frames, math.ceil(len(frames) / chunk))
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Outputs:
    """The networks' outputs for a batch, each computed once, when a term first asks for it."""

    def __init__(self, network: Network, batch: Batch, chunk: int) -> None:
        self.network, self.batch, self.chunk = network, batch, chunk
        self._all_features: dict[str, Tensor] = {}

    def all_features(self, encoder: str) -> Tensor:
        """Features of every frame of the batch, including those that only serve as s'."""
        if encoder not in self._all_features:
            self._all_features[encoder] = self.network.encode(encoder, self.batch.frames, self.chunk)
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
        return F.log_softmax(self.head("policy"), dim=1)

    def value(self, head: str) -> Tensor:
        """V(s) of a value head, float32 [b]."""
        return self.head(head).squeeze(1)

    @cached_property
    def augmented(self) -> Outputs:
        """The same networks on the batch's states under its augmentation."""
        ((name, parameters),) = self.batch.augmentation.items()
        return self._on(AUGMENTATIONS[name].apply(scaled(self.batch.frames), parameters))

    @cached_property
    def other(self) -> Outputs:
        """The same networks on the other state of each sample."""
        return self._on(self.batch.other_frames)

    def _on(self, frames: Tensor) -> Outputs:
        return Outputs(self.network, dataclasses.replace(self.batch, frames=frames), self.chunk)

"""The state of the parts of a run, in a form that files can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

Large = Mapping[str, Tensor] | list[bytes]  # tensors by name, or byte strings


@dataclass(frozen=True)
class State:
    """The state of one part, divided by how it is stored.

    `shared` is what several checkpoints may refer to, such as the rollouts of B: it is written once, under its name,
    and computed or read on demand.
    """

    plain: Any = None  # JSON that is the same on every rank
    tensors: Mapping[str, Tensor] | None = None  # the same on every rank
    own: Any = None  # JSON of this rank alone, stored with its blobs
    blobs: list[bytes] | None = None  # of this rank alone
    shared: Mapping[str, Callable[[], Large]] = field(default_factory=dict)


class Stateful(Protocol):
    """A part of a run that has state; `restore` takes what `state` returns and continues exactly."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None:
        """Raise ValueError, KeyError or TypeError for a state that this part cannot have."""


class Memory(Protocol):
    """A small object with state that lasts from rollout to rollout; its state is JSON data."""

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None:
        """Raise ValueError, KeyError or TypeError for a state that it cannot have."""


def check_tensors(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ValueError for tensors that are not finite or have unexpected names, shapes or dtypes."""
    if set(found) != set(expected):
        odd = sorted(set(found) ^ set(expected))[:3]
        raise ValueError(f"the {what} belong to another network: {', '.join(odd)}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise ValueError(
                f"{name} of the {what} is {tuple(found[name].shape)} {found[name].dtype}, this run has "
                f"{tuple(tensor.shape)} {tensor.dtype}"
            )
        check_finite(f"{name} of the {what}", found[name])


def check_shape(what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError for a tensor that is not finite or has another shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{what} has shape {tuple(tensor.shape)} instead of {shape}")
    check_finite(what, tensor)


def check_finite(what: str, tensor: Tensor) -> None:
    """Raise ValueError for a tensor with a number that is not finite."""
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ValueError(f"{what} is not finite")

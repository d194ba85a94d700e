"""The table of methods, and the decorator that registers one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dcpg.core.method import Common, Method
from dcpg.core.registry import Registry


@dataclass(frozen=True)
class Spec:
    """A method's entry in the table: its settings and how they become a Method."""

    name: str
    settings: type[Common]
    declare: Callable[[Any], Method]
    fixed: Mapping[str, Any]  # settings outside `algorithm` that define the method

    @property
    def summary(self) -> str:
        """The first line of the declaration's docstring."""
        return (self.declare.__doc__ or "").strip().split("\n")[0]


METHODS: Registry[Spec] = Registry("the method")
"""Every method by its name, in the paper's order; those of plugins come last."""


def method(
    name: str, settings: type[Common], fixed: Mapping[str, Any] | None = None
) -> Callable[[Callable[[Any], Method]], Callable[[Any], Method]]:
    """Enter a declaration, a function from settings to a `Method`, into the table of methods.

    `settings` is the class of its settings; `fixed` are values of other settings, by dotted name, that define it.
    """

    def register(declare: Callable[[Any], Method]) -> Callable[[Any], Method]:
        METHODS.enter(name, Spec(name, settings, declare, fixed or {}), declare)
        return declare

    return register


def declare(name: str, settings: Common) -> Method:
    """A method of the table with these settings, to build another one on it."""
    return METHODS[name].declare(settings)

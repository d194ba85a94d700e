"""The table of methods, and the decorator that registers one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dcpg.core.method import Common, Method


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


METHODS: dict[str, Spec] = {}


def method(
    name: str, settings: type[Common], fixed: Mapping[str, Any] | None = None
) -> Callable[[Callable[[Any], Method]], Callable[[Any], Method]]:
    """Register a declaration in the table of methods; `fixed` as in `Spec`."""

    def register(declare: Callable[[Any], Method]) -> Callable[[Any], Method]:
        METHODS[name] = Spec(name, settings, declare, fixed or {})
        return declare

    return register

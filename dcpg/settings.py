"""Settings as frozen dataclasses that validate themselves, addressed by dotted names.

A setting is a dataclass field made by `setting(default, origin, ...)`. The origin says where the default comes
from; the bounds are checked when the dataclass is created, so that a bad value never reaches the first step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

from dcpg.errors import BadInput, unknown

MOST = 10**18  # above any number that a setting may have; 1e999999999 would fill the memory


def setting(
    default: Any,
    origin: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """A dataclass field with an origin and, optionally, inclusive bounds, an exclusive lower bound or choices."""
    metadata = {"origin": origin, "low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Section:
    """A group of settings. Subclasses only declare fields."""

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]  # mypy takes the class for one of its instances
        for f in dataclasses.fields(self):
            value = _coerce(f.name, getattr(self, f.name), hints[f.name])
            object.__setattr__(self, f.name, value)
            _check_bounds(f.name, value, f.metadata)

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """A copy with some fields replaced; unknown names are refused."""
        known = {f.name for f in dataclasses.fields(self)}
        for name in values:
            if name not in known:
                raise unknown("setting", name, known)
        return dataclasses.replace(self, **values)


@functools.cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """Convert a value from JSON or from the text of `--set` to the field's type."""
    if isinstance(value, Section):
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None or value == "none":
            return None
        return _coerce(name, value, next(a for a in args if a is not type(None)))
    if origin is tuple:
        items = [v for v in value.split(",") if v] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise BadInput(f"{name} must be a list such as 1,2,3; got {value!r}.")
        return tuple(_coerce(name, v, args[0]) for v in items)
    try:
        if hint is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[str(value).lower()]
        if hint is int:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            return whole_number(value) if isinstance(value, str) else int(value)
        if hint is float:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
    except (KeyError, ValueError, TypeError):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[hint]
        raise BadInput(f"{name} must be {kind}; got {value!r}.") from None
    if hint is str and not isinstance(value, str):
        raise BadInput(f"{name} must be text; got {value!r}.")
    return value


def whole_number(text: str) -> int:
    """A whole number from text such as 1000000, 1_000_000, 1e6 or 2.5e7; raises ValueError for anything else."""
    try:
        found = Decimal(text.strip())
        if found.is_finite() and abs(found) < MOST and found == found.to_integral_value():
            return int(found)
    except ArithmeticError:
        pass
    raise ValueError(f"{text!r} is not a whole number")


def _check_bounds(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, float) and not math.isfinite(item):
            raise BadInput(f"{name} must be a finite number; got {item}.")
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            if bounds.get("low") is not None and item < bounds["low"]:
                raise BadInput(f"{name} must be at least {bounds['low']}; got {item}.")
            if bounds.get("high") is not None and item > bounds["high"]:
                raise BadInput(f"{name} must be at most {bounds['high']}; got {item}.")
            if bounds.get("above") is not None and item <= bounds["above"]:
                raise BadInput(f"{name} must be above {bounds['above']}; got {item}.")
        if bounds.get("choices") and item not in bounds["choices"]:
            raise BadInput(f"{name} must be one of {', '.join(map(str, bounds['choices']))}; got {item!r}.")


def dotted(section: Section, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every setting of a section and of the sections in it, as (dotted name, value, origin)."""
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if isinstance(value, Section):
            yield from dotted(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", value, f.metadata.get("origin", "")


def override(section: Section, values: Mapping[str, Any]) -> Any:
    """A copy of a nested section with values replaced by dotted name."""
    known = {name for name, _, _ in dotted(section)}
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown("setting", name, known)
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            own[head] = value
    for head, inner in nested.items():
        try:
            own[head] = override(getattr(section, head), inner)
        except BadInput as error:
            raise BadInput(f"{head}.{error}") from None
    return dataclasses.replace(section, **own)

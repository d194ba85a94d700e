"""Tables of what is declared by name, methods and encoders: those of the package, and those that users add."""

from __future__ import annotations

import inspect
import re
from typing import Any, TypeVar

from dcpg.errors import BadInput

T = TypeVar("T")
NAME = re.compile(r"[a-z0-9][a-z0-9+._-]{0,59}")  # also part of a directory's name


class Registry(dict[str, T]):
    """Name -> declaration. A name belongs to the file that declared it; that file may declare it again."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.declared: dict[str, Any] = {}  # name -> the function or class that was decorated
        self.own: frozenset[str] = frozenset()  # what comes with the package; `close` sets it

    def enter(self, name: str, entry: T, declared: Any) -> None:
        """Add an entry; a name that another file has taken is refused."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise BadInput(
                f"{name!r} cannot name {self.kind}: use small letters, digits and + . _ - , at most 60, and begin with "
                "a letter or a digit."
            )
        before = self.declared[name] if name in self else None
        if before is not None and source_of(before) != source_of(declared):
            raise BadInput(
                f"{source_of(declared)} declares {self.kind} {name!r}, which {source_of(before)} has declared "
                "already; choose another name."
            )
        self[name] = entry
        self.declared[name] = declared

    def close(self) -> None:
        """All that comes with the package is entered."""
        self.own = frozenset(self)

    def is_own(self, name: str) -> bool:
        """Whether an entry comes with the package."""
        return name in self.own


def source_of(declared: Any) -> str:
    """The file in which a function or class was written, or its module if there is no such file."""
    try:
        found = inspect.getsourcefile(inspect.unwrap(declared))
    except (TypeError, OSError):  # OSError: a class that was written into a prompt
        found = None
    return found or str(declared.__module__)

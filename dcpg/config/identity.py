"""Names and ids for functions that make environments: equal functions have equal ids, in every process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcpg.core.registry import source_of
from dcpg.methods.plugins import is_installed

DEPTH = 4  # of objects within objects that are looked into


def identity(function: Any) -> tuple[str, str]:
    """A name for reports and directories, and an id that says where a function was written.

    A function without a name, or without a file, is told apart by a hash of its code and of what it refers to; one that
    carries values with it, such as a closure, by a hash of these.
    """
    return _identity(function, DEPTH)


def _identity(function: Any, depth: int) -> tuple[str, str]:
    inner, declared = _innermost(function), declaration(function)
    file, qualified = source_of(declared), declared.__qualname__.replace("<locals>.", "")
    is_path = os.sep in file and Path(file).is_file()
    stem = Path(file).stem if is_path else declared.__module__.rsplit(".", 1)[-1]
    if stem == "__init__":
        stem = Path(file).parent.name
    short = qualified.rsplit(".", 1)[-1]
    code, carried = getattr(declared, "__code__", None), _carried(inner, depth)
    if code is not None and ("<lambda>" in qualified or not is_path):
        digest = _digest(file if is_path else "", str(_code(code)), carried, _globals(inner, code, depth))
        short = f"lambda-{digest}" if "<lambda>" in qualified else f"{short}-{digest}"
        qualified = f"{qualified}-{digest}"
    elif carried:
        qualified += f"-{_digest(carried)}"
    where = os.path.realpath(file) if is_path and not is_installed(file) else declared.__module__
    id_ = f"{where}:{qualified}{_arguments(function, depth)}"
    name = re.sub(r"[^A-Za-z0-9._+=-]+", "-", f"{stem.strip('_')}.{short.strip('_')}").strip("-.")[:64]
    return name or f"env-{_digest(id_)}", id_


def declaration(function: Any) -> Any:
    """What a file declares of a function: of a partial one that within, of an object with __call__ its class."""
    inner = _innermost(function)
    return inner if hasattr(inner, "__qualname__") else type(inner)


def _innermost(function: Any) -> Any:
    return _innermost(function.func) if isinstance(function, functools.partial) else function


def _arguments(function: Any, depth: int) -> str:
    """The arguments that partial functions add, those of the innermost first."""
    if not isinstance(function, functools.partial):
        return ""
    values = [_stable(value, depth) for value in function.args]
    values += [f"{key}={_stable(value, depth)}" for key, value in function.keywords.items()]
    return f"{_arguments(function.func, depth)}({', '.join(values)})"


def anonymous(place: str) -> str:
    """An id, or the place of a plugin, with a hash instead of each folder of this machine: for what is published.

    Different places stay different.
    """
    head, file = "", re.match(r"/.*?\.py(?=:|$)|/[^:]*(?=:|$)", place, re.DOTALL)
    if file is not None:
        folder, name = os.path.split(file[0])
        head, place = f"{_digest(folder)}/{name}", place[file.end() :]
    quoted = re.sub(r"(?<=['\"])/[^'\"]*(?=/[^/'\"]*['\"])", lambda match: _digest(match[0]), place)
    return head + re.sub(r"(?<![\w.])(?:/[^/'\"(),]+)+(?=/)", lambda match: _digest(match[0]), quoted)


def without_folder(place: str) -> str:
    """The same for a file that may lie in any folder."""
    return re.sub(r"^[0-9a-f]{8}/", "", anonymous(place))


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code.hex(), code.co_names, constants, code.co_firstlineno, list(code.co_positions())


def _carried(function: Any, depth: int) -> str:
    """What a function carries with it: closed-over values, defaults, and the object that it belongs to or is."""
    values = list[Any]()
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # of a name that has no value yet
            values.append(cell.cell_contents)
    values += [value for value in getattr(function, "__defaults__", None) or () if value is not None]
    values += [value for value in (getattr(function, "__kwdefaults__", None) or {}).values() if value is not None]
    if hasattr(function, "__self__"):
        values.append(function.__self__)
    carried = [_stable(value, depth) for value in values if value is not function]
    if not hasattr(function, "__qualname__"):  # an object with __call__
        carried.append(_stable(function, depth))
    return ", ".join(carried)


def _globals(function: Any, code: CodeType, depth: int) -> str:
    """The global values that a function refers to, functions within it too."""
    known, names = getattr(function, "__globals__", {}), dict.fromkeys(_names(code))
    return ", ".join(
        f"{name}={_stable(known[name], depth)}" for name in names if name in known and known[name] is not function
    )


def _names(code: CodeType) -> list[str]:
    inside = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return [*code.co_names, *inside]


def _stable(value: Any, depth: int) -> str:
    """A text for a value that is the same in every process, and another one for another value."""
    if not depth:
        return type(value).__qualname__
    if isinstance(value, functools.partial) or inspect.isfunction(value):
        return _identity(value, depth - 1)[1]
    if inspect.ismodule(value) or isinstance(value, type):
        return str(value.__name__)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:  # its bytes are addresses
        return f"object{value.shape}{_digest(_stable(value.ravel().tolist(), depth))}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    try:
        text = repr(value)
    except Exception:  # of the user's own class
        text = " at 0x"
    if isinstance(value, str | bytes) or (" at 0x" not in text and "..." not in text):
        return text
    array = _as_array(value)
    if array is not None:  # a long one, of which the text shows the ends
        return _stable(array, depth)
    kept = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    parts: Any = list(enumerate(value) if isinstance(value, list | tuple) else kept.items())
    if not parts and " at 0x" not in text:
        return text
    return f"{type(value).__qualname__}({', '.join(f'{name}={_stable(part, depth - 1)}' for name, part in parts)})"


def _as_array(value: Any) -> NDArray[Any] | None:
    """An array or tensor of any library, as far as it can be had; torch's may need gradients or be on a GPU."""
    if not hasattr(value, "__array__"):
        return None
    ways: list[Callable[[], Any]] = [
        lambda: value, lambda: value.detach().cpu(), lambda: value.detach().cpu().float(),  # bfloat16
    ]  # fmt: skip
    for way in ways:
        with contextlib.suppress(Exception):  # of the user's own class, too
            return np.asarray(way())
    return None


def _digest(*texts: str) -> str:
    # a name of a folder need not be UTF-8
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:8]

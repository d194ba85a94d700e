"""The C interface of Procgen's library, libenv, in its versions 1 and 3.

The library draws, steps and resets N environments and writes to buffers that are given to it once. The two versions
differ in the order of two structures and in how options are passed; `libenv_version` says which one a library speaks.
It contains no Python, so that every Python can load it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_float, c_int, c_int32, c_uint8, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from dcpg.envs.base import Array
from dcpg.errors import BadInput

OBSERVATION, ACTION, INFO = 1, 2, 3  # the three spaces
UINT8, INT32 = 1, 2
DTYPES: dict[int, np.dtype[Any]] = {UINT8: np.dtype(np.uint8), INT32: np.dtype(np.int32), 3: np.dtype(np.float32)}
MAX_STATE = 2**20  # bytes


class _Option(Structure):
    _fields_ = (("name", c_char * 128), ("dtype", c_int), ("count", c_int), ("data", c_void_p))


class _Options(Structure):
    _fields_ = (("items", POINTER(_Option)), ("count", c_int))


_HEAD = (("name", c_char * 128), ("scalar_type", c_int), ("dtype", c_int))
_NDIM, _SHAPE = ("ndim", c_int), ("shape", c_int * 16)
_BOUNDS = (("low", c_int32), ("high", c_int32))
_OB, _AC, _INFO = ((name, POINTER(c_void_p)) for name in ("ob", "ac", "info"))
_REW, _FIRST = ("rew", POINTER(c_float)), ("first", POINTER(c_uint8))


class _Array1(Structure):
    _fields_ = (*_HEAD, _SHAPE, _NDIM, *_BOUNDS)


class _Array3(Structure):
    _fields_ = (*_HEAD, _NDIM, _SHAPE, *_BOUNDS)


class _Buffers1(Structure):
    _fields_ = (_OB, _REW, _FIRST, _INFO, _AC)


class _Buffers3(Structure):
    _fields_ = (_OB, _AC, _INFO, _REW, _FIRST)


# version of the interface -> an array's description, the buffers, whether the options are passed by value
INTERFACES: dict[int, tuple[type[Structure], type[Structure], bool]] = {
    1: (_Array1, _Buffers1, True),
    3: (_Array3, _Buffers3, False),
}


def functions(interface: int) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The functions of a library: name -> (type of the result, types of the arguments)."""
    array, buffers, by_value = INTERFACES[interface]
    return {
        "libenv_version": (c_int, ()),
        "libenv_make": (c_void_p, (c_int, _Options if by_value else POINTER(_Options))),
        "libenv_get_tensortypes": (c_int, (c_void_p, c_int, POINTER(array))),
        "libenv_set_buffers": (None, (c_void_p, POINTER(buffers))),
        "libenv_observe": (None, (c_void_p,)),
        "libenv_act": (None, (c_void_p,)),
        "libenv_close": (None, (c_void_p,)),
        "get_state": (c_int, (c_void_p, c_int, c_char_p, c_int)),
        "set_state": (None, (c_void_p, c_int, c_char_p, c_int)),
    }


class Libenv:
    """A loaded library. It is never unloaded: its pictures are read once per process."""

    def __init__(self, path: Path) -> None:
        try:
            # the library's own symbols come first, where the system can do that: torch brings another C++ runtime
            self._c: Any = ctypes.CDLL(str(path), mode=ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0))
            for name in functions(1):
                getattr(self._c, name)
        except OSError as error:
            raise BadInput(f"Procgen's library cannot be loaded ({error}).") from None
        except AttributeError as error:
            raise BadInput(f"{path} is not Procgen's library ({error}).") from None
        self.interface = int(self._c.libenv_version())
        if self.interface not in INTERFACES:
            known = " and ".join(map(str, INTERFACES))
            raise BadInput(f"{path} speaks version {self.interface} of Procgen's C interface; dcpg speaks {known}.")
        for name, (result, arguments) in functions(self.interface).items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments

    def make(self, num: int, options: Mapping[str, str | bool | int]) -> Environments:
        """N environments; the options are Procgen's."""
        return Environments(self._c, self.interface, num, options)


class Environments:
    """N environments of a library, and the arrays that they read and write, one row per environment."""

    def __init__(self, c: Any, interface: int, num: int, options: Mapping[str, str | bool | int]) -> None:
        array_type, buffers_type, by_value = INTERFACES[interface]
        data = [_data(value) for value in options.values()]
        items = [
            _Option(name.encode(), dtype, count, ctypes.addressof(held))
            for name, (dtype, count, held) in zip(options, data, strict=True)
        ]
        given = _Options((_Option * len(items))(*items), len(items))
        self._c, self._handle = c, c.libenv_make(num, given if by_value else byref(given))
        if self._handle is None:
            raise BadInput("Procgen's library made no environments.")
        self._close = weakref.finalize(self, c.libenv_close, self._handle)
        spaces = [self._arrays(space, num, array_type) for space in (OBSERVATION, ACTION, INFO)]
        self.observations, self.actions, self.info = spaces
        self.rewards, self.first = np.zeros(num, np.float32), np.zeros(num, np.bool_)
        self._buffers = buffers_type(  # the library keeps these pointers
            ob=_rows(self.observations),
            ac=_rows(self.actions),
            info=_rows(self.info),
            rew=self.rewards.ctypes.data_as(POINTER(c_float)),
            first=self.first.ctypes.data_as(POINTER(c_uint8)),
        )
        c.libenv_set_buffers(self._handle, byref(self._buffers))

    def _arrays(self, space: int, num: int, array_type: type[Structure]) -> dict[str, Array]:
        types: Any = (array_type * self._c.libenv_get_tensortypes(self._handle, space, None))()
        self._c.libenv_get_tensortypes(self._handle, space, types)
        return {t.name.decode(): np.zeros((num, *t.shape[: t.ndim]), DTYPES[t.dtype]) for t in types}

    def observe(self) -> None:
        """Wait for the last step and fill `observations`, `info`, `rewards` and `first`."""
        self._c.libenv_observe(self._handle)

    def act(self) -> None:
        """Step all environments with `actions`."""
        self._c.libenv_act(self._handle)

    def states(self) -> list[bytes]:
        """The state of every environment."""
        buffer = ctypes.create_string_buffer(MAX_STATE)
        lengths = (self._c.get_state(self._handle, i, buffer, MAX_STATE) for i in range(len(self.rewards)))
        return [ctypes.string_at(buffer, length) for length in lengths]

    def set_state(self, index: int, state: bytes) -> None:
        """The library ends the process if the state is not one of its own."""
        self._c.set_state(self._handle, index, state, len(state))

    def close(self) -> None:
        """Free the environments; a second call does nothing."""
        self._close()
        self._c = None  # using them now is an error in Python rather than in C


def _data(value: str | bool | int) -> tuple[int, int, Any]:
    """(type, number of elements, the C value) of an option."""
    if isinstance(value, str):
        text = value.encode()
        return UINT8, len(text), ctypes.create_string_buffer(text)
    return (UINT8, 1, c_uint8(value)) if isinstance(value, bool) else (INT32, 1, c_int32(value))


def _rows(arrays: Mapping[str, Array]) -> Any:
    """Pointers to the rows of all arrays, array after array."""
    rows = [row.ctypes.data for array in arrays.values() for row in array[:, None]]
    return (c_void_p * len(rows))(*rows)

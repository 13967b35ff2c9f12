# SPDX-License-Identifier: Apache-2.0
"""Python's values as arguments and members of C that mean the same.

ctypes would cut an integer to the bits of its C type, and C reads a text only up to its first NUL. Here such a value is
an OverflowError or a ValueError that names its place and itself, before C sees it.
"""

import ctypes
import operator
import os
import re
import reprlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 200


class PathText(ctypes.c_char_p):
    """The type of an argument that is a path: encoded as the paths of open()."""


def _integer(c_type: Any, is_signed: bool) -> Callable[[str, Any], int]:
    bits = 8 * ctypes.sizeof(c_type)
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)

    def convert(place: str, value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{place}: {_shown.repr(value)} is not an integer") from None
        if not least <= number <= most:
            raise OverflowError(f"{place}: {_shown.repr(number)} is not an integer from {least} to {most}")
        return number

    return convert


_address = _integer(ctypes.c_void_p, is_signed=False)


def _pointer(place: str, value: Any) -> Any:
    return _address(place, value) if isinstance(value, int) else value


def _without_nul(place: str, value: Any, data: bytes) -> bytes:
    if b"\0" in data:
        raise ValueError(f"{place} {_shown.repr(value)} has a NUL")
    return data


def text(place: str, value: Any) -> Optional[bytes]:
    """A text for C, in UTF-8. ValueError if it has a NUL or an unpaired surrogate."""
    if value is None or isinstance(value, bytes):
        return value if value is None else _without_nul(place, value, value)
    try:
        return _without_nul(place, value, value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{place} {_shown.repr(value)} has an unpaired surrogate, which UTF-8 lacks") from None


def path(place: str, value: Any) -> bytes:
    """A path for C. ValueError if it has a NUL, or a surrogate that does not stand for a byte (os.fsencode)."""
    try:
        return _without_nul(place, value, os.fsencode(value))
    except UnicodeEncodeError:
        raise ValueError(f"{place} {_shown.repr(value)} has an unpaired surrogate, which no path has") from None


_CONVERTERS: Dict[Any, Callable[[str, Any], Any]] = {
    ctypes.c_int32: _integer(ctypes.c_int32, is_signed=True),
    ctypes.c_int64: _integer(ctypes.c_int64, is_signed=True),
    ctypes.c_size_t: _integer(ctypes.c_size_t, is_signed=False),
    ctypes.c_void_p: _pointer,
    ctypes.c_char_p: text,
    PathText: path,
}
# Arguments that a message can name by their type.
_NOUNS = {ctypes.c_char_p: "name", PathText: "path"}


class Struct(ctypes.Structure):
    """A struct whose members are checked when they are set."""

    _converters: Dict[str, Callable[[str, Any], Any]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._converters = {name: _CONVERTERS[kind] for name, kind, *_ in cls._fields_ if kind in _CONVERTERS}

    def __setattr__(self, name: str, value: Any) -> None:
        convert = self._converters.get(name)
        super().__setattr__(name, value if convert is None else convert(name, value))


def checked(name: str, function: Any) -> Callable[..., Any]:
    """`function`, a function of C with its argtypes, called with checked arguments."""
    converters = [_CONVERTERS.get(kind) for kind in function.argtypes]
    places = [_NOUNS.get(kind, name) for kind in function.argtypes]

    def call(*arguments: Any) -> Any:
        if len(arguments) != len(converters):
            raise TypeError(f"{name} takes {len(converters)} arguments, not {len(arguments)}")
        return function(*(a if c is None else c(p, a) for c, p, a in zip(converters, places, arguments)))

    return call


def role_lines(layout: Any) -> Optional[str]:
    """A `layout` as C has it: its `roles`, one per line."""
    lines = roles(layout)
    return None if lines is None else "\n".join(lines)


def roles(layout: Any) -> Optional[List[str]]:
    """A `layout` as `ckpt --map` has it, {"app.model": "model"} as ["app.model=model"]. ValueError for a line break in
    one, which separates them for C."""
    if layout is None:
        return None
    lines = [layout] if isinstance(layout, str) else layout
    lines = [f"{branch}={role}" for branch, role in lines.items()] if isinstance(lines, Mapping) else list(lines)
    for line in lines:
        if not isinstance(line, str):
            raise TypeError(f"layout: {_shown.repr(line)} is not a str such as 'app.model=model'")
        if "\n" in line:
            raise ValueError(f"layout: {_shown.repr(line)} has a line break")
    return lines


def root_and_name(place: str, value: Any) -> Tuple[str, str]:
    """The path of a checkpoint to save, as its directory and its name."""
    path(place, value)
    text = os.fsdecode(value)
    root, name = os.path.split(text.rstrip("/"))
    if name in ("", ".", ".."):
        raise ValueError(f"{text!r} is not the path of a checkpoint: it does not end in a name")
    return root or ("/" if text.startswith("/") else "."), name


def step_of(name: str) -> int:
    """The step that the name of a checkpoint tells: N of step=N, or else its last number, or else 0.

    >>> step_of("epoch=3-step=100.ckpt"), step_of("checkpoint-500"), step_of("best")
    (100, 500, 0)
    """
    numbers = re.findall(r"step[=_-]?([0-9]+)", name) or re.findall(r"[0-9]+", name)
    return int(numbers[-1]) if numbers and int(numbers[-1]) < 2**63 else 0


def int64(place: str, value: Any) -> int:
    """An int64_t for C."""
    return _CONVERTERS[ctypes.c_int64](place, value)


def int64_array(place: str, values: Any) -> Any:
    """The values as an array of C, which has at least one element."""
    convert = _CONVERTERS[ctypes.c_int64]
    return (ctypes.c_int64 * max(1, len(values)))(*(convert(place, value) for value in values))

# SPDX-License-Identifier: Apache-2.0
"""Python's values as texts of a checkpoint and back, exactly, in the form that ckpt reads and writes too.

A value that JSON lacks is an object with the member "__python__": {"__python__": "tuple", "items": [0.9, 0.95]}. The text
of a string is the string itself, unless that could be read as another value.
"""

import io
import json
import math
from typing import Any, Callable, Dict, Optional

import torch

_TAG = "__python__"


class _Inexact(Exception):
    """The value has no such form."""


def _tagged(kind: str, member: str, value: Any) -> Dict[str, Any]:
    return {_TAG: kind, member: value}


def json_of(value: Any) -> Any:
    """The value as JSON's dicts, lists, strings and numbers. _Inexact if it has no such form."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int and -(2**63) <= value < 2**64:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else _tagged("float", "value", str(value))
    if type(value) is list:
        return [json_of(item) for item in value]
    if type(value) is tuple:
        return _tagged("tuple", "items", [json_of(item) for item in value])
    if type(value) is set:
        return _tagged("set", "items", sorted((json_of(item) for item in value), key=repr))
    if type(value) is bytes:
        return _tagged("bytes", "hex", value.hex())
    if type(value) is dict:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: json_of(item) for key, item in value.items()}
        return _tagged("dict", "items", [[json_of(key), json_of(item)] for key, item in value.items()])
    if isinstance(value, torch.dtype):
        return _tagged("global", "name", str(value))
    raise _Inexact


def has_json(value: Any) -> bool:
    """Whether json_of takes the value."""
    try:
        json_of(value)
    except (_Inexact, RecursionError):
        return False
    return True


def _dtype(name: str) -> torch.dtype:
    value = getattr(torch, name.replace("torch.", "", 1), None)
    if not isinstance(value, torch.dtype):
        raise _Inexact
    return value


_KINDS: Dict[str, Callable[[Dict[str, Any]], Any]] = {
    "float": lambda json: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[json["value"]],
    "tuple": lambda json: tuple(map(value_of_json, json["items"])),
    "set": lambda json: set(map(value_of_json, json["items"])),
    "bytes": lambda json: bytes.fromhex(json["hex"]),
    "dict": lambda json: {value_of_json(key): value_of_json(item) for key, item in json["items"]},
    "global": lambda json: _dtype(json["name"]),
}


def value_of_json(value: Any) -> Any:
    """The inverse of json_of. ValueError for a kind that this release does not know."""
    if isinstance(value, list):
        return [value_of_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: value_of_json(item) for key, item in value.items()}
    try:
        return _KINDS[value[_TAG]](value)
    except (_Inexact, KeyError, TypeError, ValueError):
        raise ValueError(f"{json.dumps(value)[:200]} is no value that this release of fsdp_checkpoint reads") from None


def _parsed(text: str) -> Any:
    """The JSON of `text`; ValueError for what JSON lacks, which Python's parser takes (NaN)."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def _is_json(text: str) -> bool:
    try:
        _parsed(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate
        return False
    return True


def text_of(value: Any) -> Optional[str]:
    """The text of a value, or None if it has none from which it comes back equal and of the same types."""
    if type(value) is str and not _is_json(value):
        return value if _is_utf8(value) else None
    try:
        text = json.dumps(json_of(value), allow_nan=False)
        return text if same(value_of_text(text), value) else None
    except (_Inexact, RecursionError, ValueError):
        return None


def value_of_text(text: str) -> Any:
    """The inverse of text_of."""
    try:
        parsed = _parsed(text)
    except (ValueError, RecursionError):
        return text
    return value_of_json(parsed)


def value_of_pickle(data: bytes) -> Any:
    """The value that torch.save wrote as `data`; an exception of torch.load for one that weights_only refuses."""
    return torch.load(io.BytesIO(data), weights_only=True)


def pickle_of_value(value: Any) -> io.BytesIO:
    """The form in which planners take a value: the bytes of torch.save."""
    data = io.BytesIO()
    torch.save(value, data)
    data.seek(0)
    return data


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, with the types and the order of everything inside them."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set):
        return a == b
    return repr(a) == repr(b)  # separates 0.0 from -0.0, and NaN equals itself

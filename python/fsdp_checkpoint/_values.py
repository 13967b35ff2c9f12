# SPDX-License-Identifier: Apache-2.0
"""Python's values as texts of a checkpoint and back, exactly, in the form that ckpt reads and writes too.

The text of a value is its JSON, without spaces. A value that JSON lacks is an object with the member "__python__":

    (0.9, 0.95)          {"__python__":"tuple","items":[0.9,0.95]}; also set, frozenset, complex
    {30: 1}              {"__python__":"dict","items":[[30,1]]}; also OrderedDict, Counter
    b"\\x01"              {"__python__":"bytes","hex":"01"}; also bytearray, int beyond 64 bits, str with a surrogate
    float("inf")         {"__python__":"float","value":"inf"}
    numpy.int64(3)       {"__python__":"numpy","module":"numpy._core.multiarray","dtype":"<i8","shape":null,"hex":...}
    torch.bfloat16       {"__python__":"global","name":"torch.bfloat16"}
    torch.device("cpu")  {"__python__":"call","name":"torch.device","items":["cpu"]}

The text of a string is the string itself, unless it reads as a value: then it is quoted. Programs must agree on what
reads as a value: only the text that would be written for it, but for the spelling of floating-point numbers.

NumPy and PyTorch are not imported until there is a value of theirs.
"""

import collections
import json
import math
import pickle
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

_TAG = "__python__"
_MOST_LEVELS = 3 * 48 + 2  # of lists and objects, as in ckpt
# A larger array of NumPy, or one of floating-point numbers, is no plain value for ckpt.
_NUMPY_BYTES = 16384
_NUMPY_DTYPES = "|b1 |i1 |u1 <i2 <u2 <i4 <u4 <i8 <u8 <f2 <f4 <f8 <c8 <c16".split()
_FLOAT = re.compile(r"-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)")


class _Inexact(Exception):
    """The value has no such form."""


def _tagged(kind: str, member: str, value: Any) -> Dict[str, Any]:
    return {_TAG: kind, member: value}


def _hex(kind: str, data: bytes) -> Dict[str, Any]:
    return _tagged(kind, "hex", data.hex())


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return _hex("str", value.encode("utf-8", "surrogatepass"))
    return value


def has_names(value: Dict[Any, Any]) -> bool:
    """Whether JSON has the keys."""
    return all(type(key) is str and type(_text(key)) is str for key in value) and _TAG not in value


def _dict(value: Dict[Any, Any]) -> Any:
    if has_names(value):
        return {key: json_of(item) for key, item in value.items()}
    return _pairs("dict", value)


def _pairs(kind: str, value: Dict[Any, Any]) -> Any:
    return _tagged(kind, "items", [[json_of(key), json_of(item)] for key, item in value.items()])


def _int(value: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    return _hex("int", pickle.encode_long(value))


def _items(kind: str) -> Callable[[Any], Any]:
    return lambda value: _tagged(kind, "items", [json_of(item) for item in value])


def _unordered(kind: str) -> Callable[[Any], Any]:
    return lambda value: _tagged(kind, "items", sorted(map(json_of, value), key=repr))


# By the exact type: a subclass may be more than its items.
_ENCODERS: Dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _int,
    float: lambda value: value if math.isfinite(value) else _tagged("float", "value", str(value)),
    str: _text,
    bytes: lambda value: _hex("bytes", value),
    bytearray: lambda value: _hex("bytearray", value),
    complex: lambda value: _tagged("complex", "items", [json_of(value.real), json_of(value.imag)]),
    list: lambda value: [json_of(item) for item in value],
    tuple: _items("tuple"),
    set: _unordered("set"),
    frozenset: _unordered("frozenset"),
    dict: _dict,
    collections.OrderedDict: lambda value: _pairs("OrderedDict", value),
    collections.Counter: lambda value: _pairs("Counter", value),
}


def json_of(value: Any) -> Any:
    """The value as JSON's dicts, lists, strings and numbers. _Inexact if it has no such form."""
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        return encode(value)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return _tagged("global", "name", str(value))
    if torch is not None and type(value) is torch.Size:
        return {_TAG: "call", "name": "torch.Size", "items": [json_of(tuple(value))]}
    if torch is not None and type(value) is torch.device:
        return {_TAG: "call", "name": "torch.device", "items": [str(value)]}
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
        return _json_of_numpy(numpy, value)
    raise _Inexact


def _json_of_numpy(numpy: Any, value: Any) -> Any:
    is_scalar = isinstance(value, numpy.generic)
    kept = is_scalar or (type(value) is numpy.ndarray and value.dtype.kind not in "fc" and value.flags.c_contiguous)
    if not kept or value.dtype.str not in _NUMPY_DTYPES or not 0 < value.nbytes <= _NUMPY_BYTES:
        raise _Inexact
    shape = None if is_scalar else list(value.shape)
    members = {"module": "numpy._core.multiarray", "dtype": value.dtype.str, "shape": shape}
    return {_TAG: "numpy", **members, "hex": value.tobytes().hex()}


def json_of_tensor(value: Any) -> Any:
    """The JSON of a small tensor among hyperparameters."""
    import torch

    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {_TAG: "tensor", "dtype": str(value.dtype)[len("torch.") :], "shape": list(value.shape), "hex": data.hex()}


def has_json(value: Any) -> bool:
    """Whether json_of takes the value."""
    try:
        json_of(value)
    except (_Inexact, RecursionError):
        return False
    return True


_Decode = Callable[[Any], Any]


def _global(name: str) -> Any:
    import torch

    value = getattr(torch, name.replace("torch.", "", 1), None)
    if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        raise _Inexact
    return value


def _called(name: str, items: Any) -> Any:
    import torch

    if name not in ("torch.Size", "torch.device"):
        raise _Inexact
    return getattr(torch, name.replace("torch.", "", 1))(*items)


def _numpy(json: Dict[str, Any], of: _Decode) -> Any:
    import numpy

    if json["dtype"] not in _NUMPY_DTYPES:
        raise _Inexact
    array = numpy.frombuffer(bytes.fromhex(json["hex"]), json["dtype"])
    return array[0] if json["shape"] is None else array.reshape(json["shape"]).copy()


def _tensor(json: Dict[str, Any], of: _Decode) -> Any:
    import torch

    tensor = torch.frombuffer(bytearray.fromhex(json["hex"]), dtype=_global("torch." + json["dtype"]))
    return tensor.reshape(json["shape"]).clone()


def _items_of(json: Dict[str, Any], of: _Decode) -> Any:
    return map(of, json["items"])


def _pairs_of(json: Dict[str, Any], of: _Decode) -> Any:
    return [(of(key), of(item)) for key, item in json["items"]]


# `of` decodes the values inside.
_KINDS: Dict[str, Callable[[Dict[str, Any], _Decode], Any]] = {
    "float": lambda json, of: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[json["value"]],
    "int": lambda json, of: pickle.decode_long(bytes.fromhex(json["hex"])),
    "str": lambda json, of: bytes.fromhex(json["hex"]).decode("utf-8", "surrogatepass"),
    "bytes": lambda json, of: bytes.fromhex(json["hex"]),
    "bytearray": lambda json, of: bytearray.fromhex(json["hex"]),
    "complex": lambda json, of: complex(*_items_of(json, of)),
    "tuple": lambda json, of: tuple(_items_of(json, of)),
    "set": lambda json, of: set(_items_of(json, of)),
    "frozenset": lambda json, of: frozenset(_items_of(json, of)),
    "dict": lambda json, of: dict(_pairs_of(json, of)),
    "OrderedDict": lambda json, of: collections.OrderedDict(_pairs_of(json, of)),
    "Counter": lambda json, of: collections.Counter(dict(_pairs_of(json, of))),
    "global": lambda json, of: _global(json["name"]),
    "call": lambda json, of: _called(json["name"], list(_items_of(json, of))),
    "numpy": _numpy,
    "tensor": _tensor,
}


def value_of_json(value: Any, stored: Optional[_Decode] = None) -> Any:
    """The inverse of json_of. ValueError for a kind that this release does not know. `stored` gives the values that are
    only referred to (reference)."""

    def of(item: Any) -> Any:
        return value_of_json(item, stored)

    if isinstance(value, list):
        return list(map(of, value))
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: of(item) for key, item in value.items()}
    if stored is not None and is_reference(value):
        return stored(value)
    try:
        return _KINDS[value[_TAG]](value, of)
    except (_Inexact, ImportError, KeyError, RuntimeError, TypeError, ValueError):
        raise ValueError(f"{json.dumps(value)[:200]} is no value that this release of fsdp_checkpoint reads") from None


def stored_as(name: str, kind: str) -> Dict[str, Any]:
    """The JSON of a tensor that a checkpoint has under a name of its own, `kind` being whose it is: "numpy", "torch"."""
    return {_TAG: "stored", "name": name, "kind": kind}


def is_reference(json: Any) -> bool:
    """Whether it is the JSON of such a tensor, or ckpt's of another extra value."""
    return isinstance(json, dict) and json.get(_TAG) in ("reference", "stored") and isinstance(json.get("name"), str)


def references_in(json: Any) -> Iterator[Dict[str, Any]]:
    """The references in the JSON of a value."""
    if is_reference(json):
        yield json
    elif isinstance(json, (dict, list)):
        for item in json.values() if isinstance(json, dict) else json:
            yield from references_in(item)


def with_members(value: Any, members: List[Tuple[Any, Any]]) -> Any:
    """As json_of(value), a dict, list or tuple, with the JSON of its members given."""
    if type(value) is list:
        return [item for _, item in members]
    if type(value) is tuple:
        return _tagged("tuple", "items", [item for _, item in members])
    if type(value) is dict and has_names(value):
        return dict(members)
    return _tagged(type(value).__name__, "items", [[json_of(key), item] for key, item in members])


def with_lists(value: Any) -> Any:
    """A nested dict whose keys are those of DCP's paths, with lists: a number in a path is that of an item."""
    if not isinstance(value, dict):
        return value
    members = {key: with_lists(member) for key, member in value.items()}
    if members and sorted(map(repr, members)) == sorted(map(repr, range(len(members)))):
        return [members[number] for number in range(len(members))]
    return members


def dump(value: Any) -> str:
    """JSON as ckpt writes it."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _levels(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, items), default=0) if isinstance(value, (dict, list)) else 0


def _spelled(text: str) -> str:
    """`text` with one spelling of each floating-point number."""
    return _FLOAT.sub(lambda number: repr(float(number[0])), text)


def _parsed(text: str) -> Any:
    """The JSON that `text` is the JSON of; _Inexact if there is none."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    if text[:1] not in tuple('[{"-0123456789tfn'):
        raise _Inexact
    try:
        value = json.loads(text, parse_constant=refuse)
        written = dump(value)
        has_form = text == written or _spelled(text) == _spelled(written)
        if has_form and _levels(value) <= _MOST_LEVELS and _has_known_kinds(value):
            return value
    except (RecursionError, ValueError):
        pass
    raise _Inexact


def _has_known_kinds(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if not isinstance(value, (dict, list)):
        return True
    items = value
    if isinstance(value, dict):
        kind = value.get(_TAG)
        if isinstance(kind, str) and kind != "reference" and kind not in _KINDS:
            return False
        items = list(value.values())
    return all(map(_has_known_kinds, items))


def reads_as_value(text: str) -> bool:
    """Whether `text` is the text of a value other than a string, quoted any number of times."""
    try:
        value = _parsed(text)
        while isinstance(value, str):
            value = _parsed(value)
    except _Inexact:
        return False
    return True


def text_of(value: Any) -> Optional[str]:
    """The text of a value, or None if it has none from which it comes back equal and of the same types."""
    try:
        if type(value) is str and "\0" in value:  # which no text of a checkpoint has
            return dump(_hex("str", value.encode("utf-8", "surrogatepass")))
        if type(value) is str and type(_text(value)) is str:
            return dump(value) if reads_as_value(value) else value
        text = dump(json_of(value))
        return text if same(value_of_text(text), value) else None
    except (_Inexact, RecursionError, ValueError):
        return None


def json_of_text(text: str) -> Any:
    """The JSON of the value of a text."""
    return _parsed(text) if reads_as_value(text) else text


def value_of_text(text: str) -> Any:
    """The inverse of text_of."""
    return value_of_json(json_of_text(text))


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, with the types and the order of everything inside them."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if type(a) is not type(b):
        return False
    if torch is not None and isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if numpy is not None and isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return a == b
    return repr(a) == repr(b)  # separates 0.0 from -0.0, and NaN equals itself

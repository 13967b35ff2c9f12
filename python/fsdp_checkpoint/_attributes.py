# SPDX-License-Identifier: Apache-2.0
"""The attributes of a checkpoint: facts about its run, such as the config of the model, by name.

    {"model": {"n_head": 4}, "lr": 1e-3, "betas": [0.9, 0.95]}

is saved as model.n_head = 4, lr = 0.001 and betas = "[0.9,0.95]", in the form of train_gpt's: a checkpoint has numbers,
texts, booleans and null by name, so a dict is divided, and a list is its JSON.
"""

import json
import math
import numbers
import os
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple


def _refused(name: str, why: str, kind: type = TypeError) -> Exception:
    return kind(f"attributes: {name}: {why}" if name else f"attributes: {why}")


def _inside(name: str, key: Any) -> str:
    """The name of a member."""
    if type(key) is not int and not isinstance(key, str):
        raise _refused(name, f"the key {key!r} is neither a str nor an int")
    text = str.__str__(key) if isinstance(key, str) else str(key)
    return f"{name}.{text}" if name else text


def _plain(name: str, value: Any) -> Any:
    """The value as JSON has it. A scalar of NumPy, or a tensor without dimensions, is its number."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration of texts its text
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise _refused(name, f"{value} cannot be stored, only finite numbers can", ValueError)
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_plain(_inside(name, number), item) for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [(key, _plain(_inside(name, key), item)) for key, item in value.items()]
        members = {_inside("", key): item for key, item in items}
        if len(members) != len(value):
            raise _refused(name, "two keys are the same text, a number and a str", ValueError)
        return members
    raise _refused(
        name, f"a {type(value).__name__} is none of dict, list, tuple, str, int, float, bool and None; use str() of it"
    )


def _scalars(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    """The values by their names."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _scalars(_inside(name, key), item)
    elif isinstance(value, (dict, list)):
        yield name, json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    else:
        yield name, value


def encode(attributes: Optional[Mapping[str, Any]]) -> Optional[str]:
    """The attributes as C takes them; None: there are none. TypeError or ValueError names one that cannot be stored."""
    if attributes is None:
        return None
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes: expected a dict, found a {type(attributes).__name__}")
    named: Dict[str, Any] = {}
    for name, value in _scalars("", _plain("", attributes)) if attributes else ():
        if name in named:
            raise _refused(name, "two values have this name; the members of a dict are named with points", ValueError)
        named[name] = value
    return json.dumps(named, allow_nan=False)

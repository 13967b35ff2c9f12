# SPDX-License-Identifier: Apache-2.0
"""Shared by Writer and Reader: names, dtypes, and boxes of tensors as intervals of elements."""

import io
import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import _library

# The text with DCP's names: {"version": 1, "keys": {its name: [kind, our name, path in the nested state dict]}}.
INDEX = "extra/torch.distributed.checkpoint"


class SavedTensor(NamedTuple):
    fqn: str
    name: str  # ours
    dtype: str
    shape: Tuple[int, ...]


class SharedPlan(NamedTuple):
    """Data about all ranks that every rank needs: DCP scatters it with the rank's items."""

    rank: int
    world_size: int
    tensors: List[SavedTensor]
    paths: Dict[str, Tuple[Any, ...]]  # the path of each DCP name in the nested state dict


def dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).replace("torch.", "")
    if name not in _library.DTYPE_NUMBERS:
        raise TypeError(f"tensors of {dtype} cannot be saved; wanted one of {', '.join(_library.DTYPES)}")
    return name


def our_name(fqn: str, path: Tuple[Any, ...], is_model_alone: bool) -> str:
    parts = [str(part) for part in path]
    if parts[0] == "model" and len(parts) > 1:
        return "model/" + ".".join(parts[1:])
    if parts[0] in ("optim", "optimizer") and len(parts) == 4 and parts[1] == "state" and "/" not in parts[3]:
        return f"optim/state/{parts[2]}/{parts[3]}"
    return ("model/" if is_model_alone and len(parts) == 1 else "extra/") + fqn


def runs_of(offsets: Tuple[int, ...], sizes: Tuple[int, ...], shape: Tuple[int, ...]) -> List[Tuple[int, int]]:
    """A box of a row-major tensor as intervals of elements, in order: one interval if it has whole rows."""
    whole = len(shape)
    while whole > 0 and sizes[whole - 1] == shape[whole - 1]:
        whole -= 1
    inner = 1
    for size in shape[whole:]:
        inner *= size
    if whole == 0:
        return [(0, inner)]
    starts, stride = [0], inner
    length = sizes[whole - 1] * inner
    for axis in range(whole - 1, -1, -1):
        steps = [offsets[axis]] if axis == whole - 1 else range(offsets[axis], offsets[axis] + sizes[axis])
        starts = [step * stride + start for step in steps for start in starts]
        stride *= shape[axis]
    return [(start, start + length) for start in sorted(starts)]


def numel_of(sizes: Tuple[int, ...]) -> int:
    numel = 1
    for size in sizes:
        numel *= size
    return numel


def exact_json(data: bytes) -> Optional[str]:
    """The value that torch.save wrote as `data`, as JSON; None if JSON would change it."""
    try:
        value = torch.load(io.BytesIO(data), weights_only=True)
        text = json.dumps(value, allow_nan=True)
        return text if _same(json.loads(text), value) else None
    except Exception:  # torch.load and json raise many: such a value is kept as its bytes
        return None


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return repr(a) == repr(b)  # separates 0.0 from -0.0, and NaN equals itself

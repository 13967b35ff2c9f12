# SPDX-License-Identifier: Apache-2.0
"""Replicas: a value that several ranks plan to save, of which DCP saves one rank's. Others that differ are a warning.

  1. The plan of each rank carries the indices of all of its items. The coordinator, which sees the plans when DCP has
     left each value to one rank, tells every rank which of its tensors others have too (shared_tensors).
  2. A rank has a Mark of each of these, and its own of each value that another rank saves (copies_of). The marks go to
     the others with the values that are no tensors, which every rank gets.
  3. Each rank compares its copies with what is saved (differences). What it finds goes with the next gather of the
     save, so that no message is added, and rank 0 warns (warning).

Of a tensor of more than _SAMPLED bytes as many are compared, in _PIECES pieces: ranks whose states diverged differ
nearly everywhere, and a save does not read everything once more.
"""

import ctypes
import hashlib
import reprlib
from collections import Counter
from typing import Any, Collection, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from ._torch_memory import in_rows, plain_tensor
from ._torch_names import Key, dtype_name
from ._torch_values import UNREADABLE, pickle_of_value, readable_value
from ._values import same

_SAMPLED, _PIECES = 1 << 16, 16
_MOST_NAMED = 8


class Planned(NamedTuple):
    """The items of a rank's plan, before DCP leaves each to one rank."""

    indices: List[MetadataIndex]


class Mark(NamedTuple):
    """A tensor, to be compared."""

    digest: bytes
    shown: str


# By key: a Mark of a tensor, and the bytes of torch.save of another value.
Copies = Dict[Key, Union[Mark, bytes]]


class Difference(NamedTuple):
    """A value of `rank` that is not the one that is saved, which is the saver's."""

    fqn: str
    rank: int
    has: str
    saver: int
    saved: str


class Found(NamedTuple):
    """What a rank has found: the first ones, and how many there are."""

    first: List[Difference]
    count: int


def key_of(index: MetadataIndex) -> Key:
    return index.fqn, None if index.offset is None else tuple(index.offset)


def planned(plan: SavePlan) -> Planned:
    return Planned([item.index for item in plan.items])


def shared_tensors(plans: Sequence[SavePlan]) -> List[FrozenSet[Key]]:
    """By rank: the tensors of its plan that other ranks had planned too. Empty if a planner has replaced the
    storage_data of the plans (Planned), so that they are unknown."""
    counts: "Counter[MetadataIndex]" = Counter()
    for plan in plans:
        if isinstance(plan.storage_data, Planned):
            counts.update(plan.storage_data.indices)
    return [
        frozenset(key_of(i.index) for i in plan.items if i.type != WriteItemType.BYTE_IO and counts[i.index] > 1)
        for plan in plans
    ]


def mark_of(tensor: torch.Tensor) -> Mark:
    """The mark of a tensor that is row-major, on any device."""
    data = tensor.reshape(-1).view(torch.uint8)
    nbytes, piece = data.numel(), _SAMPLED // _PIECES
    if nbytes > _SAMPLED:
        starts = ((nbytes - piece) * number // (_PIECES - 1) for number in range(_PIECES))
        data = torch.cat([data[start : start + piece] for start in starts])
    data = data.to("cpu")
    form = f"{str(tensor.dtype).replace('torch.', '')} of {list(tensor.shape)}"
    sample = ctypes.string_at(data.data_ptr(), data.numel()) if data.numel() else b""
    return Mark(hashlib.blake2b(form.encode() + sample, digest_size=16).digest(), _number_of(tensor) or form)


def _number_of(tensor: torch.Tensor) -> str:
    """The only element of a tensor; "": it has several."""
    try:
        return repr(tensor.item()) if tensor.numel() == 1 else ""
    except (RuntimeError, NotImplementedError):  # dtypes without numbers in Python
        return ""


def copies_of(
    items: Sequence[WriteItem], saved: Sequence[WriteItem], planner: SavePlanner, tensors: Collection[str]
) -> Copies:
    """This rank's own of the planned `items` that are not among those that it saves. `tensors` are the names of those
    that are saved as tensors. One that the planner cannot give here is left out: nothing of it would be saved."""
    own = {item.index for item in saved}
    copies: Copies = {}
    for item in items:
        if item.index in own:
            continue
        try:
            copies[_place(item, tensors)] = _copy_of(item, planner.resolve_data(item), tensors)
        except Exception:
            continue
    return copies


def _place(item: WriteItem, tensors: Collection[str]) -> Key:
    return key_of(item.index) if item.index.fqn in tensors else (item.index.fqn, None)


def _copy_of(item: WriteItem, data: Any, tensors: Collection[str]) -> Union[Mark, bytes]:
    if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        return data.getvalue()
    if item.index.fqn not in tensors:
        return pickle_of_value(data.detach().cpu()).getvalue()
    fqn, dtype = item.index.fqn, dtype_name(item.index.fqn, item.tensor_data.properties.dtype)
    plain = plain_tensor(fqn, data, dtype, item.tensor_data.chunk.sizes)
    is_in_rows = plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()
    return mark_of(plain if is_in_rows else in_rows(fqn, plain))


def differences(rank: int, copies: Copies, saved: Sequence[Copies]) -> Found:
    """What of the copies of `rank` is not equal to what is saved, by the rank that saves it."""
    savers = {key: (saver, value) for saver, values in enumerate(saved) for key, value in values.items()}
    found = []
    for key, copy in copies.items():
        if key not in savers or _is_same(copy, savers[key][1]):
            continue
        saver, value = savers[key]
        has, other = _shown(copy), _shown(value)
        found.append(Difference(key[0], rank, has if has != other else "other contents", saver, other))
    return Found(found[:_MOST_NAMED], len(found))


def _is_same(copy: Union[Mark, bytes], saved: Union[Mark, bytes]) -> bool:
    if isinstance(copy, Mark) and isinstance(saved, Mark):
        return copy.digest == saved.digest
    if isinstance(copy, Mark) or isinstance(saved, Mark):
        return False
    if copy == saved:
        return True
    values = readable_value(copy), readable_value(saved)  # torch.save writes a set in any order
    try:
        return all(value is not UNREADABLE for value in values) and same(*values)
    except Exception:
        return False


def _shown(value: Union[Mark, bytes]) -> str:
    if isinstance(value, Mark):
        return value.shown
    read = readable_value(value)
    return f"a pickle of {len(value)} bytes" if read is UNREADABLE else reprlib.repr(read)


def warning(found: Sequence[Optional[Found]]) -> Optional[str]:
    """The text of a warning about what the ranks have found, by rank; None: nothing."""
    by_value: Dict[Tuple[str, int], List[Difference]] = {}
    for of_rank in found:
        for difference in of_rank.first if of_rank is not None else ():
            by_value.setdefault((difference.fqn, difference.saver), []).append(difference)
    if not by_value:
        return None
    lines = [_line(of_value) for of_value in list(by_value.values())[:_MOST_NAMED]]
    is_cut = len(by_value) > _MOST_NAMED or any(f is not None and f.count > len(f.first) for f in found)
    name = next(iter(by_value))[0]
    return (
        "Writer: ranks have different values under one name, of which a checkpoint has one. Save equal ones, or give "
        f'each rank\'s a name of its own, such as "{name}.rank1":'
        + "".join(f"\n  {line}" for line in [*lines, *(["and others"] if is_cut else [])])
    )


def _line(differing: List[Difference]) -> str:
    first, named = differing[0], differing[:_MOST_NAMED]
    others = ", ".join(f"rank {difference.rank} has {difference.has}" for difference in named)
    more = f", and {len(differing) - len(named)} more ranks differ" if len(differing) > len(named) else ""
    return f"{first.fqn}: {first.saved} is saved, of rank {first.saver}; {others}{more}"

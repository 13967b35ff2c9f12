# SPDX-License-Identifier: Apache-2.0
"""Shared by Writer and Reader: names, dtypes, and what every rank needs of the plans of all."""

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from . import _library
from ._torch_boxes import check_box
from ._torch_exchange import Cut
from ._torch_layout import Layout


# The name of a value and, of a part of a tensor, its offsets.
Key = Tuple[str, Optional[Tuple[int, ...]]]


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
    layout: Layout
    cuts: List[Cut]  # of the rank
    shared: FrozenSet[Key]  # of the tensors that the rank saves, those that other ranks have too


def dtype_name(fqn: str, dtype: torch.dtype) -> str:
    name = str(dtype).replace("torch.", "")
    if name not in _library.DTYPE_NUMBERS:
        raise TypeError(f"{fqn}: no checkpoint has tensors of {dtype}; wanted one of {', '.join(_library.DTYPES)}")
    return name


def agreed_items(plans: List[SavePlan]) -> Dict[str, WriteItem]:
    """One item of each name in the plans of all ranks. ValueError if two say different things about its tensor, or an
    item is not inside of it."""
    items: Dict[str, WriteItem] = {}
    owners: Dict[str, int] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            fqn = item.index.fqn
            first, owner = items.setdefault(fqn, item), owners.setdefault(fqn, rank)
            if _described(item) != _described(first):
                raise ValueError(
                    f"{fqn}: rank {rank} of {len(plans)} plans {_described(item)}, and rank {owner} "
                    f"{_described(first)}; every rank must save it as the same"
                )
            if item.tensor_data is not None:
                chunk = item.tensor_data.chunk
                check_box(fqn, chunk.offsets, chunk.sizes, item.tensor_data.size)
    return items


def _described(item: WriteItem) -> str:
    data = item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        return "a value that is no tensor"
    return f"{str(data.properties.dtype).replace('torch.', '')} of {list(data.size)}"

# SPDX-License-Identifier: Apache-2.0
"""Numbers in an optimizer's state, such as its step, which torch's optimizers have as a tensor without dimensions
(AdamW) or as a number of Python (SparseAdam): what is loaded becomes what the state dict to load has.

A planner plans the reading of a tensor or of another value by the kind of its metadata, before it can be asked what it
wants. NumberMetadata is of both kinds: planners check the size of a tensor, and then plan to read a value, which `give`
gives them in the form that they want.
"""

from typing import Any, Union

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from ._torch_values import pickle_of_value


class NumberMetadata(TensorStorageMetadata, BytesStorageMetadata):
    """The metadata of a tensor without dimensions."""


def is_number(name: str, value: Any) -> bool:
    """Whether the value of that name of a checkpoint is a number of Python in an optimizer's state."""
    return name.startswith("extra/optim/state/") and type(value) in (int, float)


def give(planner: LoadPlanner, item: ReadItem, value: Union[torch.Tensor, int, float]) -> None:
    """Gives a number to a planner: into the tensor that it has for it, or as the int or float that it has, if that is
    the same number, or else as it was saved."""
    wanted = getattr(planner, "state_dict", {}).get(item.dest_index.fqn)
    if isinstance(wanted, torch.Tensor):
        target = (wanted.to_local() if hasattr(wanted, "to_local") else wanted).detach()
        if target.numel() == 1:
            target.copy_(torch.as_tensor(value))
            return
    number = value.item() if isinstance(value, torch.Tensor) else value
    if type(wanted) in (int, float) and type(wanted)(number) == number:
        planner.load_bytes(item, pickle_of_value(type(wanted)(number)))
    else:
        planner.load_bytes(item, pickle_of_value(value))

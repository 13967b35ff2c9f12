# SPDX-License-Identifier: Apache-2.0
"""Verified checkpoints in plain HDF5, and every format that `ckpt` reads, for NumPy and PyTorch.

    with fsdp_checkpoint.open("checkpoints") as checkpoint:
        model.load_state_dict(checkpoint.state_dict())

    fsdp_checkpoint.save("checkpoints/step-1000", {"model": model.state_dict(), "epoch": 3})
    state = fsdp_checkpoint.load("checkpoints/step-1000")

    import torch.distributed.checkpoint as dcp
    from fsdp_checkpoint.torch import Reader, Writer
    dcp.save(state, storage_writer=Writer("checkpoints/step-1000"))
    dcp.load(state, storage_reader=Reader("checkpoints"))

Importing it imports neither NumPy nor PyTorch.
"""

from ._checkpoint import Checkpoint, ReadRequest, TensorInfo, open
from ._inspect import Inspection, inspect
from ._library import CheckpointError, DataLossError, ExistsError, NotFoundError
from ._load import load
from ._object_store import pull, push
from ._operations import convert, diff, verify
from ._save import save
from ._steps import Step, latest, prune, repair, steps

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DataLossError",
    "ExistsError",
    "Inspection",
    "NotFoundError",
    "ReadRequest",
    "Step",
    "TensorInfo",
    "convert",
    "diff",
    "inspect",
    "latest",
    "load",
    "open",
    "prune",
    "pull",
    "push",
    "repair",
    "save",
    "steps",
    "verify",
]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version(__name__)

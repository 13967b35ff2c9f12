# SPDX-License-Identifier: Apache-2.0
"""Writer and Reader: torch.distributed.checkpoint on our checkpoints.

    dcp.save(state, storage_writer=Writer("checkpoints/step-1000"))
    dcp.async_save(state, storage_writer=Writer("checkpoints/step-2000"))
    dcp.load(state, storage_reader=Reader("checkpoints"))

A save is one SHARDED checkpoint: each rank writes the elements that DCP's planner gives it, verified by digests, and
the directory appears by rename when the bytes of every rank are durable. It can be loaded on any number of ranks.

Names: {"model": ...} becomes model/NAME, {"optim": {"state": {NAME: {STATE: tensor}}}} optim/state/NAME/STATE, a state
dict without "model" is a model, and everything else is extra/NAME. Values that are not tensors are JSON if JSON keeps
them exactly, and otherwise the bytes of torch.save. The text extra/torch.distributed.checkpoint has DCP's names.
"""

from ._torch_manager import CheckpointManager
from ._torch_reader import Reader
from ._torch_writer import Writer

__all__ = ["CheckpointManager", "Reader", "Writer"]

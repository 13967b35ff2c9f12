# SPDX-License-Identifier: Apache-2.0
"""Writer and Reader: torch.distributed.checkpoint on our checkpoints.

    dcp.save(state, storage_writer=Writer("checkpoints/step-1000"))
    dcp.async_save(state, storage_writer=Writer("checkpoints/step-2000"))
    dcp.load(state, storage_reader=Reader("checkpoints"))

A save is one SHARDED checkpoint: each rank writes the elements that DCP's planner gives it, verified by digests, and
the directory appears by rename when the bytes of every rank are durable. It can be loaded on any number of ranks.

The model becomes model/NAME, the optimizer optim/state/NAME/STATE and optim/param_groups, whatever they are called in
the state dict, and everything else is extra/NAME (_torch_layout.py). Values that are not tensors are texts if they come
back equal, and otherwise the bytes of torch.save. The text extra/torch.distributed.checkpoint has DCP's names.
"""

from ._torch_manager import CheckpointManager
from ._torch_reader import Reader
from ._torch_writer import Writer

__all__ = ["CheckpointManager", "Reader", "Writer"]

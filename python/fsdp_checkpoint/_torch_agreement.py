# SPDX-License-Identifier: Apache-2.0
"""The ranks of one dcp.load read one checkpoint.

Each rank opens the path by itself, perhaps on another host or a moment later. DCP gathers the ranks' plans, so each
plan carries what its rank has opened; the coordinator compares them and sends rank 0's with the plans that it returns.
No collective of our own is needed, so a load without dist, or of other groups, has none.
"""

import dataclasses
import os
import socket
from typing import List, NamedTuple

import torch.distributed as dist
from torch.distributed.checkpoint.planner import LoadPlan

from ._checkpoint import Checkpoint

_ADVICE = "expected the same on all ranks: give every host a copy of the same checkpoint"


class Opened(NamedTuple):
    """What a rank has opened."""

    host: str
    path: str
    step: str  # the name of the step that was found in a directory of checkpoints, else ""
    identity: str  # Checkpoint.identity(), compared; "" if there is one rank

    def on(self, rank: str) -> str:
        return f"{self.identity} on {rank} ({self.host}, {self.path})"


def opened(path: str, checkpoint: Checkpoint) -> Opened:
    """What this rank has opened at `path`."""
    found = checkpoint.path
    step = "" if found == os.fsdecode(path) else os.path.basename(found)
    has_peers = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Opened(socket.gethostname(), found, step, checkpoint.identity() if has_peers else "")


def agree(plans: List[LoadPlan]) -> List[LoadPlan]:
    """The plans with what rank 0 has opened, which all ranks read. RuntimeError if a rank has opened another."""
    first = opened_of(plans[0])
    for rank, plan in enumerate(plans):
        other = opened_of(plan)
        # A rank that has found another step of a directory opens rank 0's step when it reads, and compares it then.
        can_follow = first.step and other.step and other.step != first.step
        if other.identity != first.identity and not can_follow:
            raise RuntimeError(f"the checkpoint to load: {first.on('rank 0')}, {other.on(f'rank {rank}')}; {_ADVICE}")
    return [dataclasses.replace(plan, storage_data=first) for plan in plans]


def check_same(first: Opened, mine: Opened) -> None:
    """RuntimeError if this rank has not opened what rank 0 has."""
    if mine.identity != first.identity:
        raise RuntimeError(f"the checkpoint to load: {first.on('rank 0')}, {mine.on('this rank')}; {_ADVICE}")


def opened_of(plan: LoadPlan) -> Opened:
    """What the rank of a plan has opened."""
    if not isinstance(plan.storage_data, Opened):
        raise ValueError(
            "Reader: the planner has replaced the storage_data of a plan, with which ranks compare what they read; "
            "use dataclasses.replace to change a LoadPlan"
        )
    return plan.storage_data

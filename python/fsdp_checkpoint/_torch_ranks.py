# SPDX-License-Identifier: Apache-2.0
"""The ranks of one save, among themselves and for the library."""

import ctypes
from typing import Any, List, Optional

import torch.distributed as dist

from . import _library


class Ranks:
    """`world_size` ranks, of the process group `group`, of which this is `rank`."""

    def __init__(self, rank: int, world_size: int, group: Optional[dist.ProcessGroup]) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group
        self.failures: List[BaseException] = []  # of this rank's gathers for the library
        self.notes: List[Any] = []  # of all ranks (for_library)
        self._note: Any = None

    def gather(self, mine: Any) -> List[Any]:
        """The objects of all ranks, by rank. A collective."""
        if self.world_size == 1:
            return [mine]
        size = dist.get_world_size(self.group) if dist.is_initialized() else 1
        if size != self.world_size:
            raise ValueError(
                f"Writer has a process group of {size} ranks, and dcp.save one of {self.world_size}: give both the same"
            )
        gathered: List[Any] = [None] * size
        dist.all_gather_object(gathered, mine, group=self.group)
        return gathered

    def for_library(self, note: Any) -> _library.Struct:
        """The group of fsdp_save, valid as long as this. `note` goes to all ranks with its first gather."""
        self._note = note
        self._callback = _library.Gather(self._gather_blob)
        return _library.options(_library.Group, rank=self.rank, world_size=self.world_size, gather=self._callback)

    def _gather_blob(self, context: int, blob: int, size: int, take: Any, sink: int) -> int:
        try:
            note, self._note = self._note, None
            gathered = self.gather((ctypes.string_at(blob, size) if size else b"", note))
            self.notes = self.notes or [note for _, note in gathered]
            for rank, (other, _) in enumerate(gathered):
                take(sink, rank, other, len(other))
            return 0
        except BaseException as error:  # must not leave a function that C has called
            self.failures.append(error)
            return 1

# SPDX-License-Identifier: Apache-2.0
"""Exchange: boxes of a tensor become whole rows, each on one rank, for a save.

A rank file has one run of the elements of a tensor. Ranks that tensor parallelism gives columns, or any other box that
is not whole rows, have many runs: so the ranks that have parts of such a tensor first divide its rows among them.

  1. The coordinator, which has the plans of all ranks, finds these tensors and gives each rank their Cuts (plan_cuts).
  2. Each rank allocates its rows. The state to save refers to this memory (Exchange.rows).
  3. All ranks fill it, all of these tensors in the same steps (Exchange.run). A step is one all-to-all of about
     _STEP_BYTES a rank. Every rank knows from the Cuts what each step has, so nothing else is sent.

A part of a box in some rows is contiguous in the rank that has the box, since only the first dimension is divided. A
shape is of bytes here: its last dimension is the bytes of an element. Leading dimensions of size 1 are left out.
"""

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.planner import SavePlan

from ._torch_boxes import numel_of, run_of

if TYPE_CHECKING:
    from ._torch_names import SavedTensor

_STEP_BYTES = 1 << 26


class Box(NamedTuple):
    """What a rank has of a tensor."""

    rank: int
    offsets: Tuple[int, ...]
    sizes: Tuple[int, ...]

    def in_rows(self, begin: int, end: int) -> Tuple[int, int]:
        """The rows of the box among [begin, end)."""
        first = max(begin, self.offsets[0])
        return first, max(first, min(end, self.offsets[0] + self.sizes[0]))


class Cut(NamedTuple):
    """A tensor that is exchanged, as one rank sees it."""

    fqn: str
    shape: Tuple[int, ...]
    owners: Tuple[int, ...]  # the ranks that get rows, in the order of the rows
    rows: int  # of each owner; the last ones get fewer, or none
    sources: List[Box]  # that have elements of this rank's rows, sorted

    def rows_of(self, rank: int) -> Tuple[int, int]:
        """The rows that a rank gets."""
        at = self.owners.index(rank) if rank in self.owners else len(self.owners)
        return min(at * self.rows, self.shape[0]), min((at + 1) * self.rows, self.shape[0])

    def owners_of(self, box: Box) -> range:
        """The indices of the owners of the box's rows."""
        return range(box.offsets[0] // self.rows, (box.offsets[0] + box.sizes[0] - 1) // self.rows + 1)


def _in_bytes(values: Sequence[int], leading: int, last: int) -> Tuple[int, ...]:
    return (*values[leading:], last)


def _boxes(plans: List[SavePlan]) -> Dict[str, List[Box]]:
    """The boxes with elements of each tensor."""
    boxes: Dict[str, List[Box]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            chunk = item.tensor_data.chunk if item.tensor_data is not None else None
            if chunk is not None and numel_of(chunk.sizes) != 0:
                boxes.setdefault(item.index.fqn, []).append(Box(rank, tuple(chunk.offsets), tuple(chunk.sizes)))
    return boxes


def _are_runs(boxes: List[Box], shape: Tuple[int, ...]) -> bool:
    """Whether each rank has one run of the elements."""
    ends: Dict[int, int] = {}
    for box in sorted(boxes):
        run = run_of(box.offsets, box.sizes, shape)
        if run is None or ends.get(box.rank, run[0]) != run[0]:
            return False
        ends[box.rank] = run[1]
    return True


def _cut(tensor: "SavedTensor", boxes: List[Box], known: Dict[Tuple[int, ...], Tuple[int, ...]]) -> Cut:
    """The Cut of a tensor, with all boxes as its sources."""
    covered = sum(numel_of(box.sizes) for box in boxes)
    if covered != numel_of(tensor.shape):
        raise ValueError(
            f"{tensor.fqn}: the plans of all ranks have {covered} elements of {list(tensor.shape)}, "
            f"expected each of its {numel_of(tensor.shape)} once"
        )
    leading = next((axis for axis, size in enumerate(tensor.shape) if size != 1), 0)
    size = torch.empty(0, dtype=getattr(torch, tensor.dtype)).element_size()
    sources = sorted(
        box._replace(offsets=_in_bytes(box.offsets, leading, 0), sizes=_in_bytes(box.sizes, leading, size))
        for box in boxes
    )
    # By their rows, so that most rows stay among the ranks that have them.
    owners = tuple(dict.fromkeys(box.rank for box in sorted(sources, key=lambda box: (box.offsets[0], box.rank))))
    shape = _in_bytes(tensor.shape, leading, size)
    # One object for all tensors with these owners: a plan is pickled.
    return Cut(tensor.fqn, shape, known.setdefault(owners, owners), -(-shape[0] // len(owners)), sources)


def plan_cuts(plans: List[SavePlan], tensors: "List[SavedTensor]") -> List[List[Cut]]:
    """By rank: the tensors of which a rank has more than one run of elements. ValueError for one that the plans do not
    cover."""
    boxes = _boxes(plans)
    known: Dict[Tuple[int, ...], Tuple[int, ...]] = {}
    cuts: List[List[Cut]] = [[] for _ in plans]
    for tensor in tensors:
        parts = boxes.get(tensor.fqn, [])
        if _are_runs(parts, tensor.shape):
            continue
        cut = _cut(tensor, parts, known)
        sources: List[List[Box]] = [[] for _ in plans]
        for box in cut.sources:
            for at in cut.owners_of(box):
                sources[cut.owners[at]].append(box)
        for rank, of_rank in enumerate(cuts):
            of_rank.append(cut._replace(sources=sources[rank]))
    return cuts


class _Part(NamedTuple):
    """Rows [begin, end) of every owner's rows, counted from its first: what a step has of a tensor."""

    cut: Cut
    begin: int
    end: int

    def rows_of(self, rank: int) -> Tuple[int, int]:
        first, last = self.cut.rows_of(rank)
        return min(first + self.begin, last), min(first + self.end, last)


def _steps(cuts: List[Cut]) -> Iterator[List[_Part]]:
    """The steps, equal on all ranks."""
    step: List[_Part] = []
    room = _STEP_BYTES
    for cut in cuts:
        row = numel_of(cut.shape[1:])
        begin = 0
        while begin < cut.rows:
            if room < row and step:
                yield step
                step, room = [], _STEP_BYTES
            end = min(cut.rows, begin + max(1, room // row))
            step.append(_Part(cut, begin, end))
            room -= (end - begin) * row
            begin = end
    if step:
        yield step


class Exchange:
    """The exchange of one rank, whose Cuts are `cuts`."""

    def __init__(self, rank: int, cuts: List[Cut]) -> None:
        self._rank, self._cuts = rank, cuts
        self._by_name = {cut.fqn: cut for cut in cuts}
        self._boxes: Dict[str, List[Tuple[Box, torch.Tensor]]] = {cut.fqn: [] for cut in cuts}
        self._rows: Dict[str, torch.Tensor] = {}

    def __contains__(self, fqn: str) -> bool:
        return fqn in self._by_name

    def add(self, fqn: str, offsets: Sequence[int], values: torch.Tensor) -> None:
        """A box of this rank, with its values, row-major in host memory."""
        shape = self._by_name[fqn].shape
        leading = len(offsets) + 1 - len(shape)
        box = Box(self._rank, _in_bytes(offsets, leading, 0), _in_bytes(values.shape, leading, shape[-1]))
        self._boxes[fqn].append((box, values.reshape(-1).view(torch.uint8).reshape(box.sizes)))

    def rows(self, fqn: str) -> List[Tuple[int, int, int]]:
        """The elements that this rank saves, [(begin, end, address)], or []: `run` fills the memory, which lives as
        long as this."""
        cut = self._by_name[fqn]
        begin, end = cut.rows_of(self._rank)
        if begin == end:
            return []
        memory = self._rows[fqn] = torch.empty((end - begin, *cut.shape[1:]), dtype=torch.uint8)
        row = numel_of(cut.shape[1:-1])
        return [(begin * row, end * row, memory.data_ptr())]

    def run(self, world_size: int, group: Optional[dist.ProcessGroup]) -> None:
        """Fills the memory of `rows`, which was called for every Cut. A collective of all ranks of the group."""
        for boxes in self._boxes.values():
            boxes.sort(key=lambda part: part[0])
        for step in _steps(self._cuts):
            self._take(step, world_size, self._all_to_all(self._given(step, world_size), step, world_size, group))
        self._boxes.clear()

    def _given(self, step: List[_Part], world_size: int) -> List[List[torch.Tensor]]:
        """By rank: what it gets of this rank."""
        given: List[List[torch.Tensor]] = [[] for _ in range(world_size)]
        for part in step:
            for box, values in self._boxes[part.cut.fqn]:
                for at in part.cut.owners_of(box):
                    owner = part.cut.owners[at]
                    begin, end = box.in_rows(*part.rows_of(owner))
                    first = box.offsets[0]
                    if begin < end:
                        given[owner].append(values[begin - first : end - first].reshape(-1))
        return given

    def _places(self, step: List[_Part], world_size: int) -> List[List[torch.Tensor]]:
        """By rank: the places of what this rank gets of it."""
        places: List[List[torch.Tensor]] = [[] for _ in range(world_size)]
        for part in step:
            first = part.cut.rows_of(self._rank)[0]
            for box in part.cut.sources:
                begin, end = box.in_rows(*part.rows_of(self._rank))
                if begin < end:
                    inner = tuple(slice(o, o + s) for o, s in zip(box.offsets[1:], box.sizes[1:]))
                    rows = self._rows[part.cut.fqn][begin - first : end - first]
                    places[box.rank].append(rows[(slice(None), *inner)])
        return places

    def _all_to_all(
        self, given: List[List[torch.Tensor]], step: List[_Part], world_size: int, group: Optional[dist.ProcessGroup]
    ) -> torch.Tensor:
        """The bytes that this rank gets, by the ranks that give them."""
        nothing = torch.empty(0, dtype=torch.uint8)
        sent = torch.cat([nothing, *(part for parts in given for part in parts)])
        if world_size == 1:
            return sent
        device = _device_of(group)
        places = self._places(step, world_size)
        sizes = [sum(place.numel() for place in of_rank) for of_rank in places]
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        lengths = [sum(part.numel() for part in parts) for parts in given]
        dist.all_to_all_single(received, sent.to(device), sizes, lengths, group=group)
        return received.to("cpu")

    def _take(self, step: List[_Part], world_size: int, received: torch.Tensor) -> None:
        at = 0
        for place in (place for of_rank in self._places(step, world_size) for place in of_rank):
            place.copy_(received[at : at + place.numel()].reshape(place.shape))
            at += place.numel()


def _device_of(group: Optional[dist.ProcessGroup]) -> Any:
    """A device whose tensors the group's collectives take; the host, if they take its."""
    devices = getattr(group or dist.group.WORLD, "_device_types", None) or [torch.device("cpu")]
    return torch.device("cpu") if torch.device("cpu") in devices else devices[0]

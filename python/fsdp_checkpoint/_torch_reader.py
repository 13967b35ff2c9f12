# SPDX-License-Identifier: Apache-2.0
"""Reader, a StorageReader of torch.distributed.checkpoint."""

import dataclasses
import io
import json
import os
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from . import _arguments
from ._checkpoint import Checkpoint, Path, ReadRequest, SourceLayout
from ._torch_agreement import Opened, agree, check_same, opened, opened_of
from ._torch_boxes import check_box, numel_of, runs_of
from ._torch_groups import GROUPS, decode, members, path_of
from ._torch_keys import keys_of, keys_of_optimizers, value_of_part
from ._torch_layout import INDEX, branch_of, member_of_group
from ._torch_memory import memory_to_read_into
from ._torch_names import dtype_name
from ._torch_numbers import NumberMetadata, give, is_number
from ._torch_values import pickle_of_value
from ._values import value_of_json, value_of_text


_STAGED_BYTES = 1 << 28


class _Batch:
    """Items that are read together. Items whose place is not in host memory are read to a staging buffer and copied,
    before they take more than _STAGED_BYTES, or one tensor, together."""

    def __init__(self, checkpoint: Checkpoint, planner: LoadPlanner, threads: int) -> None:
        self._checkpoint, self._planner, self._threads = checkpoint, planner, threads
        self._requests: List[ReadRequest] = []
        self._targets: List[Tuple[Any, torch.Tensor, torch.Tensor]] = []
        self._numbers: List[Tuple[Any, torch.Tensor]] = []
        self._staged = 0

    def add(self, item: Any, name: str) -> None:
        fqn, shape = item.dest_index.fqn, self._checkpoint.info(name).shape
        check_box(fqn, item.storage_offsets, item.lengths, shape)
        target = self._planner.resolve_tensor(item).detach()
        place = memory_to_read_into(fqn, target, item.lengths)
        if place is not target:
            nbytes = target.numel() * target.element_size()
            if self._staged + nbytes > _STAGED_BYTES:
                self.read()
            self._staged += nbytes
        self._targets.append((item, target, place))
        address, dtype = place.data_ptr(), dtype_name(fqn, place.dtype)
        if numel_of(tuple(item.lengths)) != 0:
            for begin, end in runs_of(tuple(item.storage_offsets), tuple(item.lengths), shape):
                self._requests.append(ReadRequest(name, begin, end, dtype, address))
                address += (end - begin) * place.element_size()

    def add_number(self, item: Any, name: str) -> None:
        """A tensor without dimensions that the planner may want as a number."""
        info = self._checkpoint.info(name)
        number = torch.empty((), dtype=getattr(torch, info.dtype))
        self._numbers.append((item, number))
        self._requests.append(ReadRequest(name, 0, 1, info.dtype, number.data_ptr()))

    def read(self) -> None:
        self._checkpoint.read_into(self._requests, self._threads)
        for item, number in self._numbers:
            give(self._planner, item, number)
        for item, target, place in self._targets:
            if place is not target:
                target.copy_(place)
            self._planner.commit_tensor(item, target)
        self._requests, self._targets, self._numbers, self._staged = [], [], [], 0


def _place(key: List[Any]) -> Tuple[Any, Any]:
    """The place in its group of a key of the kind "group"."""
    place = member_of_group(tuple(key[2]))
    if place is None:
        raise ValueError(f"{INDEX}: {key[2]} is no member of param_groups")
    return place


class _Unread(Metadata):
    """The metadata of a checkpoint that could not be opened: its use raises the reason. dcp.load would replace an
    exception of read_metadata by "metadata is None"."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict_metadata", "planner_data", "storage_data"):
            raise self.reason
        return super().__getattribute__(name)


def _tensor_metadata(dtype: torch.dtype, shape: Tuple[int, ...], kind: Any = TensorStorageMetadata) -> Any:
    size = torch.Size(shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return kind(TensorProperties(dtype=dtype), size, [chunk])


class Reader(StorageReader):
    """A StorageReader of torch.distributed.checkpoint for every checkpoint that `fsdp_checkpoint.open` opens.

    `path` may be a directory of checkpoints: its newest that verifies, as rank 0 finds it. All ranks of a load read
    one checkpoint: if a rank has opened another at its path, the load fails before anything is read. Tensors in
    host memory are read into their place, without another copy; each rank reads only the elements it wants, on
    `threads` threads. Checkpoints that Writer has not made have the names "model.NAME", "optim.state.NAME.STATE",
    "optim.param_groups.0.lr" and, of other values, those that they have in the file. With
    `flatten_optimizer_state_dict`, for state dicts of that option of torch's, the groups are
    "optim.param_groups.NAME.lr" for each parameter; a checkpoint that was saved flattened has both. Options that only
    torch's optimizers have are the defaults, and numbers in an optimizer's state become tensors or Python's numbers, as
    the state dict has them. No code of a file is run: a value that torch.load does not take with
    weights_only is an error, unless `trust_pickles`. `layout` as of `fsdp_checkpoint.open`.

    >>> dcp.load({"model": model.state_dict()}, storage_reader=Reader("checkpoints"))
    """

    def __init__(
        self,
        path: Path,
        *,
        verify: bool = True,
        threads: int = 0,
        trust_pickles: bool = False,
        flatten_optimizer_state_dict: bool = False,
        layout: SourceLayout = None,
    ) -> None:
        super().__init__()
        _arguments.path("Reader", path)
        self._path = os.fspath(path)
        self._verify, self._threads, self._trust_pickles = verify, threads, trust_pickles
        self._is_flat, self._layout = flatten_optimizer_state_dict, _arguments.roles(layout)
        self._checkpoint: Optional[Checkpoint] = None
        self._opened: Optional[Opened] = None
        self._keys: Dict[str, List[Any]] = {}
        self._groups: Dict[str, Any] = {}  # the values of members of param_groups, by DCP's names
        self._numbers: Set[str] = set()  # tensors that a state dict may have as numbers of Python, by DCP's names

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """Takes another path for the next load; called by dcp.load(checkpoint_id=...).

        >>> reader.reset("checkpoints/step-00001000")
        """
        if checkpoint_id is not None:
            _arguments.path("Reader", checkpoint_id)
            self._path = os.fspath(checkpoint_id)
        self._checkpoint = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Whether the path exists.

        >>> Reader.validate_checkpoint_id("checkpoints")
        True
        """
        return os.path.exists(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """The path that is loaded.

        >>> Reader("checkpoints").checkpoint_id
        'checkpoints'
        """
        return self._path

    @property
    def attributes(self) -> Dict[str, Any]:
        """As of Checkpoint: what the run recorded about itself.

        >>> Reader("checkpoints").attributes["model.n_head"]
        12
        """
        return self._open().attributes

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """DCP's metadata: names, shapes and dtypes; each tensor is one chunk. Called by dcp.load. If the checkpoint
        cannot be opened, the use of the metadata raises the reason.

        >>> reader.read_metadata().state_dict_metadata["model.w"].size
        torch.Size([10, 3])
        """
        try:
            return self._metadata(self._open())
        except Exception as error:
            return _Unread(error)

    def _metadata(self, checkpoint: Checkpoint) -> Metadata:
        metadata: Dict[str, Any] = {}
        for fqn, (kind, name, *_) in self._keys.items():
            if kind == "tensor":
                info = checkpoint.info(name)
                of_kind = NumberMetadata if fqn in self._numbers else TensorStorageMetadata
                metadata[fqn] = _tensor_metadata(getattr(torch, info.dtype), info.shape, of_kind)
            elif isinstance(self._groups.get(fqn), torch.Tensor):
                metadata[fqn] = _tensor_metadata(self._groups[fqn].dtype, tuple(self._groups[fqn].shape))
            else:
                metadata[fqn] = BytesStorageMetadata()
        return Metadata(metadata, {fqn: tuple(key[2]) for fqn, key in self._keys.items()}, {})

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            self._take(self._opened_at(self._path))
        return self._checkpoint

    def _opened_at(self, path: Path) -> Checkpoint:
        return Checkpoint(path, verify=self._verify, layout=self._layout)

    def _take(self, checkpoint: Checkpoint) -> None:
        """Reads from `checkpoint` from now on."""
        text, index = checkpoint.texts.get(GROUPS), checkpoint.texts.get(INDEX)
        keys = keys_of(checkpoint) if index is None else json.loads(index)["keys"]
        saved = {fqn: key for fqn, key in keys.items() if key[0] == "group"}
        was_flat = any(isinstance(_place(key)[0], str) for key in saved.values())
        # In the form that is asked for, and in the flattened one if it was saved so.
        forms = {self._is_flat, self._is_flat or was_flat}
        decoded = [] if text is None else decode(text)
        groups = {place: value for is_flat in forms for place, value in members(decoded, is_flat).items()}
        if saved and was_flat not in forms:
            keys = {fqn: key for fqn, key in keys.items() if fqn not in saved}
        branch = next((branch_of(tuple(key[2])) for key in saved.values()), ("optim",))
        for place in groups:
            if not saved or isinstance(place[0], str) != was_flat:
                path = path_of(place, branch)
                keys[".".join(map(str, path))] = ["group", GROUPS, list(path)]
        self._groups = {
            fqn: value_of_json(key[3]) if len(key) > 3 else groups[_place(key)]
            for fqn, key in keys.items()
            if key[0] == "group"
        }
        more, optimizers = keys_of_optimizers(keys, decoded) if index is None else ({}, {})
        for name, own in optimizers.items():
            for place, value in [item for is_flat in forms for item in members(own, is_flat).items()]:
                path = path_of(place, (name,))
                fqn = ".".join(map(str, path))
                more[fqn], self._groups[fqn] = ["group", GROUPS, list(path)], value
        keys = {**more, **keys}
        states = {f: k[1] for f, k in keys.items() if k[0] == "tensor" and k[1].startswith("optim/state/")}
        self._numbers = {fqn for fqn, name in states.items() if checkpoint.info(name).shape == ()}
        self._checkpoint, self._keys = checkpoint, keys

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called by dcp.load on every rank: ranks that did not read the metadata open the checkpoint now.

        >>> reader.set_up_storage_reader(metadata, is_coordinator=False)
        """
        if isinstance(metadata, _Unread):
            raise metadata.reason
        self._open()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Called by dcp.load. The plan carries what this rank has opened.

        >>> plan = reader.prepare_local_plan(planner.create_local_plan())
        """
        self._opened = opened(self._path, self._open())
        return dataclasses.replace(plan, storage_data=self._opened)

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        """Called by dcp.load on the coordinator: RuntimeError if the ranks have opened different checkpoints.

        >>> plans = reader.prepare_global_plan(plans)
        """
        return agree(plans)

    def _open_agreed(self, first: Opened) -> Checkpoint:
        """The checkpoint that rank 0 has opened, which may be another step of the directory than this rank found."""
        mine = self._opened
        if mine is not None and mine.identity != first.identity:
            planned = self._metadata(self._open())
            self._take(self._opened_at(os.path.join(os.fsdecode(self._path), first.step)))
            # The plan was made from the other step: boxes of a tensor of another shape would be other elements.
            if self._metadata(self._open()) != planned:
                raise RuntimeError(
                    f"{self._path}: rank 0 found {first.step} and this rank {mine.step}, which hold other tensors; "
                    "load again, or name the step"
                )
            check_same(first, opened(self._path, self._open()))
        return self._open()

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Called by dcp.load: reads all items in one go, each block of the checkpoint once; items on GPUs, and others
        that cannot be read into their place, a quarter of a GiB at a time.

        >>> reader.read_data(plan, planner).wait()
        """
        checkpoint = self._open_agreed(opened_of(plan))
        batch = _Batch(checkpoint, planner, self._threads)
        for item in plan.items:
            fqn = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO and fqn in self._numbers:
                batch.add_number(item, self._keys[fqn][1])
            elif item.type == LoadItemType.BYTE_IO:
                self._give_value(planner, item)
            elif fqn in self._groups:
                target = planner.resolve_tensor(item).detach()
                box = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths))
                target.copy_(self._groups[fqn][box])
                planner.commit_tensor(item, target)
            else:
                batch.add(item, self._keys[fqn][1])
        batch.read()
        future: "Future[None]" = Future()
        future.set_result(None)
        return future

    def _give_value(self, planner: LoadPlanner, item: Any) -> None:
        """Gives a value that is no tensor to the planner, which takes the bytes of torch.save. It unpickles them, so it
        gets none that could run code."""
        checkpoint, key = self._open(), self._keys[item.storage_index.fqn]
        kind, name = key[:2]
        if kind == "torch.save":
            planner.load_bytes(item, self._pickle(checkpoint, name))
            return
        if kind == "group":
            value = self._groups[item.storage_index.fqn]
        elif kind == "python":
            value = value_of_text(checkpoint.texts[name])
        else:
            value = value_of_part(checkpoint, key) if kind == "part" else json.loads(checkpoint.texts[name])
        if is_number(name, value):
            give(planner, item, value)
        else:
            planner.load_bytes(item, pickle_of_value(value))

    def _pickle(self, checkpoint: Checkpoint, name: str) -> io.BytesIO:
        data = io.BytesIO(checkpoint.torch(name).numpy().tobytes())
        if not self._trust_pickles:
            try:
                torch.load(data, weights_only=True)
            except Exception as error:
                raise ValueError(
                    f"{name}: a pickle of objects that torch.load does not take with weights_only; "
                    "Reader(trust_pickles=True) runs whatever code it has"
                ) from error
        data.seek(0)
        return data

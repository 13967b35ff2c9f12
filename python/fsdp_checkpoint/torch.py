# SPDX-License-Identifier: Apache-2.0
"""Writer and Reader: torch.distributed.checkpoint on our checkpoints.

    dcp.save(state, storage_writer=Writer("checkpoints/step-00001000"))
    dcp.async_save(state, storage_writer=Writer("checkpoints/step-00002000"))
    dcp.load(state, storage_reader=Reader("checkpoints"))

A save is one SHARDED checkpoint: each rank writes the elements that DCP's planner gives it, verified by digests, and the
directory appears by rename when every rank's bytes are durable. It can be loaded on any number of ranks.

Names: {"model": ...} becomes model/NAME, {"optim": {"state": {NAME: {STATE: tensor}}}} optim/state/NAME/STATE, a state
dict without "model" is a model, and everything else is extra/NAME. Values that are no tensors are JSON where JSON keeps
them exactly, and otherwise the bytes of torch.save. The text extra/torch.distributed.checkpoint has DCP's names.
"""

import ctypes
import dataclasses
import io
import json
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _library
from ._checkpoint import Checkpoint, Path, ReadRequest
from ._library import library

__all__ = ["Reader", "Writer"]

INDEX = "extra/torch.distributed.checkpoint"


class _Tensor(NamedTuple):
    fqn: str
    name: str  # ours
    dtype: str
    shape: Tuple[int, ...]


class _Plan(NamedTuple):
    """What every rank must know of all: DCP scatters it with the rank's items."""

    rank: int
    world_size: int
    tensors: List[_Tensor]
    paths: Dict[str, Tuple[Any, ...]]  # where each DCP name lies in the nested state dict


def _dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).replace("torch.", "")
    if name not in _library.DTYPE_NUMBERS:
        raise TypeError(f"tensors of {dtype} cannot be saved; wanted one of {', '.join(_library.DTYPES)}")
    return name


def _our_name(fqn: str, path: Tuple[Any, ...], is_model_alone: bool) -> str:
    parts = [str(part) for part in path]
    if parts[0] == "model" and len(parts) > 1:
        return "model/" + ".".join(parts[1:])
    if parts[0] in ("optim", "optimizer") and len(parts) == 4 and parts[1] == "state" and "/" not in parts[3]:
        return f"optim/state/{parts[2]}/{parts[3]}"
    return ("model/" if is_model_alone and len(parts) == 1 else "extra/") + fqn


def _run(offsets: Tuple[int, ...], sizes: Tuple[int, ...], shape: Tuple[int, ...]) -> List[Tuple[int, int]]:
    """A box of a row-major tensor as intervals of elements, in order: one where it has whole rows."""
    whole = len(shape)
    while whole > 0 and sizes[whole - 1] == shape[whole - 1]:
        whole -= 1
    inner = 1
    for size in shape[whole:]:
        inner *= size
    if whole == 0:
        return [(0, inner)]
    starts, stride = [0], inner
    length = sizes[whole - 1] * inner
    for axis in range(whole - 1, -1, -1):
        steps = [offsets[axis]] if axis == whole - 1 else range(offsets[axis], offsets[axis] + sizes[axis])
        starts = [step * stride + start for step in steps for start in starts]
        stride *= shape[axis]
    return [(start, start + length) for start in sorted(starts)]


def _numel(sizes: Tuple[int, ...]) -> int:
    numel = 1
    for size in sizes:
        numel *= size
    return numel


def _exact_json(data: bytes) -> Optional[str]:
    """The value that torch.save wrote as `data`, as JSON; None where JSON would change it."""
    try:
        value = torch.load(io.BytesIO(data), weights_only=True)
        text = json.dumps(value, allow_nan=True)
        return text if _same(json.loads(text), value) else None
    except Exception:  # of the many that torch.load and json have: such a value is kept as its bytes
        return None


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return repr(a) == repr(b)  # tells 0.0 from -0.0, and has NaN equal itself


class Writer(StorageWriter):
    """A StorageWriter of torch.distributed.checkpoint that saves ROOT/step-NNNNNNNN as a verified HDF5 checkpoint.

    `path` is the checkpoint's: its last part is step- and at least eight digits. `process_group` is that of dcp.save;
    its ranks exchange a few small messages by all_gather_object. `overwrite` replaces the step if it exists: the new
    one is complete first, then they change places. `parity` files that are lost can be made again (`ckpt repair`).
    `io_threads` write on each rank. A failure on one rank is an exception on every rank, and leaves no checkpoint.

    >>> dcp.save({"model": model.state_dict()}, storage_writer=Writer("checkpoints/step-00001000"))
    """

    def __init__(
        self,
        path: Path,
        *,
        process_group: Optional[dist.ProcessGroup] = None,
        overwrite: bool = False,
        parity: int = 0,
        io_threads: int = 2,
    ) -> None:
        super().__init__()
        self._group = process_group
        self._options = _library.options(
            _library.SaveOptions, overwrite=int(overwrite), parity=parity, io_threads=io_threads
        )
        self._root, self._step = "", 0
        self.reset(path)

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """Takes another path for the next save; called by dcp.save(checkpoint_id=...).

        >>> writer.reset("checkpoints/step-00002000")
        """
        if checkpoint_id is None:
            return
        root, name = os.path.split(os.fspath(checkpoint_id).rstrip("/"))
        if re.fullmatch("step-[0-9]{8,18}", name) is None or f"step-{int(name[5:]):08}" != name:
            raise ValueError(f"{os.fspath(checkpoint_id)}: a checkpoint is called step- and eight digits, step-00001000")
        self._root, self._step = root or ".", int(name[5:])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Whether a path may be a checkpoint's.

        >>> Writer.validate_checkpoint_id("checkpoints/step-00001000")
        True
        """
        try:
            cls(checkpoint_id)
        except (TypeError, ValueError):
            return False
        return True

    @property
    def checkpoint_id(self) -> str:
        """The path that is saved next.

        >>> Writer("checkpoints/step-00001000").checkpoint_id
        'checkpoints/step-00001000'
        """
        return os.path.join(self._root, f"step-{self._step:08}")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called by dcp.save.

        >>> writer.set_up_storage_writer(is_coordinator=True)
        """
        if not kwargs.get("use_collectives", True):
            raise ValueError("Writer: use_collectives=False is not supported: the ranks of a checkpoint commit it together")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Called by dcp.save.

        >>> plan = writer.prepare_local_plan(planner.create_local_plan())
        """
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """Called by dcp.save on the coordinator.

        >>> plans = writer.prepare_global_plan(plans)
        """
        if any(not getattr(plan, "usable", True) for plan in plans):
            raise ValueError("Writer: the planner's enable_plan_caching is not supported")
        paths: Dict[str, Tuple[Any, ...]] = {}
        for plan in plans:
            paths.update(plan.planner_data or {})
        items = {item.index.fqn: item for plan in plans for item in plan.items}
        for fqn in items:
            paths.setdefault(fqn, (fqn,))
        is_model_alone = not any(path[0] == "model" and len(path) > 1 for path in paths.values())
        tensors, names = [], set()
        for fqn, item in sorted(items.items()):
            if item.type == WriteItemType.BYTE_IO:
                continue
            name = _our_name(fqn, paths[fqn], is_model_alone)
            name = "extra/" + fqn if name in names else name
            names.add(name)
            data = item.tensor_data
            tensors.append(_Tensor(fqn, name, _dtype_name(data.properties.dtype), tuple(data.size)))
        paths = {fqn: paths[fqn] for fqn in items}
        return [
            dataclasses.replace(plan, storage_data=_Plan(rank, len(plans), tensors, paths))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        """Called by dcp.save: saves, and returns when the checkpoint is durable and committed.

        >>> writer.write_data(plan, planner).wait()
        """
        shared: _Plan = plan.storage_data
        state = ctypes.c_void_p()
        library.fsdp_state_create(_library.SHARDED, ctypes.byref(state))
        kept: List[Any] = []  # memory that the save reads
        results: List[WriteResult] = []
        try:
            failure, blobs = None, {}
            try:
                blobs = self._add_tensors(state, plan, planner, kept, results)
            except Exception as error:  # the other ranks must not wait for this one
                failure = error
            gathered = self._gather((repr(failure) if failure else None, blobs), shared)
            if failure is not None:
                raise failure
            for rank, (reason, _) in enumerate(gathered):
                if reason is not None:
                    raise RuntimeError(f"rank {rank} of {shared.world_size}: {reason}")
            self._add_values(state, shared, {k: v for _, blobs in gathered for k, v in blobs.items()}, kept)
            self._save(state, shared)
        finally:
            library.fsdp_state_free(state)
        future: "Future[List[WriteResult]]" = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """Called by dcp.save on the coordinator. The checkpoint is committed already: by rename, when the last rank's bytes
        were durable.

        >>> writer.finish(metadata, results)
        """

    def _gather(self, mine: Any, plan: _Plan) -> List[Any]:
        if plan.world_size == 1:
            return [mine]
        size = dist.get_world_size(self._group) if dist.is_initialized() else 1
        if size != plan.world_size:
            raise ValueError(
                f"Writer has a process group of {size} ranks, and dcp.save one of {plan.world_size}: give both the same"
            )
        gathered: List[Any] = [None] * size
        dist.all_gather_object(gathered, mine, group=self._group)
        return gathered

    def _add_tensors(
        self, state: ctypes.c_void_p, plan: SavePlan, planner: SavePlanner, kept: List[Any], results: List[WriteResult]
    ) -> Dict[str, bytes]:
        """Adds all tensors to `state`, with the elements that are this rank's; the bytes of its other values."""
        shards: Dict[str, List[Tuple[int, int, int]]] = {}
        blobs: Dict[str, bytes] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                blobs[item.index.fqn] = data.getvalue()
                results.append(WriteResult(item.index, len(blobs[item.index.fqn]), None))
                continue
            tensor = data.detach().to("cpu").contiguous()
            kept.append(tensor)
            results.append(WriteResult(item.index, tensor.numel() * tensor.element_size(), None))
            if tensor.numel() == 0:
                continue
            chunk, shape = item.tensor_data.chunk, tuple(item.tensor_data.size)
            runs = _run(tuple(chunk.offsets), tuple(chunk.sizes), shape)
            if len(runs) > 1:
                raise ValueError(
                    f"{item.index.fqn}: this rank has columns {list(chunk.offsets)} + {list(chunk.sizes)} of {list(shape)}, "
                    "wanted whole rows; save tensor-parallel parameters with dcp.FileSystemWriter, and use ckpt convert"
                )
            shards.setdefault(item.index.fqn, []).append((*runs[0], tensor.data_ptr()))
        for tensor in plan.storage_data.tensors:
            self._add_tensor(state, tensor, sorted(shards.get(tensor.fqn, [])))
        return blobs

    @staticmethod
    def _add_tensor(state: ctypes.c_void_p, tensor: _Tensor, shards: List[Tuple[int, int, int]]) -> None:
        dims = (ctypes.c_int64 * max(1, len(tensor.shape)))(*tensor.shape)
        array = (_library.Shard * max(1, len(shards)))(*shards)
        number = _library.DTYPE_NUMBERS[tensor.dtype]
        library.fsdp_state_add_tensor(state, tensor.name.encode(), number, len(tensor.shape), dims, array, len(shards))

    def _add_values(self, state: ctypes.c_void_p, plan: _Plan, blobs: Dict[str, bytes], kept: List[Any]) -> None:
        """Adds what is no tensor, on every rank: texts must be equal, and rank 0 has the elements of the bytes."""
        keys: Dict[str, List[Any]] = {t.fqn: ["tensor", t.name, list(plan.paths[t.fqn])] for t in plan.tensors}
        for fqn, data in sorted(blobs.items()):
            text = _exact_json(data)
            keys[fqn] = ["json" if text is not None else "torch.save", "extra/" + fqn, list(plan.paths[fqn])]
            if text is not None:
                library.fsdp_state_add_text(state, keys[fqn][1].encode(), text.encode(), len(text.encode()))
                continue
            buffer = ctypes.create_string_buffer(data, len(data))
            kept.append(buffer)
            own = [(0, len(data), ctypes.addressof(buffer))] if plan.rank == 0 else []
            self._add_tensor(state, _Tensor(fqn, keys[fqn][1], "uint8", (len(data),)), own)
        index = json.dumps({"version": 1, "keys": keys}).encode()
        library.fsdp_state_add_text(state, INDEX.encode(), index, len(index))

    def _save(self, state: ctypes.c_void_p, plan: _Plan) -> None:
        failures: List[BaseException] = []

        def gather(context: int, blob: int, size: int, take: Any, sink: int) -> int:
            try:
                for rank, other in enumerate(self._gather(ctypes.string_at(blob, size) if size else b"", plan)):
                    take(sink, rank, other, len(other))
                return 0
            except BaseException as error:  # must not leave a function that C has called
                failures.append(error)
                return 1

        # The names keep the callback alive while the library has it.
        callback = _library.Gather(gather)
        group = _library.options(_library.Group, rank=plan.rank, world_size=plan.world_size, gather=callback)
        try:
            library.fsdp_save(state, os.fsencode(self._root), self._step, group, self._options, None)
        except _library.CheckpointError as error:
            raise error from (failures[0] if failures else None)


class Reader(StorageReader):
    """A StorageReader of torch.distributed.checkpoint for every checkpoint that `fsdp_checkpoint.open` opens.

    `path` may be a directory of checkpoints: its newest that verifies. Tensors of host memory are read into their place,
    with no copy between; each rank reads what it wants and no more, on `threads` threads. Checkpoints that Writer has not
    made have the names "model.NAME" and "optim.state.NAME.STATE". No code of a file is run: a value that torch.load does
    not take with weights_only is an error, unless `trust_pickles`.

    >>> dcp.load({"model": model.state_dict()}, storage_reader=Reader("checkpoints"))
    """

    def __init__(self, path: Path, *, verify: bool = True, threads: int = 0, trust_pickles: bool = False) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._verify, self._threads, self._trust_pickles = verify, threads, trust_pickles
        self._checkpoint: Optional[Checkpoint] = None
        self._keys: Dict[str, List[Any]] = {}

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """Takes another path for the next load; called by dcp.load(checkpoint_id=...).

        >>> reader.reset("checkpoints/step-00001000")
        """
        if checkpoint_id is not None:
            self._path = os.fspath(checkpoint_id)
        self._checkpoint = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Whether something lies at a path.

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

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """DCP's metadata: names, shapes and dtypes; each tensor is one chunk. Called by dcp.load.

        >>> reader.read_metadata().state_dict_metadata["model.w"].size
        torch.Size([10, 3])
        """
        checkpoint = self._open()
        metadata: Dict[str, Any] = {}
        for fqn, (kind, name, _) in self._keys.items():
            if kind != "tensor":
                metadata[fqn] = BytesStorageMetadata()
                continue
            info = checkpoint.info(name)
            size = torch.Size(info.shape)
            chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            metadata[fqn] = TensorStorageMetadata(TensorProperties(dtype=getattr(torch, info.dtype)), size, [chunk])
        return Metadata(metadata, {fqn: tuple(path) for fqn, (_, _, path) in self._keys.items()}, {})

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self._path, verify=self._verify)
            self._keys = self._names(self._checkpoint)
        return self._checkpoint

    @staticmethod
    def _names(checkpoint: Checkpoint) -> Dict[str, List[Any]]:
        text = checkpoint.texts.get(INDEX)
        if text is not None:
            return json.loads(text)["keys"]
        keys: Dict[str, List[Any]] = {}
        for name in [*checkpoint, *checkpoint.aliases]:
            section, rest = name.split("/", 1)
            path = [section, rest]
            if name.startswith("optim/state/"):
                fqn, state = rest[len("state/") :].rsplit("/", 1)
                path = ["optim", "state", fqn, state]
            keys[".".join(path)] = ["tensor", name, path]
        return keys

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called by dcp.load on every rank: ranks that did not read the metadata open the checkpoint now.

        >>> reader.set_up_storage_reader(metadata, is_coordinator=False)
        """
        self._open()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Called by dcp.load.

        >>> plan = reader.prepare_local_plan(planner.create_local_plan())
        """
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        """Called by dcp.load on the coordinator.

        >>> plans = reader.prepare_global_plan(plans)
        """
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Called by dcp.load: reads all items in one go, each block of the checkpoint once.

        >>> reader.read_data(plan, planner).wait()
        """
        checkpoint = self._open()
        requests: List[ReadRequest] = []
        targets: List[Tuple[Any, torch.Tensor, torch.Tensor]] = []
        for item in plan.items:
            kind, name, _ = self._keys[item.storage_index.fqn]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._value(checkpoint, kind, name))
                continue
            target = planner.resolve_tensor(item).detach()
            place = target if target.device.type == "cpu" and target.is_contiguous() else torch.empty(target.shape, dtype=target.dtype)
            targets.append((item, target, place))
            shape = checkpoint.info(name).shape
            address, dtype = place.data_ptr(), _dtype_name(place.dtype)
            if _numel(tuple(item.lengths)) != 0:
                for begin, end in _run(tuple(item.storage_offsets), tuple(item.lengths), shape):
                    requests.append(ReadRequest(name, begin, end, dtype, address))
                    address += (end - begin) * place.element_size()
        checkpoint.read_into(requests, self._threads)
        for item, target, place in targets:
            if place is not target:
                target.copy_(place)
            planner.commit_tensor(item, target)
        future: "Future[None]" = Future()
        future.set_result(None)
        return future

    def _value(self, checkpoint: Checkpoint, kind: str, name: str) -> io.BytesIO:
        """What planners take: the bytes of torch.save. They unpickle them, so they get none that could run code."""
        if kind == "json":
            data = io.BytesIO()
            torch.save(json.loads(checkpoint.texts[name]), data)
        else:
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

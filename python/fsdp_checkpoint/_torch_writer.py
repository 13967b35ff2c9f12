# SPDX-License-Identifier: Apache-2.0
"""Writer, a StorageWriter of torch.distributed.checkpoint."""

import ctypes
import dataclasses
import json
import os
import warnings
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from . import _arguments, _attributes, _library, _steps, _torch_replicas
from ._checkpoint import Path
from ._interrupts import Interrupts
from ._library import library
from ._torch_boxes import run_of
from ._torch_exchange import Exchange, plan_cuts
from ._torch_groups import add_groups, is_hyperparameter
from ._torch_layout import INDEX, group_place, layout_of, our_name, value_name
from ._torch_memory import stageable, values_in_memory
from ._torch_names import SavedTensor, SharedPlan, agreed_items, dtype_name
from ._torch_ranks import Ranks
from ._torch_replicas import Copies, Found, key_of, mark_of
from ._torch_values import pickle_of_value, readable_value
from ._values import text_of


def _stager() -> staging.AsyncStager:
    """The stager that dcp.async_save takes for a storage writer that is none."""
    if not hasattr(staging, "DefaultStager"):  # an older torch
        return staging.BlockingAsyncStager()
    return staging.DefaultStager(staging.StagingOptions(False, False, False, False))


class _Shared(NamedTuple):
    """What a rank tells the others before the save."""

    failure: Optional[str] = None
    values: Dict[str, bytes] = {}  # that it saves and that are no tensors
    marks: Copies = {}  # of the tensors that it saves and others have too
    base: Optional[str] = None  # of an incremental save; rank 0's counts

    def saved(self) -> Copies:
        return {**self.marks, **{(fqn, None): data for fqn, data in self.values.items()}}


def _writer_of(kind: Any, path: Path, options: Dict[str, Any]) -> Any:
    return kind(path, **options)


class Writer(StorageWriter):
    """A StorageWriter of torch.distributed.checkpoint that saves the directory `path` as a verified HDF5 checkpoint.

    The name of `path` is the caller's: step-100, checkpoint-500, pytorch_model_fsdp_0, epoch=3-step=100.ckpt. Its step,
    by which `latest`, `prune` and --resume order the checkpoints of a directory, is `step`, or by default the number
    after "step" in the name, or else the last number in it, or else 0. `process_group` is the group of dcp.save; its
    ranks exchange a few small messages by all_gather_object. `overwrite` replaces the checkpoint if it exists: the new
    one is completed first, then they are exchanged. With `parity`, as many lost files can be made again (`ckpt
    repair`). `io_threads` threads write on each rank. `attributes`, a dict as of JSON, are facts about the run, such as
    its config, equal on all ranks: Checkpoint.attributes, `ckpt inspect` and h5py (attributes of the file) have them,
    members of dicts under names with points. `incremental` links what the newest other checkpoint of the directory
    has in common with this one, such as frozen layers, instead of writing it again. `keep_last` deletes, when this one
    is complete, the checkpoints of the directory but this and the newest so many. Ranks that have columns, or other
    parts of a tensor that are not whole rows, exchange them over the group first. A failure on one rank is an exception
    on every rank, and leaves no checkpoint. A value that ranks save under one name and that differs is a warning on
    rank 0.

    >>> dcp.save({"model": model.state_dict()}, storage_writer=Writer("checkpoints/step-1000"))
    """

    def __init__(
        self,
        path: Path,
        *,
        process_group: Optional[dist.ProcessGroup] = None,
        overwrite: bool = False,
        parity: int = 0,
        io_threads: int = 2,
        step: Optional[int] = None,
        attributes: Optional[Mapping[str, Any]] = None,
        incremental: bool = False,
        keep_last: Optional[int] = None,
    ) -> None:
        super().__init__()
        if keep_last is not None and keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}, expected at least 1, or None to keep all")
        self._group = process_group
        self._attributes = _attributes.encode(attributes)
        self._is_incremental, self._keep_last = incremental, keep_last
        self._planned: List[WriteItem] = []  # of this rank, before DCP leaves each item to one
        self._options = _library.options(
            _library.SaveOptions, overwrite=int(overwrite), parity=parity, io_threads=io_threads
        )
        self._given_step = step
        self._root, self._name, self._step = "", "", 0
        _arguments.path("Writer", path)  # which may not be None, as in reset
        self.reset(path)

    def __reduce__(self) -> Any:
        """For dcp.async_save with AsyncCheckpointerType.PROCESS, whose processes have a default group of their own."""
        options = self._options
        kept = {"overwrite": bool(options.overwrite), "parity": options.parity, "io_threads": options.io_threads}
        kept["attributes"] = None if self._attributes is None else json.loads(self._attributes)
        kept.update(step=self._step, incremental=self._is_incremental, keep_last=self._keep_last)
        return _writer_of, (type(self), self.checkpoint_id, kept)

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """Takes another path for the next save; called by dcp.save(checkpoint_id=...). Its step is the one that its
        name tells, also if an earlier path was given with a `step`.

        >>> writer.reset("checkpoints/step-2000")
        """
        if checkpoint_id is None:
            return
        self._root, self._name = _arguments.root_and_name("Writer", checkpoint_id)
        step, self._given_step = self._given_step, None
        self._step = _arguments.step_of(self._name) if step is None else _arguments.int64("step", step)
        self._options.name = self._name

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Whether a path may be the path of a checkpoint.

        >>> Writer.validate_checkpoint_id("checkpoints/step-1000")
        True
        """
        try:
            cls(checkpoint_id)
        except (TypeError, ValueError):
            return False
        return True

    @property
    def checkpoint_id(self) -> str:
        """The path of the next save.

        >>> Writer("checkpoints/step-1000").checkpoint_id
        'checkpoints/step-1000'
        """
        return os.path.join(self._root, self._name)

    # The protocol AsyncStager, by which dcp.async_save lets a storage writer copy the state.

    _synchronize_after_execute = False

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Whether dcp.async_save waits after it has begun to save: no, `stage` returns when it has copied.

        >>> writer.should_synchronize_after_execute
        False
        """
        return self._synchronize_after_execute

    def stage(self, state_dict: Any) -> Any:
        """Called by dcp.async_save: a copy in host memory, made by torch's own stager.

        >>> copy = writer.stage(state)
        """
        return _stager().stage(stageable(state_dict))

    def synchronize_staging(self) -> None:
        """Nothing to wait for: `stage` returns when it has copied.

        >>> writer.synchronize_staging()
        """

    def close(self) -> None:
        """Nothing to free: the copy belongs to its save.

        >>> writer.close()
        """

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called by dcp.save.

        >>> writer.set_up_storage_writer(is_coordinator=True)
        """
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "Writer: use_collectives=False is not supported: the ranks of a checkpoint commit it together"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Called by dcp.save. The plan carries its items to the coordinator, as DCP leaves each to one rank.

        >>> plan = writer.prepare_local_plan(planner.create_local_plan())
        """
        self._planned = plan.items
        return dataclasses.replace(plan, storage_data=_torch_replicas.planned(plan))

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """Called by dcp.save on the coordinator.

        >>> plans = writer.prepare_global_plan(plans)
        """
        if any(not getattr(plan, "usable", True) for plan in plans):
            raise ValueError("Writer: the planner's enable_plan_caching is not supported")
        paths: Dict[str, Tuple[Any, ...]] = {}
        for plan in plans:
            paths.update(plan.planner_data or {})
        items = agreed_items(plans)
        for fqn in items:
            paths.setdefault(fqn, (fqn,))
        paths = {fqn: paths[fqn] for fqn in items}
        bytes_io = {fqn for fqn, item in items.items() if item.type == WriteItemType.BYTE_IO}
        layout = layout_of([paths[fqn] for fqn in items if fqn not in bytes_io], [paths[fqn] for fqn in bytes_io])
        tensors, names = [], set()
        for fqn, item in sorted(items.items()):
            if fqn in bytes_io:
                continue
            name = our_name(fqn, paths[fqn], layout)
            name = "extra/" + fqn if name in names else name
            names.add(name)
            data = item.tensor_data
            assert data is not None  # of an item that is a tensor
            is_whole = tuple(data.chunk.sizes) == tuple(data.size)
            is_small = is_whole and is_hyperparameter(data.size, data.properties.dtype)
            if is_small and group_place(paths[fqn], layout) is not None:
                continue  # among the values
            tensors.append(SavedTensor(fqn, name, dtype_name(fqn, data.properties.dtype), tuple(data.size)))
        return [
            dataclasses.replace(plan, storage_data=SharedPlan(rank, len(plans), tensors, paths, layout, cuts, shared))
            for rank, (plan, cuts, shared) in enumerate(
                zip(plans, plan_cuts(plans, tensors), _torch_replicas.shared_tensors(plans))
            )
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        """Called by dcp.save: saves, and returns when the checkpoint is durable and committed.

        >>> writer.write_data(plan, planner).wait()
        """
        with Interrupts() as interrupts:
            results = self._write(plan, planner, interrupts)
        future: "Future[List[WriteResult]]" = Future()
        future.set_result(results)
        return future

    def _write(self, plan: SavePlan, planner: SavePlanner, interrupts: Interrupts) -> List[WriteResult]:
        shared: SharedPlan = plan.storage_data
        ranks = Ranks(shared.rank, shared.world_size, self._group)
        exchange = Exchange(shared.rank, shared.cuts)
        state = ctypes.c_void_p()
        library.fsdp_state_create(_library.SHARDED, ctypes.byref(state))
        kept: List[Any] = []  # memory that the save reads
        results: List[WriteResult] = []
        try:
            failure: Optional[BaseException] = None
            mine = _Shared()
            copies: Copies = {}
            try:
                if self._attributes is not None:
                    library.fsdp_state_set_attributes(state, self._attributes)
                values, marks = self._add_tensors(state, plan, planner, exchange, kept, results)
                names = {tensor.fqn for tensor in shared.tensors}
                copies = _torch_replicas.copies_of(self._planned, plan.items, planner, names)
                mine = _Shared(None, values, marks, self._base() if shared.rank == 0 else None)
                interrupts.check()
            except BaseException as error:  # the other ranks must not wait for this one
                failure, mine = error, _Shared(repr(error))
            gathered: List[_Shared] = ranks.gather(mine)
            if failure is not None:
                raise _library.picklable(failure)
            for rank, other in enumerate(gathered):
                if other.failure is not None:
                    raise RuntimeError(f"rank {rank} of {shared.world_size}: {other.failure}")
            exchange.run(shared.world_size, self._group)
            self._add_values(state, shared, {k: v for other in gathered for k, v in other.values.items()}, kept)
            found = _torch_replicas.differences(shared.rank, copies, [other.saved() for other in gathered])
            self._save(state, ranks, gathered[0].base, found)
        finally:
            library.fsdp_state_free(state)
        return results

    def _base(self) -> Optional[str]:
        """The checkpoint with which an incremental save is compared; None: there is none."""
        if not self._is_incremental:
            return None
        try:
            found = [step.path for step in _steps.steps(self._root) if os.path.basename(step.path) != self._name]
        except _library.NotFoundError:
            return None
        return found[-1] if found else None

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """Called by dcp.save on the coordinator. The checkpoint is committed already: by rename, when the last rank's
        bytes were durable. Deletes what `keep_last` does not keep.

        >>> writer.finish(metadata, results)
        """
        if self._keep_last is not None:
            _steps.prune_after_save(self._root, keep_last=self._keep_last, keep=[self._name])

    def _add_tensors(
        self,
        state: ctypes.c_void_p,
        plan: SavePlan,
        planner: SavePlanner,
        exchange: Exchange,
        kept: List[Any],
        results: List[WriteResult],
    ) -> Tuple[Dict[str, bytes], Copies]:
        """Adds all tensors to `state`, with the elements that this rank saves, and returns the bytes of its other
        values, and the marks of the tensors that other ranks have too."""
        planned = {tensor.fqn: tensor for tensor in plan.storage_data.tensors}
        shards: Dict[str, List[Tuple[int, int, int]]] = {}
        blobs: Dict[str, bytes] = {}
        marks: Copies = {}
        for item in plan.items:
            fqn, data = item.index.fqn, planner.resolve_data(item)
            if fqn in planned:
                tensor = self._add_part(item, data, planned[fqn], exchange, shards)
                kept.append(tensor)
                if key_of(item.index) in plan.storage_data.shared:
                    marks[key_of(item.index)] = mark_of(tensor)
                nbytes = tensor.numel() * tensor.element_size()
            else:
                is_tensor = item.type != WriteItemType.BYTE_IO
                blobs[fqn] = (pickle_of_value(data.detach().cpu()) if is_tensor else data).getvalue()
                nbytes = len(blobs[fqn])
            results.append(WriteResult(item.index, nbytes, None))
        shards.update((cut.fqn, exchange.rows(cut.fqn)) for cut in plan.storage_data.cuts)
        for tensor in plan.storage_data.tensors:
            self._add_tensor(state, tensor, sorted(shards.get(tensor.fqn, [])))
        return blobs, marks

    @staticmethod
    def _add_part(
        item: WriteItem,
        data: Any,
        planned: SavedTensor,
        exchange: Exchange,
        shards: Dict[str, List[Tuple[int, int, int]]],
    ) -> torch.Tensor:
        """Adds this rank's part of a tensor to `shards` or `exchange`, and returns its memory."""
        assert item.tensor_data is not None  # of an item that is a tensor
        fqn, chunk = planned.fqn, item.tensor_data.chunk
        tensor = values_in_memory(fqn, data, planned.dtype, chunk.sizes)
        if fqn in exchange and tensor.numel() != 0:
            exchange.add(fqn, chunk.offsets, tensor)
        elif tensor.numel() != 0:
            run = run_of(chunk.offsets, chunk.sizes, planned.shape)
            if run is None:
                raise ValueError(f"{fqn}: {list(chunk.sizes)} at {list(chunk.offsets)} is not in the plan of all ranks")
            shards.setdefault(fqn, []).append((*run, tensor.data_ptr()))
        return tensor

    @staticmethod
    def _add_tensor(state: ctypes.c_void_p, tensor: SavedTensor, shards: List[Tuple[int, int, int]]) -> None:
        dims = _arguments.int64_array(tensor.fqn, tensor.shape)
        array = (_library.Shard * max(1, len(shards)))(*(_library.Shard(*shard) for shard in shards))
        number = _library.DTYPE_NUMBERS[tensor.dtype]
        library.fsdp_state_add_tensor(state, tensor.name, number, len(tensor.shape), dims, array, len(shards))

    def _add_values(self, state: ctypes.c_void_p, plan: SharedPlan, blobs: Dict[str, bytes], kept: List[Any]) -> None:
        """Adds the values that are not tensors, on every rank: texts must be equal, and rank 0 has the bytes'
        elements."""
        keys: Dict[str, List[Any]] = {t.fqn: ["tensor", t.name, list(plan.paths[t.fqn])] for t in plan.tensors}
        values = {fqn: readable_value(data) for fqn, data in sorted(blobs.items())}
        keys.update(add_groups(state, plan.paths, plan.layout, values))
        for fqn, value in values.items():
            if fqn in keys:
                continue
            name, data, text = value_name(fqn, plan.paths[fqn], plan.layout), blobs[fqn], text_of(value)
            keys[fqn] = ["torch.save" if text is None else "python", name, list(plan.paths[fqn])]
            if text is not None:
                library.fsdp_state_add_text(state, name, text.encode(), len(text.encode()))
                continue
            buffer = ctypes.create_string_buffer(data, len(data))
            kept.append(buffer)
            own = [(0, len(data), ctypes.addressof(buffer))] if plan.rank == 0 else []
            self._add_tensor(state, SavedTensor(fqn, name, "uint8", (len(data),)), own)
        index = json.dumps({"version": 1, "keys": keys}).encode()
        library.fsdp_state_add_text(state, INDEX, index, len(index))

    def _save(self, state: ctypes.c_void_p, ranks: Ranks, base: Optional[str], found: Found) -> None:
        self._options.base = None if base is None else os.fsencode(base)
        try:
            with _library.saves:
                library.fsdp_save(state, self._root, self._step, ranks.for_library(found), self._options, None)
        except _library.CheckpointError as error:
            failures = ranks.failures
            if failures:  # in its text, since pickle leaves out the cause
                error.args = (f"{error}: {failures[0]!r}",)
            raise error from (failures[0] if failures else None)
        text = _torch_replicas.warning(ranks.notes) if ranks.rank == 0 else None
        if text is not None:
            warnings.warn(text, stacklevel=2)

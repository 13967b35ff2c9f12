# SPDX-License-Identifier: Apache-2.0
"""storage: what a framework saves and loads by torch.distributed.checkpoint (DCP), on our checkpoints.

    with storage():
        trainer.train(resume_from_checkpoint=last)  # Hugging Face's Trainer

Accelerate, Trainer and torchtitan name a path and leave its files to DCP: they call dcp.save, dcp.async_save and
dcp.load with checkpoint_id=, or with a FileSystemWriter or FileSystemReader that they make. In the block these five
names of torch.distributed.checkpoint mean our Writer and Reader; nothing else is replaced. Lightning writes a file of
its own into the directory; for it there are strategies (lightning.py).
"""

import contextlib
import functools
import os
import re
from typing import Any, Callable, Dict, Iterator, Optional

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from . import _arguments
from ._checkpoint import Path
from ._torch_reader import Reader
from ._torch_writer import Writer

# Accelerate's names of the parts of a checkpoint: the number is of the model or the optimizer, the parent has the step.
_PART = re.compile(r"(pytorch_model_fsdp|optimizer)_[0-9]+")

_StockReader = dcp.FileSystemReader


class _Options:
    """The arguments of the innermost block."""

    writer: Dict[str, Any] = {}
    reader: Dict[str, Any] = {}


def directory_of(path: Path) -> str:
    """`path` as text. ValueError for a URL, for which frameworks and DCP have other storage."""
    _arguments.path("checkpoint", path)
    text = os.fsdecode(path)
    if "://" in text:
        raise ValueError(f"{text} is a URL, expected the path of a directory; `ckpt push` and `pull` copy it")
    return text


def _step(path: str) -> Optional[int]:
    """The step of a part of Accelerate's checkpoint; None: Writer's own rule."""
    parent, name = os.path.split(os.path.abspath(path))
    return _arguments.step_of(os.path.basename(parent)) if _PART.fullmatch(name) else None


class _Writer(Writer):
    """Writer, made as FileSystemWriter is. The other arguments of FileSystemWriter are about DCP's own files."""

    def __init__(
        self,
        path: Path,
        *files: Any,
        overwrite: bool = True,
        process_group: Optional[dist.ProcessGroup] = None,
        _extensions: Any = None,
        **more_files: Any,
    ) -> None:
        if _extensions:
            raise ValueError("storage(): FileSystemWriter's _extensions are for DCP's own files; leave them out")
        directory = directory_of(path)
        self._made_with = {"overwrite": overwrite, "step": _step(directory), **_Options.writer}
        super().__init__(directory, process_group=process_group, **self._made_with)

    def __reduce__(self) -> Any:
        # Pickled for a process that saves, which has a default group of its own.
        return _writer_of, (self.checkpoint_id, self._made_with)

    def prepare_global_plan(self, plans: Any) -> Any:
        """Called by dcp.save on the coordinator, when the plans of all ranks are here, and before any of them writes.
        Frameworks have made the directory by then; a checkpoint takes its name by rename, so an empty one makes room.
        """
        with contextlib.suppress(OSError):  # not there, or not empty: Writer says what is wrong with it
            os.rmdir(self.checkpoint_id)
        return super().prepare_global_plan(plans)


def _writer_of(path: Path, options: Dict[str, Any]) -> _Writer:
    before, _Options.writer = _Options.writer, options
    try:
        return _Writer(path)
    finally:
        _Options.writer = before


class _Reader(Reader):
    """Reader, made as FileSystemReader is; of a directory that DCP wrote itself it is a FileSystemReader, so that a run
    that began without storage() continues."""

    def __new__(cls, path: Path, *more: Any, **files: Any) -> Any:
        if os.path.exists(os.path.join(directory_of(path), ".metadata")):
            return _StockReader(path, *more, **files)
        return super().__new__(cls)

    def __init__(self, path: Path, *files: Any, **more_files: Any) -> None:
        super().__init__(path, **_Options.reader)


def _saving(function: Callable[..., Any]) -> Callable[..., Any]:
    """dcp.save or dcp.async_save, with a Writer if the caller gives a path only."""

    @functools.wraps(function)
    def save(*args: Any, checkpoint_id: Optional[Path] = None, **kwargs: Any) -> Any:
        if len(args) > 1 or checkpoint_id is None or kwargs.get("storage_writer") is not None:
            return function(*args, checkpoint_id=checkpoint_id, **kwargs)
        # A process that saves has a group of its own; this one's cannot be sent there.
        is_process = "PROCESS" in str(kwargs.get("async_checkpointer_type"))
        group = None if is_process else kwargs.get("process_group")
        return function(*args, **{**kwargs, "storage_writer": _Writer(checkpoint_id, process_group=group)})

    return save


def _loading(function: Callable[..., Any]) -> Callable[..., Any]:
    """dcp.load, with a Reader if the caller gives a path only."""

    @functools.wraps(function)
    def load(*args: Any, checkpoint_id: Optional[Path] = None, **kwargs: Any) -> Any:
        if len(args) > 1 or checkpoint_id is None or kwargs.get("storage_reader") is not None:
            return function(*args, checkpoint_id=checkpoint_id, **kwargs)
        return function(*args, **{**kwargs, "storage_reader": _Reader(checkpoint_id)})

    return load


@contextlib.contextmanager
def storage(*, trust_pickles: bool = False, **writer: Any) -> Iterator[None]:
    """In this block torch.distributed.checkpoint saves checkpoints of ours, and loads them, wherever the storage is its
    own choice, or a FileSystemWriter or FileSystemReader that is made in the block by a name of that module.

    As with FileSystemWriter an existing checkpoint is replaced, unless `overwrite=False`; `writer` are further
    arguments of Writer (parity, attributes), but keep_last: frameworks delete by options of their own. Directories that
    DCP itself wrote are loaded as ever. Objects that torch.load does not take with weights_only need `trust_pickles`.
    The block is of the whole process, threads included; names that a module imported from torch.distributed.checkpoint
    before it are not replaced. ValueError for a path that is a URL.

    >>> with storage(parity=1):
    ...     accelerator.save_state("checkpoints/step-1000")
    """
    if "keep_last" in writer:
        raise ValueError("storage(): keep_last: the framework deletes, by an option of its own such as save_total_limit")
    replaced = {
        "save": _saving(dcp.save),
        "async_save": _saving(dcp.async_save),
        "load": _loading(dcp.load),
        "FileSystemWriter": _Writer,
        "FileSystemReader": _Reader,
    }
    before = {name: getattr(dcp, name) for name in replaced}
    options = _Options.writer, _Options.reader
    _Options.writer, _Options.reader = writer, {"trust_pickles": trust_pickles}
    for name, value in replaced.items():
        setattr(dcp, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(dcp, name, value)
        _Options.writer, _Options.reader = options

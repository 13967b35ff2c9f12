# SPDX-License-Identifier: Apache-2.0
"""The operations on whole checkpoints."""

import ctypes
from typing import List, Optional

from . import _arguments, _library
from ._checkpoint import Path, SourceLayout
from ._library import DataLossError, library


def verify(path: Path, *, threads: int = 0, layout: SourceLayout = None) -> None:
    """Reads everything and compares every digest. DataLossError names the damage, one problem per line. `layout` as of
    `open`.

    >>> fsdp_checkpoint.verify("checkpoints/step-00001000")
    """
    report = ctypes.c_void_p()
    options = _library.options(_library.VerifyOptions, threads=threads, map=_arguments.role_lines(layout))
    try:
        library.fsdp_verify(path, options, ctypes.byref(report))
    except DataLossError as error:
        raise DataLossError(15, _library.take_string(report) or str(error)) from None
    _library.take_string(report)


def convert(
    source: Path,
    destination: Path,
    *,
    to: Optional[str] = None,
    kind: str = "full",
    world_size: int = 0,
    dtype: Optional[str] = None,
    model_only: bool = False,
    overwrite: bool = False,
    layout: SourceLayout = None,
) -> List[str]:
    """Converts `source` to `destination`, in bounded memory: `to` is "hdf5", "safetensors", "torch", "dcp", "npz",
    "gguf", "deepspeed" or "megatron"; the default follows the suffix. `kind` ("full", "sharded", "local") and
    `world_size` are for hdf5; `layout` as of `open`. Returns a sentence for each value that the target format cannot
    hold, and for each guess.

    >>> fsdp_checkpoint.convert("checkpoints", "model.safetensors", model_only=True)
    """
    kinds = {"full": _library.FULL, "local": _library.LOCAL, "sharded": _library.SHARDED}
    if kind not in kinds:
        raise ValueError(f"kind {kind!r} is not one of {', '.join(kinds)}")
    if dtype is not None and dtype not in _library.DTYPE_NUMBERS:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(_library.DTYPES)}")
    options = _library.options(
        _library.ConvertOptions,
        to=to,
        kind=kinds[kind],
        world_size=world_size,
        dtype_given=int(dtype is not None),
        dtype=_library.DTYPE_NUMBERS[dtype or "float32"],
        model_only=int(model_only),
        force=int(overwrite),
        map=_arguments.role_lines(layout),
    )
    report = ctypes.c_void_p()
    library.fsdp_convert(source, destination, options, ctypes.byref(report))
    return _library.take_lines(report)


def diff(
    a: Path,
    b: Path,
    *,
    atol: float = 0,
    rtol: float = 0,
    model_only: bool = False,
    layout: SourceLayout = None,
) -> List[str]:
    """The differences between two checkpoints, a sentence each; [] if they are equal. |a - b| <= atol + rtol * |b| is
    equal. `model_only` compares only the models; `layout`, as of `open`, is for those of the two that are torch files or
    DCP directories.

    >>> fsdp_checkpoint.diff("run1/checkpoints", "run2/checkpoints")
    []
    """
    equal, report = ctypes.c_int32(), ctypes.c_void_p()
    options = _library.options(
        _library.DiffOptions,
        atol=atol,
        rtol=rtol,
        model_only=int(model_only),
        map=_arguments.role_lines(layout),
    )
    library.fsdp_diff(a, b, options, ctypes.byref(equal), ctypes.byref(report))
    return _library.take_lines(report)

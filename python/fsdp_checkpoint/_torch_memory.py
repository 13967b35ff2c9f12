# SPDX-License-Identifier: Apache-2.0
"""Tensors as memory: elements in row-major order at an address.

`data_ptr()` is not enough: it is also given by views that torch conjugates or negates only when they are used, by
tensors whose storage was freed or made smaller, and, as 0, by subclasses that keep their elements elsewhere. So the
library gets only addresses of tensors that `values_in_memory` and `memory_to_read_into` return.
"""

from typing import Any, Optional, Sequence

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree

from ._torch_names import dtype_name


def values_in_memory(fqn: str, tensor: Any, dtype: str, sizes: Sequence[int]) -> torch.Tensor:
    """The values of `tensor`, row-major in host memory: its own memory if it has that form, otherwise a copy.
    ValueError or TypeError, with `fqn`, if it has no memory, or is not of the planned dtype and sizes."""
    return in_rows(fqn, plain_tensor(fqn, tensor, dtype, sizes))


def plain_tensor(fqn: str, tensor: Any, dtype: str, sizes: Sequence[int]) -> torch.Tensor:
    """`tensor` as a torch.Tensor of the same memory, on any device. Errors as of values_in_memory."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{fqn}: the planner gave a {type(tensor).__name__}, wanted a tensor")
    if hasattr(tensor, "trigger_wait"):  # an AsyncCollectiveTensor: the result of a collective in progress
        tensor = tensor.trigger_wait()
    if _dispatches(tensor):
        raise TypeError(
            f"{fqn}: a {type(tensor).__name__} keeps its elements elsewhere (it has __torch_dispatch__); save the "
            "tensors that it consists of, or a torch.Tensor with its values"
        )
    with torch._C.DisableTorchFunctionSubclass():
        _check_memory(fqn, tensor)
        plain = tensor.detach().as_subclass(torch.Tensor)
    if dtype_name(fqn, plain.dtype) != dtype or tuple(plain.shape) != tuple(sizes):
        raise ValueError(
            f"{fqn}: the planner gave {dtype_name(fqn, plain.dtype)} of {list(plain.shape)}, "
            f"and its plan says {dtype} of {list(sizes)}; resolve_data must not change them, and torch plans other rows "
            "than ranks have if FSDP2 and tensor parallelism divide a dimension unevenly, such as 9 rows on 4 x 2 ranks: "
            "pad it"
        )
    return plain


def in_rows(fqn: str, plain: torch.Tensor) -> torch.Tensor:
    """The values of a plain_tensor as of values_in_memory."""
    # contiguous() conjugates and negates a tensor that it copies, and not one that it returns as it is.
    values = plain.to("cpu").contiguous().resolve_conj().resolve_neg()
    _check_memory(fqn, values)
    return values


def memory_to_read_into(fqn: str, target: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """`target` itself if its memory has its values in row-major order, otherwise a new tensor, to be copied to it.
    ValueError or TypeError, with `fqn`, if it has no memory, or other sizes than those that are read."""
    if tuple(target.shape) != tuple(sizes):
        raise ValueError(f"{fqn}: the planner gave {list(target.shape)} for {list(sizes)} of the checkpoint")
    dtype_name(fqn, target.dtype)
    if not _dispatches(target):
        _check_memory(fqn, target)
        if target.device.type == "cpu" and target.is_contiguous() and not target.is_conj() and not target.is_neg():
            return target
    return torch.empty(target.shape, dtype=target.dtype)


def stageable(state: Any) -> Any:
    """The state dict with tensors that torch's stager copies with their values. It copies storages: it would save a
    conjugated view as it is in memory, and a tensor without memory as garbage. ValueError names such a tensor if it
    cannot be replaced by its values."""
    return _pytree.tree_map_with_path(_stageable, state)


def _stageable(path: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    fqn = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
    if not _dispatches(value):
        _check_memory(fqn, value)
        return value.resolve_conj().resolve_neg()
    parts = [value.to_local()] if isinstance(value, DTensor) else []
    parts += [shard.tensor for shard in value.local_shards()] if isinstance(value, ShardedTensor) else []
    for part in parts:
        if not _dispatches(part):
            _check_memory(fqn, part)
            if part.is_conj() or part.is_neg():
                raise ValueError(f"{fqn}: this rank's part is a conjugated or negated view; use clone() of the part")
    return value


def _dispatches(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _check_memory(fqn: str, tensor: torch.Tensor) -> None:
    problem = _problem_of(tensor)
    if problem is not None:
        raise ValueError(f"{fqn}: {problem}")


def _problem_of(tensor: torch.Tensor) -> Optional[str]:
    if tensor.is_nested:
        return "a nested tensor, wanted one with sizes; use the tensors that it consists of"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}, wanted torch.strided, as of to_dense()"
    if tensor.device.type == "meta":
        return "it is on the meta device and has no values; use a tensor on another device"
    if tensor.numel() == 0:
        return None
    end = tensor.storage_offset() + 1
    end += sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    try:
        nbytes, address = tensor.untyped_storage().nbytes(), tensor.data_ptr()
    except RuntimeError as error:  # of torch.func: the tensor of a transform in progress
        return f"it has no memory of its own: {error}"
    if nbytes < end * tensor.element_size():
        return f"its storage has {nbytes} bytes, and its elements need {end * tensor.element_size()}: it was freed"
    return None if address != 0 else "it has no memory of its own; use clone() of it"

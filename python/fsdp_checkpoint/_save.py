# SPDX-License-Identifier: Apache-2.0
"""save: a nested dict of arrays and values, as one FULL checkpoint, by one process.

Tensors and texts have the names that Writer gives them, and the index has DCP's names, so that Reader and ckpt take the
checkpoint for one of Writer's. In addition the index has the state itself, by which `load` gives back the same nesting:
its JSON (_values.py), in which {"__python__":"stored","name":"model/w","kind":"numpy"} is an array.
"""

import ctypes
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from . import _arguments, _attributes, _library
from ._checkpoint import Path
from ._library import library
from ._torch_groups import add_groups, exact, has_text
from ._torch_layout import (
    INDEX,
    Layout,
    NestedPath,
    group_place,
    layout_of,
    member_of_group,
    names_of_states,
    our_name,
    value_name,
)
from ._values import dump, stored_as, text_of, with_members

_DICTS = ("dict", "OrderedDict")


class _Array(NamedTuple):
    """An array or tensor as memory."""

    kind: str  # "numpy", "torch"
    dtype: str
    shape: Tuple[int, ...]
    address: int
    memory: Any  # keeps the elements alive
    identity: Any  # equal for two that are one array


def _kind_of(value: Any) -> Optional[str]:
    for kind, name in (("numpy", "ndarray"), ("torch", "Tensor")):
        module = sys.modules.get(kind)
        if module is not None and isinstance(value, getattr(module, name)):
            return kind
    return None


def _numpy_array(fqn: str, array: Any) -> _Array:
    import numpy

    if type(array) not in (numpy.ndarray, numpy.memmap):
        raise TypeError(f"{fqn}: a {type(array).__name__} may be more than its elements; save numpy.asarray of it")
    dtype = array.dtype.name
    if dtype not in _library.DTYPE_NUMBERS:
        raise TypeError(f"{fqn}: no checkpoint has arrays of {array.dtype}; wanted one of {', '.join(_library.DTYPES)}")
    if not array.dtype.isnative:
        raise TypeError(f"{fqn}: the bytes of {array.dtype} are in another order than here; use astype({dtype!r})")
    memory = numpy.ascontiguousarray(array)
    identity = (array.__array_interface__["data"][0], array.strides) if array.size else None
    return _Array("numpy", dtype, array.shape, memory.ctypes.data, memory, identity)


def _torch_tensor(fqn: str, tensor: Any) -> _Array:
    import torch

    from ._torch_memory import values_in_memory
    from ._torch_names import dtype_name

    if hasattr(tensor, "full_tensor"):
        raise TypeError(f"{fqn}: ranks save a DTensor together: dcp.save(state, storage_writer=Writer(path))")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{fqn}: a {type(tensor).__name__} may be more than its elements; save a torch.Tensor of them")
    dtype = dtype_name(fqn, tensor.dtype)
    memory = values_in_memory(fqn, tensor, dtype, tensor.shape)
    is_own = tensor.numel() > 0 and not tensor.is_conj() and not tensor.is_neg()
    identity = (tensor.device, tensor.data_ptr(), tensor.stride()) if is_own else None
    return _Array("torch", dtype, tuple(tensor.shape), memory.data_ptr(), memory, identity)


def _holds_array(value: Any) -> bool:
    if type(value).__name__ in _DICTS and isinstance(value, dict):
        return any(map(_holds_array, value.values()))
    if type(value) in (list, tuple):
        return any(map(_holds_array, value))
    return _kind_of(value) is not None


def _is_hyperparameter(path: NestedPath, value: Any) -> bool:
    return path != () and member_of_group(path) is not None and has_text(value)


def _members(path: NestedPath, value: Any) -> Optional[List[Tuple[Any, Any]]]:
    """The keys and members of a branch; None for a leaf."""
    if type(value).__name__ in _DICTS and isinstance(value, dict) and value:
        if all(type(key) is str for key in value) or _holds_array(value):
            return list(value.items())
    if type(value) is tuple and _is_hyperparameter(path, value):
        return None  # betas that are tensors
    # Lists as DCP has them: with tensors, and the groups of an optimizer with their members.
    is_groups = path[-1:] == ("param_groups",) and type(value) is list and all(type(group) is dict for group in value)
    if is_groups or (type(value) in (list, tuple) and _holds_array(value)):
        return list(enumerate(value))
    return None


class _State:
    """A state dict as what a checkpoint has of it."""

    def __init__(self, state: Any) -> None:
        if type(state).__name__ not in _DICTS or not isinstance(state, dict):
            raise TypeError(f"a {type(state).__name__} was given to be saved, wanted a dict")
        self.arrays: Dict[str, _Array] = {}
        self.values: Dict[str, Any] = {}
        self.texts: Dict[str, str] = {}  # of the values
        self.paths: Dict[str, NestedPath] = {}
        if state:
            self._visit((), state)
        tensors = [self.paths[fqn] for fqn in self.arrays]
        layout = layout_of(tensors, [self.paths[fqn] for fqn in self.values])
        self.layout = self._checked(layout, tensors)
        self.names, self.aliases = self._named()

    def _visit(self, path: NestedPath, value: Any) -> None:
        members = _members(path, value)
        if members is not None:
            for key, member in members:
                if type(key) not in (str, int):
                    raise TypeError(f"{'.'.join(map(str, path))}: the key {key!r} is neither a str nor an int")
                self._visit((*path, key), member)
            return
        fqn, kind = ".".join(map(str, path)), _kind_of(value)
        if fqn in self.paths:
            raise ValueError(f"{fqn} is the name of two values, {self.paths[fqn]} and {path}; rename one")
        self.paths[fqn] = path
        if kind is None or _is_hyperparameter(path, value):
            self.values[fqn], self.texts[fqn] = value, _text(fqn, value)
        else:
            self.arrays[fqn] = _numpy_array(fqn, value) if kind == "numpy" else _torch_tensor(fqn, value)

    def _checked(self, layout: Layout, tensors: List[NestedPath]) -> Layout:
        """The layout, without an optimizer that does not have the names of the model's parameters: one by number is
        kept as it is."""
        depth = len(layout.model or ())
        model = {".".join(map(str, path[depth:])) for path in tensors if path[:depth] == layout.model}
        states = names_of_states(tensors, layout.optim) if layout.optim is not None else set()
        for fqn, value in self.values.items():
            if group_place(self.paths[fqn], layout) is not None and self.paths[fqn][-1] == "params":
                states |= set(value)
        return layout if states <= model else layout._replace(optim=None)

    def _named(self) -> Tuple[Dict[str, str], Dict[str, str]]:
        """The names of the arrays, and of those, other names of one: shared parameters are stored once."""
        names: Dict[str, str] = {}
        aliases: Dict[str, str] = {}
        first: Dict[Any, str] = {}
        taken = set()
        for fqn, array in self.arrays.items():
            name = our_name(fqn, self.paths[fqn], self.layout)
            names[fqn] = name = "extra/" + fqn if name in taken else name
            taken.add(name)
            if array.identity is not None and name.startswith("model/"):
                shared = first.setdefault((array.kind, array.identity, array.shape, array.dtype), name)
                if shared != name:
                    aliases[name] = shared
        return names, aliases

    def json(self, path: NestedPath, value: Any) -> Any:
        """The JSON of the value at `path`."""
        members = _members(path, value)
        if members is not None:
            return with_members(value, [(key, self.json((*path, key), member)) for key, member in members])
        fqn = ".".join(map(str, path))
        if fqn in self.arrays:
            return stored_as(self.names[fqn], self.arrays[fqn].kind)
        return exact(value)


def _text(fqn: str, value: Any) -> str:
    if _holds_array(value):
        return dump(exact(value))
    text = text_of(value)
    if text is None:
        raise TypeError(
            f"{fqn}: a {type(value).__name__} has no form in a checkpoint; expected arrays, tensors, numbers, texts, "
            "bytes, and lists, tuples, sets and dicts of these"
        )
    return text


def _add_arrays(state: ctypes.c_void_p, saved: _State, index: Dict[str, List[Any]]) -> None:
    for fqn, array in saved.arrays.items():
        name = saved.names[fqn]
        index[fqn] = ["tensor", name, list(saved.paths[fqn])]
        if name in saved.aliases:
            library.fsdp_state_add_alias(state, name[len("model/") :], saved.aliases[name][len("model/") :])
            continue
        numel = 1
        for size in array.shape:
            numel *= size
        dims, number = _arguments.int64_array(fqn, array.shape), _library.DTYPE_NUMBERS[array.dtype]
        shards = (_library.Shard * 1)(_library.Shard(0, numel, array.address))
        library.fsdp_state_add_tensor(state, name, number, len(array.shape), dims, shards, min(1, numel))


def _add_text(state: ctypes.c_void_p, name: str, text: str) -> None:
    data = text.encode()
    library.fsdp_state_add_text(state, name, data, len(data))


def save(
    path: Path,
    state: Dict[str, Any],
    *,
    step: Optional[int] = None,
    overwrite: bool = False,
    io_threads: int = 2,
    attributes: Optional[Mapping[str, Any]] = None,
) -> None:
    """Saves a nested dict of NumPy arrays, torch tensors and plain values as the checkpoint `path`, complete or not at
    all, with digests. `load` gives it back: equal in every bit, with the same types and nesting; tensors in host memory
    and without gradients, shared parameters as one tensor. A value that a checkpoint cannot hold is a TypeError that
    names it, before anything is written. For one process: ranks save together by dcp.save and Writer. `step` and
    `attributes` as of Writer; `overwrite` replaces what is there, when the new one is complete.

    >>> fsdp_checkpoint.save("checkpoints/step-1000", {"model": model.state_dict(), "epoch": 3})
    """
    root, name = _arguments.root_and_name("save", path)
    number = _arguments.step_of(name) if step is None else _arguments.int64("step", step)
    options = _library.options(_library.SaveOptions, overwrite=int(overwrite), io_threads=io_threads, name=name)
    saved, facts = _State(state), _attributes.encode(attributes)
    made = ctypes.c_void_p()
    library.fsdp_state_create(_library.FULL, ctypes.byref(made))
    try:
        if facts is not None:
            library.fsdp_state_set_attributes(made, facts)
        index: Dict[str, List[Any]] = {}
        _add_arrays(made, saved, index)
        index.update(add_groups(made, saved.paths, saved.layout, saved.values))
        for fqn, text in saved.texts.items():
            if fqn not in index:
                name = value_name(fqn, saved.paths[fqn], saved.layout)
                index[fqn] = ["python", name, list(saved.paths[fqn])]
                _add_text(made, name, text)
        _add_text(made, INDEX, dump({"version": 1, "keys": index, "state": saved.json((), state)}))
        with _library.saves:
            library.fsdp_save(made, root, number, None, options, None)
    finally:
        library.fsdp_state_free(made)

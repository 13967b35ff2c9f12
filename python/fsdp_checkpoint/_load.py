# SPDX-License-Identifier: Apache-2.0
"""load: a checkpoint as a nested dict in memory."""

import json
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ._checkpoint import Checkpoint, Path, ReadRequest, SourceLayout
from ._torch_groups import GROUPS, decode, members
from ._torch_layout import INDEX, member_of_group, path_of_state
from ._values import json_of_text, references_in, value_of_json, value_of_text, with_lists

_FRAMEWORKS = (None, "numpy", "torch")


def _empty(checkpoint: Checkpoint, name: str, framework: str) -> Tuple[Any, int]:
    """An array for a tensor, and its address."""
    info = checkpoint.info(name)
    if framework == "torch":
        import torch

        if not isinstance(getattr(torch, info.dtype, None), torch.dtype):
            raise TypeError(f"{name}: this torch has no {info.dtype}")
        tensor = torch.empty(info.shape, dtype=getattr(torch, info.dtype))
        return tensor, tensor.data_ptr()
    import numpy

    from ._stored import numpy_dtype

    array = numpy.empty(info.shape, numpy_dtype(name, info.dtype))
    return array, array.ctypes.data


def _read(checkpoint: Checkpoint, wanted: Iterable[Tuple[str, str]]) -> Dict[Tuple[str, str], Any]:
    """The arrays of (name, framework), in one read. Names of one tensor get one array."""
    arrays: Dict[Tuple[str, str], Any] = {}
    requests: List[ReadRequest] = []
    aliases = checkpoint.aliases
    for name, framework in wanted:
        first = (aliases.get(name, name), framework)
        if first not in arrays:
            info = checkpoint.info(name)
            arrays[first], address = _empty(checkpoint, name, framework)
            if info.numel != 0:
                requests.append(ReadRequest(name, 0, info.numel, info.dtype, address))
        arrays[name, framework] = arrays[first]
    checkpoint.read_into(requests)
    return arrays


def _nested(values: Iterable[Tuple[List[Any], Any]]) -> Dict[Any, Any]:
    """A dict of dicts and lists with values at these paths."""
    root: Dict[Any, Any] = {}
    for path, value in values:
        at = root
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
    return with_lists(root)


def _of_ours(checkpoint: Checkpoint, state: Any, framework: Optional[str]) -> Any:
    """The state that `save` saved."""
    wanted = [(at["name"], framework or at["kind"]) for at in references_in(state)]
    arrays = _read(checkpoint, wanted)
    return value_of_json(state, lambda at: arrays[at["name"], framework or at["kind"]])


def _of_writer(checkpoint: Checkpoint, keys: Dict[str, List[Any]], framework: str) -> Any:
    """The state that Writer saved."""
    arrays = _read(checkpoint, [(key[1], framework) for key in keys.values() if key[0] == "tensor"])
    groups = decode(checkpoint.texts[GROUPS]) if GROUPS in checkpoint.texts else []
    values: List[Tuple[List[Any], Any]] = []
    for fqn, (kind, name, path, *exact) in keys.items():
        if kind == "tensor":
            values.append((path, arrays[name, framework]))
        elif kind == "group" and exact:
            values.append((path, value_of_json(exact[0])))
        elif kind == "group":
            values.append((path, _member(groups, path)))
        elif kind in ("python", "json"):
            values.append((path, value_of_text(checkpoint.texts[name])))
        else:
            values.append((path, _unpickled(name, checkpoint.numpy(name).tobytes())))
    return _nested(values)


def _unpickled(name: str, data: bytes) -> Any:
    from ._torch_values import value_of_pickle

    try:
        return value_of_pickle(data)
    except Exception as error:
        raise ValueError(
            f"{name}: a pickle of objects that torch.load does not take with weights_only; open(path) reads the "
            "tensors, dcp.load with Reader(path, trust_pickles=True) all of it"
        ) from error


def _member(groups: List[Dict[str, Any]], path: List[Any]) -> Any:
    place = member_of_group(tuple(path))
    if place is None:
        raise ValueError(f"{INDEX}: {path} is no member of param_groups")
    return members(groups, is_flat=isinstance(place[0], str))[place]


def _of_others(checkpoint: Checkpoint, framework: str) -> Any:
    """The values of any other checkpoint, under "model", "optim" and the names of extra values."""
    texts = {name[len("extra/") :]: json_of_text(text) for name, text in checkpoint.texts.items() if name != GROUPS}
    arrays = _read(checkpoint, [(name, framework) for name in [*checkpoint, *checkpoint.aliases]])

    def part(at: Dict[str, Any]) -> Any:
        name = at["name"]
        return value_of_json(texts[name]) if name in texts else arrays["extra/" + name, framework]

    parts = {at["name"] for text in texts.values() for at in references_in(text)}
    state: Dict[str, Any] = {}
    of_optim = []  # paths and values
    for (name, _), array in arrays.items():
        section, rest = name.split("/", 1)
        if section == "model":
            state.setdefault("model", {})[rest] = array
        elif section == "optim":
            of_optim.append((path_of_state(name) or [rest], array))
        elif rest not in parts:
            state["extra." + rest if rest in ("model", "optim") else rest] = array
    values = {name: path_of_state("extra/" + name) for name in texts}  # by place in the optimizer's state
    of_optim += [(path, value_of_json(texts[name], part)) for name, path in values.items() if path is not None]
    if of_optim or GROUPS in checkpoint.texts:
        state["optim"] = {"state": _nested(of_optim)}
    if GROUPS in checkpoint.texts:
        state["optim"]["param_groups"] = decode(checkpoint.texts[GROUPS])
    for name, text in texts.items():
        if name not in parts and values[name] is None:
            state["extra." + name if name in state else name] = value_of_json(text, part)
    return state


def load(
    path: Path, *, framework: Optional[str] = None, verify: bool = True, layout: SourceLayout = None
) -> Dict[str, Any]:
    """Everything in the checkpoint at `path`, of any format, as a nested dict in memory: of one that `save` saved the
    same dict; of one of Writer's the dict that was given to dcp.save; of others {"model": {...}, "optim": {"state":
    {...}, "param_groups": [...]}, ...}, as far as they are there. `framework`, "numpy" or "torch", says what arrays
    become; by default what they were, if that was saved, and else NumPy's. `verify` and `layout` as of `open`.

    >>> state = fsdp_checkpoint.load("checkpoints/step-1000")
    >>> model.load_state_dict(state["model"])
    """
    if framework not in _FRAMEWORKS:
        raise ValueError(f"framework is {framework!r}, expected 'numpy' or 'torch'")
    with Checkpoint(path, verify=verify, layout=layout) as checkpoint:
        text = checkpoint.texts.get(INDEX)
        index = {} if text is None else json.loads(text)
        if "state" in index:
            return _of_ours(checkpoint, index["state"], framework)
        if "keys" in index:
            return _of_writer(checkpoint, index["keys"], framework or "torch")
        return _of_others(checkpoint, framework or "numpy")

# SPDX-License-Identifier: Apache-2.0
"""The param_groups of an optimizer: DCP's names and values, and the text "optim/param_groups" of a checkpoint.

    [{"params": ["w", "b"], "lr": 0.001, "betas": [0.9, 0.95], ...}, ...]

The text has values as _values.py writes them, betas and other tuples that train_gpt reads as lists, and a number in
place of a tensor without dimensions, whose dtype is then in the member "__tensors__" of the group, by its place in the
text, "lr" or "betas.1": the form that train_gpt and ckpt write. DCP has a name for each member,
optim.param_groups.0.lr, of a dict in a group for each of its members, or, with flatten_optimizer_state_dict, for each
member of each parameter, optim.param_groups.w.lr.
"""

import ctypes
import json
import sys
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from ._library import DTYPE_NUMBERS, library
from ._torch_boxes import numel_of
from ._torch_layout import Layout, NestedPath, group_place
from ._values import has_json, has_names, json_of, json_of_tensor, same, value_of_json, with_lists, with_members

GROUPS = "optim/param_groups"
_TENSORS = "__tensors__"
_DTYPES = ("float32", "float64", "int64")
_MOST_BYTES = 16384  # of a tensor in the text
_TUPLES = ("betas", "eps", "ns_coefficients")  # lists in the text, which train_gpt reads

# Options of torch's optimizers that this project's do not have, with the values that mean the same.
_ADAMW = {
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": True,
}
_SGD = {
    "dampening": 0,
    "nesterov": False,
    "maximize": False,
    "foreach": None,
    "differentiable": False,
    "fused": None,
}
_ONLY_TORCH_HAS = {*_ADAMW, "alpha"}


def _plain(place: str, value: Any, dtypes: Dict[str, str]) -> Any:
    """The JSON of `value` in the text. The dtypes of tensors that are numbers in it are added to `dtypes`."""
    if type(value) is list or (type(value) is tuple and place in _TUPLES):
        return [_plain(f"{place}.{number}", item, dtypes) for number, item in enumerate(value)]
    if type(value) is tuple:
        items = [(number, _plain(f"{place}.items.{number}", item, dtypes)) for number, item in enumerate(value)]
        return with_members(value, items)
    if type(value) is dict and has_names(value):
        return {name: _plain(f"{place}.{name}", item, dtypes) for name, item in value.items()}
    if _is_tensor(value) and value.dim() == 0 and _name(value.dtype) in _DTYPES:
        dtypes[place] = _name(value.dtype)
        return json_of(value.item())
    return exact(value)


def exact(value: Any) -> Any:
    """The JSON of a member of a group with its tensors."""
    if type(value) in (list, tuple):
        return with_members(value, [(number, exact(item)) for number, item in enumerate(value)])
    if type(value) is dict and has_names(value):
        return {name: exact(item) for name, item in value.items()}
    return json_of_tensor(value) if _is_tensor(value) else json_of(value)


def has_text(value: Any) -> bool:
    """Whether the text can have a value as a member of a group."""
    if type(value) in (list, tuple):
        return all(map(has_text, value))
    if type(value) is dict and has_names(value):
        return all(map(has_text, value.values()))
    return is_hyperparameter(value.shape, value.dtype) if _is_tensor(value) else has_json(value)


def _put(group: Dict[str, Any], name: Any, value: Any) -> None:
    """Sets a member, or a member of a dict or list in the group (member_of_group). A list is a dict of its items."""
    keys = name if isinstance(name, tuple) else (name,)
    for key in keys[:-1]:
        group = group.setdefault(key, {})
    group[keys[-1]] = value


def _grouped(members: Dict[Tuple[Any, Any], Any]) -> List[Dict[str, Any]]:
    """The groups with their values. Parameters whose members are equal are one group."""
    by_key: Dict[Any, Dict[str, Any]] = {}
    for (key, member), value in members.items():
        _put(by_key.setdefault(key, {}), member, value)
    groups = [with_lists(by_key[key]) for key in sorted(key for key in by_key if isinstance(key, int))]
    for name, group in by_key.items():
        if isinstance(name, int):
            continue
        equal = next((g for g in groups if same({k: v for k, v in g.items() if k != "params"}, group)), None)
        if equal is None:
            equal = {"params": [], **group}
            groups.append(equal)
        equal["params"].append(name)
    return groups


def encode(members: Dict[Tuple[Any, Any], Any]) -> str:
    """The text of all groups, from their values by place (member_of_group). An exception for a value that JSON
    lacks."""
    encoded = []
    for group in _grouped(members):
        dtypes: Dict[str, str] = {}
        plain = {name: _plain(name, value, dtypes) for name, value in group.items()}
        encoded.append({**plain, **({_TENSORS: dtypes} if dtypes else {})})
    return json.dumps(encoded, allow_nan=False)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _name(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")


def is_hyperparameter(size: Sequence[int], dtype: Any) -> bool:
    """Whether the text keeps a tensor among the members of a group: the lr of a capturable optimizer, and other small
    ones."""
    is_kept = _name(dtype) in DTYPE_NUMBERS and not dtype.is_complex
    return is_kept and 0 < dtype.itemsize * numel_of(size) <= _MOST_BYTES


def _with_torch_options(group: Dict[str, Any]) -> Dict[str, Any]:
    """`group` with the options that torch expects; one that torch wrote is complete."""
    if _ONLY_TORCH_HAS & group.keys():
        return group
    is_sgd = "momentum" in group and "ns_steps" not in group  # with it, Muon
    return {**(_ADAMW if "betas" in group else _SGD if is_sgd else {}), **group}


def _with_tensors(place: str, json: Any, dtypes: Dict[str, str]) -> Any:
    """`json` with tensors in place of the numbers whose places "lr", "betas.1" have dtypes."""
    if place in dtypes:
        import torch

        if dtypes[place] not in _DTYPES:
            raise ValueError(f"{GROUPS}: {place} is a tensor of {dtypes[place]}, expected one of {', '.join(_DTYPES)}")
        return json_of_tensor(torch.tensor(value_of_json(json), dtype=getattr(torch, dtypes[place])))
    if isinstance(json, list):
        return [_with_tensors(f"{place}.{i}", item, dtypes) for i, item in enumerate(json)]
    if isinstance(json, dict):
        return {name: _with_tensors(f"{place}.{name}", item, dtypes) for name, item in json.items()}
    return json


def decode(text: str) -> List[Dict[str, Any]]:
    """The groups of the text, with the values that torch has: tensors, tuples, and all of its options."""
    groups = json.loads(text)
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError(f"{GROUPS}: expected a list of groups, found {text[:100]}")
    decoded = []
    for group in groups:
        dtypes = group.pop(_TENSORS, {})
        group = {name: value_of_json(_with_tensors(name, value, dtypes)) for name, value in group.items()}
        for name in _TUPLES:
            if isinstance(group.get(name), list):
                group[name] = tuple(group[name])
        decoded.append(_with_torch_options(group))
    return decoded


def _leaves(keys: Tuple[Any, ...], value: Any) -> Iterator[Tuple[Any, Any]]:
    """The members that DCP has of a member of a group, by their names (member_of_group)."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves((*keys, str(key)), item)
    elif _is_leaf(value):
        yield (keys if len(keys) > 1 else keys[0]), value
    else:
        for number, item in enumerate(value):
            yield from _leaves((*keys, number), item)


def _is_leaf(value: Any) -> bool:
    """Whether DCP takes a value as it is: not a dict, nor a list with a dict or a tensor in it."""
    if not isinstance(value, list):
        return not isinstance(value, dict)
    return not any(map(_is_tensor, value)) and all(map(_is_leaf, value))


def members(groups: List[Dict[str, Any]], is_flat: bool) -> Dict[Tuple[Any, Any], Any]:
    """The values of groups by their places (member_of_group), nested or flattened."""
    if not is_flat:
        return {
            (number, name): leaf
            for number, group in enumerate(groups)
            for member, value in group.items()
            for name, leaf in _leaves((member,), value)
        }
    return {
        (parameter, name): value
        for group in groups
        for parameter in group.get("params", [])
        for name, value in group.items()
        if name != "params"
    }


def add_groups(
    state: ctypes.c_void_p, paths: Dict[str, NestedPath], layout: Layout, values: Dict[str, Any]
) -> Dict[str, List[Any]]:
    """Adds the text of the param_groups among the values to a state to save, and returns the keys of their members in
    the index."""
    places = {}
    for fqn, path in paths.items():
        place = group_place(path, layout)
        if place is not None and fqn in values and has_text(values[fqn]):
            places[fqn] = place
    if not places:
        return {}
    text = encode({place: values[fqn] for fqn, place in places.items()}).encode()
    library.fsdp_state_add_text(state, GROUPS, text, len(text))
    read = members(decode(text.decode()), is_flat=any(isinstance(group, str) for group, _ in places.values()))
    keys: Dict[str, List[Any]] = {}
    for fqn, place in places.items():
        own = [] if same(read.get(place), values[fqn]) else [exact(values[fqn])]
        keys[fqn] = ["group", GROUPS, list(paths[fqn]), *own]
    return keys


def path_of(place: Tuple[Any, Any], branch: NestedPath) -> NestedPath:
    """The path in a state dict of a member of a group of the optimizer at `branch`."""
    group, name = place
    if isinstance(group, int):
        return (*branch, "param_groups", group, *(name if isinstance(name, tuple) else (name,)))
    return (*branch, f"param_groups.{group}.{name}")

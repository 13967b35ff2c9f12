# SPDX-License-Identifier: Apache-2.0
"""The param_groups of an optimizer: DCP's names and values, and the text "optim/param_groups" of a checkpoint.

    [{"params": ["w", "b"], "lr": 0.001, "betas": [0.9, 0.95], ...}, ...]

The text has tuples as lists, and a number in place of a tensor without dimensions, whose dtype is then in the member
"__tensors__" of the group: the form that train_gpt and ckpt write. DCP has a name for each member,
optim.param_groups.0.lr, or, with flatten_optimizer_state_dict, for each member of each parameter,
optim.param_groups.w.lr.
"""

import ctypes
import json
import sys
from typing import Any, Dict, List, Sequence, Tuple

from ._library import library
from ._torch_layout import Layout, NestedPath, group_place
from ._values import has_json, json_of, same, value_of_json

GROUPS = "optim/param_groups"
_TENSORS = "__tensors__"
_DTYPES = ("float32", "float64", "int64")

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


def _plain(value: Any) -> Any:
    """`value`, as text has it: tuples are lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return json_of(value)


def _grouped(members: Dict[Tuple[Any, str], Any]) -> List[Dict[str, Any]]:
    """The groups with their values. Parameters whose members are equal are one group."""
    by_key: Dict[Any, Dict[str, Any]] = {}
    for (key, member), value in members.items():
        by_key.setdefault(key, {})[member] = value
    groups = [by_key[key] for key in sorted(key for key in by_key if isinstance(key, int))]
    for name, group in by_key.items():
        if isinstance(name, int):
            continue
        equal = next((g for g in groups if same({k: v for k, v in g.items() if k != "params"}, group)), None)
        if equal is None:
            equal = {"params": [], **group}
            groups.append(equal)
        equal["params"].append(name)
    return groups


def encode(members: Dict[Tuple[Any, str], Any]) -> str:
    """The text of all groups, from their values by place (member_of_group). An exception for a value that JSON
    lacks."""
    encoded = []
    for group in _grouped(members):
        plain: Dict[str, Any] = {}
        tensors: Dict[str, str] = {}
        for name, value in group.items():
            if _is_tensor(value):
                tensors[name] = _name(value.dtype)
                value = value.item()
            plain[name] = _plain(value)
        encoded.append({**plain, **({_TENSORS: tensors} if tensors else {})})
    return json.dumps(encoded, allow_nan=False)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _name(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")


def is_hyperparameter(size: Sequence[int], dtype: Any) -> bool:
    """Whether the text keeps a tensor among the members of a group as a number: the lr of a capturable optimizer."""
    return len(size) == 0 and _name(dtype) in _DTYPES


def _with_torch_options(group: Dict[str, Any]) -> Dict[str, Any]:
    """`group` with the options that torch expects; one that torch wrote is complete."""
    if _ONLY_TORCH_HAS & group.keys():
        return group
    is_sgd = "momentum" in group and "ns_steps" not in group  # with it, Muon
    return {**(_ADAMW if "betas" in group else _SGD if is_sgd else {}), **group}


def _with_tensors(place: str, value: Any, dtypes: Dict[str, str]) -> Any:
    """`value` with tensors in place of the numbers whose places "lr", "betas.1" have dtypes."""
    if place in dtypes:
        import torch

        if dtypes[place] not in _DTYPES:
            raise ValueError(f"{GROUPS}: {place} is a tensor of {dtypes[place]}, expected one of {', '.join(_DTYPES)}")
        return torch.tensor(value, dtype=getattr(torch, dtypes[place]))
    if isinstance(value, list):
        return [_with_tensors(f"{place}.{i}", item, dtypes) for i, item in enumerate(value)]
    return value


def decode(text: str) -> List[Dict[str, Any]]:
    """The groups of the text, with the values that torch has: tensors, tuples, and all of its options."""
    groups = json.loads(text)
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError(f"{GROUPS}: expected a list of groups, found {text[:100]}")
    decoded = []
    for group in groups:
        dtypes = group.pop(_TENSORS, {})
        group = {name: _with_tensors(name, value_of_json(value), dtypes) for name, value in group.items()}
        if isinstance(group.get("betas"), list):
            group["betas"] = tuple(group["betas"])
        decoded.append(_with_torch_options(group))
    return decoded


def members(groups: List[Dict[str, Any]], is_flat: bool) -> Dict[Tuple[Any, str], Any]:
    """The values of groups by their places (member_of_group), nested or flattened."""
    if not is_flat:
        return {(number, name): value for number, group in enumerate(groups) for name, value in group.items()}
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
        if place is not None and fqn in values and (_is_tensor(values[fqn]) or has_json(values[fqn])):
            places[fqn] = place
    if not places:
        return {}
    text = encode({place: values[fqn] for fqn, place in places.items()}).encode()
    library.fsdp_state_add_text(state, GROUPS, text, len(text))
    read = members(decode(text.decode()), is_flat=any(isinstance(group, str) for group, _ in places.values()))
    keys: Dict[str, List[Any]] = {}
    for fqn, place in places.items():
        exact = [] if same(read.get(place), values[fqn]) else [json_of(values[fqn])]
        keys[fqn] = ["group", GROUPS, list(paths[fqn]), *exact]
    return keys


def path_of(place: Tuple[Any, str], branch: NestedPath) -> NestedPath:
    """The path in a state dict of a member of a group of the optimizer at `branch`."""
    group, name = place
    if isinstance(group, int):
        return (*branch, "param_groups", group, name)
    return (*branch, f"param_groups.{group}.{name}")

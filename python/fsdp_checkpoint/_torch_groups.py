# SPDX-License-Identifier: Apache-2.0
"""The param_groups of an optimizer: DCP's names and values, and the text "optim/param_groups" of a checkpoint.

    [{"params": ["w", "b"], "lr": 0.001, "betas": [0.9, 0.95], ...}, ...]

The text has tuples as lists, and a number in place of a tensor without dimensions, whose dtype is then in the member
"__tensors__" of the group: the form that train_gpt and ckpt write. DCP has a name for each member,
optim.param_groups.0.lr, or, with flatten_optimizer_state_dict, for each member of each parameter,
optim.param_groups.w.lr.
"""

import json
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from ._torch_values import has_json, json_of, same, value_of_json

GROUPS = "optim/param_groups"
_TENSORS = "__tensors__"
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
_FLAT = "param_groups."

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


def place_of(path: Tuple[Any, ...]) -> Optional[Tuple[Any, str]]:
    """The group (its number, or the name of a parameter) and the member that a path in a state dict means, or None."""
    if path[0] not in ("optim", "optimizer"):
        return None
    if len(path) == 4 and path[1] == "param_groups" and isinstance(path[2], int):
        return path[2], str(path[3])
    if len(path) == 2 and str(path[1]).startswith(_FLAT):
        name, _, member = str(path[1])[len(_FLAT) :].rpartition(".")
        return (name, member) if name else None
    return None


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
    """The text of all groups, from their values by place_of. An exception for a value that JSON lacks."""
    encoded = []
    for group in _grouped(members):
        plain: Dict[str, Any] = {}
        tensors: Dict[str, str] = {}
        for name, value in group.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = str(value.dtype).replace("torch.", "")
                value = value.item()
            plain[name] = _plain(value)
        encoded.append({**plain, **({_TENSORS: tensors} if tensors else {})})
    return json.dumps(encoded, allow_nan=False)


def is_hyperparameter(path: Tuple[Any, ...], size: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a tensor is a member of a group that the text keeps as a number: the lr of a capturable optimizer."""
    return place_of(path) is not None and len(size) == 0 and dtype in _DTYPES.values()


def members_of(paths: Dict[str, Tuple[Any, ...]], values: Dict[str, Any]) -> Dict[str, Tuple[Any, str]]:
    """By DCP's names: the places of the members of groups that the text can have. The groups are of one optimizer, the
    first of the state dict."""
    members: Dict[str, Tuple[Any, str]] = {}
    section = None
    for fqn, path in paths.items():
        place, value = place_of(path), values[fqn]
        if place is None or section not in (None, path[0]):
            continue
        if isinstance(value, torch.Tensor) or has_json(value):
            members[fqn], section = place, path[0]
    return members


def _with_torch_options(group: Dict[str, Any]) -> Dict[str, Any]:
    """`group` with the options that torch expects; one that torch wrote is complete."""
    if _ONLY_TORCH_HAS & group.keys():
        return group
    return {**(_ADAMW if "betas" in group else _SGD if "momentum" in group else {}), **group}


def _with_tensors(place: str, value: Any, dtypes: Dict[str, str]) -> Any:
    """`value` with tensors in place of the numbers whose places "lr", "betas.1" have dtypes."""
    if place in dtypes:
        return torch.tensor(value, dtype=_DTYPES[dtypes[place]])
    if isinstance(value, list):
        return [_with_tensors(f"{place}.{i}", item, dtypes) for i, item in enumerate(value)]
    return value


def decode(text: str, is_flat: bool) -> Iterable[Tuple[Tuple[Any, ...], Any]]:
    """The path in a state dict, and the value, of each member of each group in the text."""
    groups = json.loads(text)
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ValueError(f"{GROUPS}: expected a list of groups, found {text[:100]}")
    for number, group in enumerate(groups):
        dtypes = group.pop(_TENSORS, {})
        for member, value in _with_torch_options(group).items():
            value = _with_tensors(member, value_of_json(value), dtypes)
            if member == "betas" and isinstance(value, list):
                value = tuple(value)
            if not is_flat:
                yield ("optim", "param_groups", number, member), value
            elif member != "params":
                for name in group.get("params", []):
                    yield ("optim", f"{_FLAT}{name}.{member}"), value

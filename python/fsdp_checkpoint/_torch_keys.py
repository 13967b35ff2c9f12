# SPDX-License-Identifier: Apache-2.0
"""DCP's names of the tensors and values of a checkpoint that Writer has not made.

    model/a.weight                "model.a.weight"
    optim/state/a.weight/exp_avg  "optim.state.a.weight.exp_avg"
    extra/values                  "values"; the members of a dict, as DCP has them: "values.epoch", "values.rng.seed",
                                  and the items of a list that has a dict or a tensor: "scheduler._schedulers.0.gamma"

Each has a key as in the index of Writer (_torch_layout.py): [kind, our name, path]. The kind "part" is a member of a
text's value, with the keys that lead to it.
"""

from typing import Any, Dict, List, Optional, Tuple

from ._checkpoint import Checkpoint
from ._torch_layout import INDEX, path_of_state
from ._values import is_reference, json_of_text, references_in, value_of_json

_EXTRA = "extra/"


def _path(name: str) -> List[Any]:
    section, rest = name.split("/", 1)
    state = path_of_state(name)
    return [section, rest] if state is None else ["optim", "state", *state]


def _add(keys: Dict[str, List[Any]], kind: str, name: str, path: List[Any], *more: Any) -> None:
    """Adds a key, unless the name is taken."""
    keys.setdefault(".".join(map(str, path)), [kind, name, path, *more])


def _parts(json: Any) -> Optional[List[Tuple[Any, List[Any], Any]]]:
    """The members that DCP has of a value: their keys in a path, the keys that lead to them in the JSON, and they. None
    for a value that it takes as it is."""
    if isinstance(json, dict) and "__python__" not in json:
        return [(key, [key], value) for key, value in json.items()] or None
    if isinstance(json, dict) and json["__python__"] in ("dict", "OrderedDict", "Counter"):
        items = enumerate(json["items"])
        return [(str(value_of_json(key)), ["items", number, 1], value) for number, (key, value) in items] or None
    if isinstance(json, list) and any(is_reference(item) or _parts(item) is not None for item in json):
        return [(number, [number], value) for number, value in enumerate(json)]
    return None


def _add_value(keys: Dict[str, List[Any]], name: str, path: List[Any], json: Any, members: List[Any]) -> None:
    parts = _parts(json)
    if parts is not None:
        for key, at, value in parts:
            _add_value(keys, name, [*path, key], value, [*members, *at])
    elif next(references_in(json), None) is None:  # a tuple of tensors and values has none of DCP's names
        _add(keys, "part", name, path, members)


def keys_of(checkpoint: Checkpoint) -> Dict[str, List[Any]]:
    """The keys of all that is in the checkpoint, but for param_groups, by DCP's names."""
    keys: Dict[str, List[Any]] = {}
    names = [*checkpoint, *checkpoint.aliases]
    for name in names:
        _add(keys, "tensor", name, _path(name))
    for name in names:
        if name.startswith(_EXTRA):
            _add(keys, "tensor", name, [name[len(_EXTRA) :]])
    for name, text in checkpoint.texts.items():
        if name.startswith(_EXTRA) and name != INDEX:
            path = [name[len(_EXTRA) :]] if path_of_state(name) is None else _path(name)
            _add_value(keys, name, path, json_of_text(text), [])
    return keys


def keys_of_optimizers(
    keys: Dict[str, List[Any]], groups: List[Dict[str, Any]]
) -> Tuple[Dict[str, List[Any]], Dict[str, List[Dict[str, Any]]]]:
    """ckpt reads several optimizers as one, whose groups have the name of theirs in the member "optimizer". The keys of
    their states below these names, of all `keys`, and the groups of each."""
    of_each: Dict[str, List[Dict[str, Any]]] = {}
    for group in groups:
        if isinstance(group.get("optimizer"), str):
            own = {name: value for name, value in group.items() if name != "optimizer"}
            of_each.setdefault(group["optimizer"], []).append(own)
    states: Dict[str, List[Any]] = {}
    for optimizer, own in of_each.items():
        parameters = {parameter for group in own for parameter in group.get("params", [])}
        for kind, name, path, *more in keys.values():
            if path[:2] == ["optim", "state"] and len(path) > 3 and path[2] in parameters:
                _add(states, kind, name, [optimizer, *path[1:]], *more)
    return states, of_each


def value_of_part(checkpoint: Checkpoint, key: List[Any]) -> Any:
    """The value of a key of the kind "part"."""
    json = json_of_text(checkpoint.texts[key[1]])
    for member in key[3]:
        json = json[member]
    return value_of_json(json)

# SPDX-License-Identifier: Apache-2.0
"""DCP's names of the tensors and values of a checkpoint that Writer has not made.

    model/a.weight                "model.a.weight"
    optim/state/a.weight/exp_avg  "optim.state.a.weight.exp_avg"
    extra/values                  "values"; the members of a dict, as DCP has them: "values.epoch", "values.rng.seed"

Each has a key as in the index of Writer (_torch_layout.py): [kind, our name, path]. The kind "part" is a member of a
text's value, with the keys that lead to it.
"""

from typing import Any, Dict, List

from ._checkpoint import Checkpoint
from ._torch_layout import INDEX, path_of_state
from ._values import json_of_text, references_in, value_of_json

_EXTRA = "extra/"


def _path(name: str) -> List[Any]:
    section, rest = name.split("/", 1)
    state = path_of_state(name)
    return [section, rest] if state is None else ["optim", "state", *state]


def _add(keys: Dict[str, List[Any]], kind: str, name: str, path: List[Any], *more: Any) -> None:
    """Adds a key, unless the name is taken."""
    keys.setdefault(".".join(map(str, path)), [kind, name, path, *more])


def _add_value(keys: Dict[str, List[Any]], name: str, path: List[Any], json: Any, members: List[str]) -> None:
    if isinstance(json, dict) and json and "__python__" not in json:
        for member, value in json.items():
            _add_value(keys, name, [*path, member], value, [*members, member])
    elif next(references_in(json), None) is None:  # a list of tensors and values has none of DCP's names
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


def value_of_part(checkpoint: Checkpoint, key: List[Any]) -> Any:
    """The value of a key of the kind "part"."""
    json = json_of_text(checkpoint.texts[key[1]])
    for member in key[3]:
        json = json[member]
    return value_of_json(json)

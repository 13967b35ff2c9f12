# SPDX-License-Identifier: Apache-2.0
"""Which branch of a nested state dict is the model, and which the optimizer: by its structure, not by its name.

An optimizer is a branch with param_groups, as torch's state dicts have them, nested or flattened:

    ("app", "optim", "param_groups", 0, "lr")        ("optimizer", "param_groups.layers.0.weight.lr")

The model is the branch that has the parameters that the optimizer's states name. Without an optimizer it is a branch
called "model", or, if no tensor is nested, all tensors.
"""

import re
from typing import Any, Iterable, List, NamedTuple, Optional, Set, Tuple

NestedPath = Tuple[Any, ...]

# The text with DCP's names: {"version": 1, "keys": {its name: [kind, our name, path in the nested state dict]}}. Kinds:
# "tensor"; "python", a text (_values.py); "torch.save", its bytes; "group", a member of param_groups, which is followed
# by its value if that is not the one in the text (a list in place of a tuple); "json", in older checkpoints. From
# `save` also "state": the JSON of the whole state (_save.py).
INDEX = "extra/torch.distributed.checkpoint"

_OPTIMIZERS = (("optim",), ("optimizer",))
_MODEL = ("model",)
_STATE, _GROUPS = "state.", "param_groups."
_OURS = "optim/state/"
_INDEX = re.compile(r"\[[0-9]+\]")


class Layout(NamedTuple):
    """The paths of the two branches; None: there is none, or there are several and none has the usual name."""

    model: Optional[NestedPath]
    optim: Optional[NestedPath]


def _at_group(path: NestedPath) -> Optional[int]:
    """The place in a path of "param_groups" before the number of a group and a member; None: it is not such a path."""
    for at in range(len(path) - 3, -1, -1):
        if path[at] == "param_groups" and isinstance(path[at + 1], int):
            return at
    return None


def member_of_group(path: NestedPath) -> Optional[Tuple[Any, Any]]:
    """The group (its number, or the name of a parameter) and the member that the end of a path names, or None. The
    member of a dict or list in a group is a tuple of keys."""
    at = _at_group(path)
    if at is not None:
        return path[at + 1], (str(path[-1]) if at == len(path) - 3 else path[at + 2 :])
    if str(path[-1]).startswith(_GROUPS):
        name, _, member = str(path[-1])[len(_GROUPS) :].rpartition(".")
        return (name, member) if name else None
    return None


def _state_of(path: NestedPath) -> Optional[Tuple[str, str]]:
    """The parameter and the name of its optimizer state that the end of a path names, or None."""
    if len(path) >= 3 and path[-3] == "state":
        return str(path[-2]), str(path[-1])
    if str(path[-1]).startswith(_STATE):
        name, _, state = str(path[-1])[len(_STATE) :].rpartition(".")
        return (name, state) if name else None
    return None


def branch_of(path: NestedPath) -> NestedPath:
    """The path of the optimizer that has `path`, a state or a member of a group."""
    at = _at_group(path)
    if at is not None:
        return path[:at]
    return path[:-1] if str(path[-1]).startswith((_STATE, _GROUPS)) else path[:-3]


def _only(branches: Set[NestedPath], usual: Iterable[NestedPath]) -> Optional[NestedPath]:
    for branch in usual:
        if branch in branches:
            return branch
    return next(iter(branches)) if len(branches) == 1 else None


def names_of_states(paths: Iterable[NestedPath], optim: Optional[NestedPath]) -> Set[str]:
    """The parameters that have a state in the optimizer at `optim`."""
    states = ((path, _state_of(path)) for path in paths)
    return {state[0] for path, state in states if state is not None and branch_of(path) == optim}


def layout_of(tensors: List[NestedPath], values: List[NestedPath]) -> Layout:
    """The layout of a state dict with tensors and other values at these paths."""
    paths = tensors + values
    optim = _only({branch_of(path) for path in paths if member_of_group(path) is not None}, _OPTIMIZERS)
    names = names_of_states(paths, optim)
    models = {path[:-1] for path in paths if path[-1] in names}
    if not models:
        models = {path[: i + 1] for path in paths for i, part in enumerate(path[:-1]) if part == "model"}
    if not models and all(len(path) == 1 for path in tensors):
        models = {()}
    return Layout(_only(models, [_MODEL]), optim)


def _unescaped(key: str) -> str:
    return re.sub("%25|%2E|%5B", lambda code: chr(int(code[0][1:], 16)), key)


def _escaped(key: str) -> str:
    """A key of a nested state, as ckpt joins them: those that could be read as several are escaped."""
    if "." not in key and not key.startswith("[") and _unescaped(key) == key:
        return key
    text = key.replace("%", "%25").replace(".", "%2E")
    return "%5B" + text[1:] if text.startswith("[") else text


def _state_in(path: NestedPath, layout: Layout) -> Optional[Tuple[str, str]]:
    """The parameter and the name of its state, "exp_avg", or "GG.[0]" of a list, at `path` in the optimizer of the
    layout; None for another path."""
    if layout.optim is None or path[: len(layout.optim)] != layout.optim:
        return None
    rest = path[len(layout.optim) :]
    if len(rest) == 1:
        return _state_of(path)
    if len(rest) < 3 or rest[0] != "state":
        return None
    return str(rest[1]), ".".join(f"[{key}]" if isinstance(key, int) else _escaped(str(key)) for key in rest[2:])


def our_name(fqn: str, path: NestedPath, layout: Layout) -> str:
    """The name in a checkpoint of the tensor at `path`."""
    state = _state_in(path, layout)
    if state is not None and "/" not in state[1]:
        return f"{_OURS}{state[0]}/{state[1]}"
    if layout.model is not None and path[: len(layout.model)] == layout.model:
        rest = path[len(layout.model) :]
        # Beside a model without a branch of its own other branches may be.
        if len(rest) == 1 or (rest and layout.model):
            return "model/" + ".".join(map(str, rest))
    return "extra/" + fqn


def value_name(fqn: str, path: NestedPath, layout: Layout) -> str:
    """The name in a checkpoint of the value at `path` that is no tensor. One of an optimizer's state has the name by
    which ckpt puts it back there: the steps of optimizers that keep them as numbers."""
    state = _state_in(path, layout)
    if state is None:
        return "extra/" + fqn
    return f"extra/{_OURS}{state[0]}/" + state[1].replace("%", "%25").replace("/", "%2F")


def path_of_state(name: str) -> Optional[List[Any]]:
    """The parameter and the keys of the state that a name of our_name or value_name is of; None for another name."""
    rest = name[len("extra/") :] if name.startswith("extra/") else name
    parameter, slash, state = rest[len(_OURS) :].rpartition("/")
    if not rest.startswith(_OURS) or not slash:
        return None
    if rest != name:
        state = state.replace("%2F", "/").replace("%25", "%")
    keys = state.split(".")
    return [parameter, *(int(key[1:-1]) if _INDEX.fullmatch(key) else _unescaped(key) for key in keys)]


def group_place(path: NestedPath, layout: Layout) -> Optional[Tuple[Any, Any]]:
    """As member_of_group, of the optimizer of the layout only."""
    place = member_of_group(path)
    return place if place is not None and branch_of(path) == layout.optim else None

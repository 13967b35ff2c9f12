# SPDX-License-Identifier: Apache-2.0
"""Which branch of a nested state dict is the model, and which the optimizer: by its structure, not by its name.

An optimizer is a branch with param_groups, as torch's state dicts have them, nested or flattened:

    ("app", "optim", "param_groups", 0, "lr")        ("optimizer", "param_groups.layers.0.weight.lr")

The model is the branch that has the parameters that the optimizer's states name. Without an optimizer it is a branch
called "model", or, if no tensor is nested, all tensors.
"""

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


class Layout(NamedTuple):
    """The paths of the two branches; None: there is none, or there are several and none has the usual name."""

    model: Optional[NestedPath]
    optim: Optional[NestedPath]


def member_of_group(path: NestedPath) -> Optional[Tuple[Any, str]]:
    """The group (its number, or the name of a parameter) and the member that the end of a path names, or None."""
    if len(path) >= 3 and path[-3] == "param_groups" and isinstance(path[-2], int):
        return path[-2], str(path[-1])
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


def _branch_of(path: NestedPath) -> NestedPath:
    """The path of the optimizer that has `path`, a state or a member of a group."""
    return path[:-1] if str(path[-1]).startswith((_STATE, _GROUPS)) else path[:-3]


def _only(branches: Set[NestedPath], usual: Iterable[NestedPath]) -> Optional[NestedPath]:
    for branch in usual:
        if branch in branches:
            return branch
    return next(iter(branches)) if len(branches) == 1 else None


def names_of_states(paths: Iterable[NestedPath], optim: Optional[NestedPath]) -> Set[str]:
    """The parameters that have a state in the optimizer at `optim`."""
    states = ((path, _state_of(path)) for path in paths)
    return {state[0] for path, state in states if state is not None and _branch_of(path) == optim}


def layout_of(tensors: List[NestedPath], values: List[NestedPath]) -> Layout:
    """The layout of a state dict with tensors and other values at these paths."""
    paths = tensors + values
    optim = _only({_branch_of(path) for path in paths if member_of_group(path) is not None}, _OPTIMIZERS)
    names = names_of_states(paths, optim)
    models = {path[:-1] for path in paths if path[-1] in names}
    if not models:
        models = {path[: i + 1] for path in paths for i, part in enumerate(path[:-1]) if part == "model"}
    if not models and all(len(path) == 1 for path in tensors):
        models = {()}
    return Layout(_only(models, [_MODEL]), optim)


def our_name(fqn: str, path: NestedPath, layout: Layout) -> str:
    """The name in a checkpoint of the tensor at `path`."""
    state = _state_of(path)
    if layout.optim is not None and state is not None and _branch_of(path) == layout.optim and "/" not in state[1]:
        return f"optim/state/{state[0]}/{state[1]}"
    if layout.model is not None and path[: len(layout.model)] == layout.model:
        rest = path[len(layout.model) :]
        # Beside a model without a branch of its own other branches may be.
        if len(rest) == 1 or (rest and layout.model):
            return "model/" + ".".join(map(str, rest))
    return "extra/" + fqn


def group_place(path: NestedPath, layout: Layout) -> Optional[Tuple[Any, str]]:
    """As member_of_group, of the optimizer of the layout only."""
    place = member_of_group(path)
    return place if place is not None and _branch_of(path) == layout.optim else None

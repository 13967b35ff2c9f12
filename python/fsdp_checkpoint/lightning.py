# SPDX-License-Identifier: Apache-2.0
"""Lightning's strategies for FSDP2 and tensor parallelism, with our checkpoints.

    trainer = lightning.Trainer(strategy=ModelParallelStrategy(data_parallel_size=8, tensor_parallel_size=1))
    fabric = lightning.Fabric(strategy=FabricModelParallelStrategy(parallelize, data_parallel_size=8))

Lightning's own save the model and the optimizers by DCP, and then write everything else to meta.pt in the same
directory: a kill between the two leaves a checkpoint that cannot be loaded. Here meta.pt is the tensor extra/meta.pt of
the one checkpoint, which appears whole. The model is model/NAME, the optimizer optim/...; of several optimizers each is
extra/optim_NAME. Checkpoints that Lightning wrote itself are loaded as ever.
"""

import io
import os
from typing import Any, Dict, List, Mapping, Optional

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful

from ._checkpoint import Path
from ._checkpoint import open as open_checkpoint
from ._torch_reader import Reader
from ._torch_writer import Writer
from .frameworks import directory_of

try:
    from lightning.fabric.strategies import ModelParallelStrategy as _Fabric
    from lightning.pytorch.strategies import ModelParallelStrategy as _Trainer
except ModuleNotFoundError:  # the same in two packages
    from lightning_fabric.strategies import ModelParallelStrategy as _Fabric
    from pytorch_lightning.strategies import ModelParallelStrategy as _Trainer

_META = "meta.pt"


def _branches(optimizers: Mapping[str, Any]) -> Dict[str, Any]:
    """The optimizers, or their states, by their branches of the state dict."""
    if len(optimizers) == 1:
        return {"optim": optimizer for optimizer in optimizers.values()}
    return {f"optim_{name}": optimizer for name, optimizer in optimizers.items()}


def _is_ours(path: str) -> bool:
    return os.path.exists(os.path.join(path, "manifest.json"))


def _path(strategy: Any, path: Path) -> str:
    """The path that rank 0 names, as Lightning understands it."""
    return os.path.expanduser(directory_of(strategy.broadcast(path)))


def _save(path: str, is_first: bool, model: Any, optimizers: Mapping[str, Any], meta: Any) -> None:
    """Saves state dicts, and the `meta` of rank 0, as one checkpoint; one of that name is replaced."""
    state = {"model": model, **_branches(optimizers)}
    if is_first:
        data = io.BytesIO()
        torch.save(meta, data)
        state[_META] = torch.frombuffer(bytearray(data.getvalue()), dtype=torch.uint8)
    dcp.save(state, storage_writer=Writer(path, overwrite=True))


def _load(path: str, model: nn.Module, optimizers: Mapping[str, Any], strict: bool) -> None:
    """Loads the model and the optimizers in place."""
    branches = _branches(optimizers)
    state: Dict[str, Any] = {"model": get_model_state_dict(model)}
    state.update((name, get_optimizer_state_dict(model, optimizer)) for name, optimizer in branches.items())
    dcp.load(state, storage_reader=Reader(path), planner=DefaultLoadPlanner(allow_partial_load=not strict))
    set_model_state_dict(model, state["model"], options=StateDictOptions(strict=strict))
    for name, optimizer in branches.items():
        set_optimizer_state_dict(model, optimizer, state[name])


def _load_meta(path: str, weights_only: Optional[bool]) -> Any:
    """What _save got as `meta`. As in Lightning, a pickle of any objects unless `weights_only`."""
    with open_checkpoint(path) as checkpoint:
        data = checkpoint.numpy(f"extra/{_META}").tobytes()
    return torch.load(io.BytesIO(data), weights_only=bool(weights_only), map_location="cpu")


class ModelParallelStrategy(_Trainer):  # type: ignore[misc, valid-type]
    """Lightning's ModelParallelStrategy for its Trainer, with one checkpoint of ours for each that Trainer saves.

    >>> lightning.Trainer(strategy=ModelParallelStrategy(data_parallel_size=8, tensor_parallel_size=1))
    """

    def save_checkpoint(
        self, checkpoint: Dict[str, Any], filepath: Path, storage_options: Optional[Any] = None
    ) -> None:
        """Called by Trainer. What Lightning's own refuses, or saves as one file, is left to it.

        >>> trainer.save_checkpoint("checkpoints/epoch=3-step=100.ckpt")
        """
        if storage_options is not None or not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        meta = dict(checkpoint)
        model, optimizers = meta.pop("state_dict"), meta.pop("optimizer_states", [])
        path = _path(self, filepath)
        _save(path, self.global_rank == 0, model, {str(i): state for i, state in enumerate(optimizers)}, meta)

    def load_checkpoint(self, checkpoint_path: Path, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """Called by Trainer.

        >>> trainer.fit(module, ckpt_path="checkpoints/epoch=3-step=100.ckpt")
        """
        path = _path(self, checkpoint_path)
        if not _is_ours(path):
            return super().load_checkpoint(path, *args, **kwargs)
        optimizers: List[Any] = self.optimizers
        strict = self.lightning_module.strict_loading
        _load(path, self.model, {str(i): optimizer for i, optimizer in enumerate(optimizers)}, strict)
        return _load_meta(path, args[0] if args else kwargs.get("weights_only"))


class FabricModelParallelStrategy(_Fabric):  # type: ignore[misc, valid-type]
    """Lightning's ModelParallelStrategy for Fabric, with one checkpoint of ours for each fabric.save.

    >>> lightning.Fabric(strategy=FabricModelParallelStrategy(parallelize, data_parallel_size=8))
    """

    def save_checkpoint(
        self, path: Path, state: Dict[str, Any], storage_options: Optional[Any] = None, filter: Optional[Any] = None
    ) -> None:
        """Called by fabric.save. What Lightning's own refuses, or saves as one file, is left to it.

        >>> fabric.save("checkpoints/step-100", {"model": model, "optimizer": optimizer, "step": 100})
        """
        modules, optimizers, rest = _sorted(state)
        if storage_options is not None or filter or not self._save_distributed_checkpoint or len(modules) != 1:
            super().save_checkpoint(path, state, storage_options, filter)
            return
        (model,) = modules.values()
        on_cpu = StateDictOptions(cpu_offload=True)
        states = {name: get_optimizer_state_dict(model, optim, options=on_cpu) for name, optim in optimizers.items()}
        meta = {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in rest.items()}
        path = _path(self, path)
        _save(path, self.global_rank == 0, get_model_state_dict(model, options=on_cpu), states, meta)

    def load_checkpoint(
        self, path: Path, state: Optional[Any] = None, strict: bool = True, *args: Any, **kwargs: Any
    ) -> Dict[str, Any]:
        """Called by fabric.load. KeyError for a value of `state` that the checkpoint lacks, if `strict`.

        >>> fabric.load("checkpoints/step-100", state)
        """
        path = _path(self, path)
        modules, optimizers, rest = _sorted(state if isinstance(state, dict) else {})
        if not _is_ours(path) or len(modules) != 1:
            return super().load_checkpoint(path, state, strict, *args, **kwargs)
        (model,) = modules.values()
        _load(path, model, optimizers, strict)
        meta: Dict[str, Any] = _load_meta(path, args[0] if args else kwargs.get("weights_only"))
        missing = sorted(rest.keys() - meta.keys())
        if missing and strict:
            raise KeyError(f"{path} has no {', '.join(missing)}; it has {', '.join(sorted(meta))}")
        for name in rest.keys() & meta.keys():
            value = meta.pop(name)
            if isinstance(rest[name], Stateful):
                rest[name].load_state_dict(value)
            else:
                state[name] = value  # type: ignore[index]
        return meta


def _sorted(state: Dict[str, Any]) -> Any:
    """The modules, the optimizers and the other values of what a program gives to Fabric."""
    modules = {name: value for name, value in state.items() if isinstance(value, nn.Module)}
    optimizers = {name: value for name, value in state.items() if isinstance(value, torch.optim.Optimizer)}
    return modules, optimizers, {name: v for name, v in state.items() if name not in modules and name not in optimizers}

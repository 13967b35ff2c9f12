# SPDX-License-Identifier: Apache-2.0
"""A program of lightning_test: fabric_states.py DIRECTORY. What Fabric saves and loads besides one optimizer and a step:
two optimizers, objects with states, values that are missing, and checkpoints of Lightning's own strategy."""

import os
import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp_checkpoint.lightning import FabricModelParallelStrategy

RANKS = int(os.environ["WORLD_SIZE"])


class Counter:
    def __init__(self, count):
        self.count = count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def parallelize(model, mesh):
    return fully_shard(model, mesh=mesh["data_parallel"])


def state_of(fabric, seed):
    """A model after two steps of an optimizer for its weights and another for its biases."""
    torch.manual_seed(seed)
    model = fabric.setup_module(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)))
    weights = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    first = fabric.setup_optimizers(torch.optim.AdamW(weights, lr=1e-2))
    second = fabric.setup_optimizers(torch.optim.SGD(biases, lr=1e-2 * seed, momentum=0.9))
    for _ in range(2):
        fabric.backward(model(torch.randn(4, 5)).square().mean())
        first.step()
        second.step()
        model.zero_grad()
    return {"net": model, "for_weights": first, "for_biases": second, "counter": Counter(seed), "note": f"of {seed}"}


def values(state):
    """Every number of a state, by name."""
    found = {f"net.{name}": p.full_tensor() for name, p in state["net"].named_parameters()}
    for key in ("for_weights", "for_biases"):
        optimizer = state[key].optimizer
        found[f"{key}.lr"] = torch.tensor(optimizer.param_groups[0]["lr"])
        for number, (_, moments) in enumerate(optimizer.state.items()):
            for name, value in moments.items():
                value = value.full_tensor() if hasattr(value, "full_tensor") else value
                found[f"{key}.{number}.{name}"] = value.detach().clone()
    return found


def assert_loaded(fabric, path, saved):
    other = state_of(fabric, seed=2)
    note = other.pop("note")
    rest = fabric.load(path, other)
    wanted, got = values(saved), values(other)
    assert wanted.keys() == got.keys(), (wanted.keys(), got.keys())
    for name, value in wanted.items():
        assert torch.equal(value, got[name]), f"{path}: {name}"
    assert rest == {"note": "of 1"} and note == "of 2", rest
    return other


def main(directory):
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    sizes = {"data_parallel_size": RANKS, "tensor_parallel_size": 1}
    fabric = Fabric(devices=devices, strategy=FabricModelParallelStrategy(parallelize, **sizes))
    fabric.launch()
    saved = state_of(fabric, seed=1)

    for _ in range(2):  # the second replaces the first
        fabric.save(f"{directory}/ours", saved)
    assert os.path.exists(f"{directory}/ours/manifest.json")
    other = assert_loaded(fabric, f"{directory}/ours", saved)
    assert other["counter"].count == 1

    other["epoch"] = 0
    try:
        fabric.load(f"{directory}/ours", other)
    except KeyError as error:
        assert "has no epoch; it has counter, note" in str(error), error
    else:
        raise AssertionError("a value that the checkpoint lacks is not missed")

    stock = ModelParallelStrategy(parallelize, **sizes)
    stock._device_mesh, stock._data_parallel_size = fabric.strategy.device_mesh, RANKS
    stock.cluster_environment = fabric.strategy.cluster_environment
    unwrapped = {**saved, "net": saved["net"].module}
    unwrapped.update((key, saved[key].optimizer) for key in ("for_weights", "for_biases"))
    stock.save_checkpoint(f"{directory}/stock", unwrapped)
    fabric.barrier()
    assert os.path.exists(f"{directory}/stock/.metadata")
    assert_loaded(fabric, f"{directory}/stock", saved)
    print("everything is there", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

# SPDX-License-Identifier: Apache-2.0
"""Lightning's Fabric with FSDP2: saves every third step, continues from its newest checkpoint.

    torchrun --nproc_per_node=2 examples/python/with_fabric.py checkpoints 20
    torchrun --nproc_per_node=3 examples/python/with_fabric.py checkpoints 40
"""

import os
import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import fsdp_checkpoint
from fsdp_checkpoint.lightning import FabricModelParallelStrategy

try:
    from lightning.fabric import Fabric
except ModuleNotFoundError:
    from lightning_fabric import Fabric

BATCH = 12  # the examples of one step, of all ranks together
RANKS = int(os.environ.get("WORLD_SIZE", 1))


def parallelize(model, mesh):
    return fully_shard(model, mesh=mesh["data_parallel"])


def train(fabric, model, optimizer, step):
    x = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(step))[fabric.global_rank :: RANKS]
    loss = (model(x) - x.sin()).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    loss = fabric.all_reduce(loss.detach().clone(), reduce_op="mean").item()
    if fabric.global_rank == 0:
        print(f"step {step}: loss {loss:.8g}", flush=True)


def main(directory, steps):
    strategy = FabricModelParallelStrategy(parallelize, data_parallel_size=RANKS, tensor_parallel_size=1)
    fabric = Fabric(devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    model = fabric.setup_module(nn.Sequential(nn.Linear(10, 33), nn.Tanh(), nn.Linear(33, 10)))
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))

    state = {"model": model, "optimizer": optimizer, "step": 0}
    found = fsdp_checkpoint.steps(directory)
    if found:
        fabric.load(found[-1].path, state)
    for step in range(state["step"] + 1, steps + 1):
        train(fabric, model, optimizer, step)
        state["step"] = step
        if step % 3 == 0:
            fabric.save(f"{directory}/step-{step}", state)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own, sharded by FSDP2, under torchrun: saves every third step, continues where it was stopped.

    torchrun --nproc_per_node=2 examples/python/with_torchrun.py checkpoints 20
    torchrun --nproc_per_node=3 examples/python/with_torchrun.py checkpoints 40
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp_checkpoint.torch import CheckpointManager

BATCH = 12  # the examples of one step, of all ranks together


def batch(step):
    """This rank's part of the examples of a step."""
    x = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(step))
    return x[dist.get_rank() :: dist.get_world_size()]


def train(model, optimizer, step):
    x = batch(step)
    loss = (model(x) - x.sin()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss := loss.detach())
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item() / dist.get_world_size():.8g}", flush=True)


def main(directory, steps):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 33), nn.Tanh(), nn.Linear(33, 10))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # A save goes on in a thread while the ranks train, so it has a group of its own.
    group = dist.new_group(backend="gloo")
    with CheckpointManager(directory, keep_last=2, save_interval=3, async_=True, process_group=group) as manager:
        model_state, optim_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optim_state}
        start = manager.restore(state) if manager.latest_step() is not None else 0
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        for step in range(start + 1, steps + 1):
            train(model, optimizer, step)
            model_state, optim_state = get_state_dict(model, optimizer)
            manager.save(step, {"model": model_state, "optim": optim_state})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

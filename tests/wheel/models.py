# SPDX-License-Identifier: Apache-2.0
"""The models that the tests of the wheel save, sharded by PyTorch's own FSDP, after two steps of AdamW."""

import faulthandler
import os
import sys
import tempfile
import traceback
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh


class Net(nn.Module):
    """Shapes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(13, 7)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, 7)) for _ in range(3)])
        self.norm = nn.LayerNorm(7)
        self.register_buffer("counts", torch.arange(5))

    def forward(self, x):
        x = self.a(x)
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x).square().sum()


def shard(model, kind):
    """`model` as one of PyTorch's: "fsdp2", "hsdp" (2 replicas), "fsdp1"."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard

    if kind == "fsdp1":
        return FullyShardedDataParallel(
            model, sharding_strategy=ShardingStrategy.FULL_SHARD, use_orig_params=True, device_id=torch.device("cpu")
        )
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("r", "s")) if kind == "hsdp" else None
    mesh = mesh or init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def state_of(model, optimizer):
    """The state dict of dcp.save, with values of every sort in addition to model and optimizer."""
    state, optim = get_state_dict(model, optimizer)
    values = {"step": 12, "lr": 3e-4, "note": "h\u00e9", "list": [1, 2.5, None], "tuple": (1, 2)}
    return {"model": state, "optim": optim, "values": values}


def trained(kind, seed, steps=2):
    torch.manual_seed(seed)
    model = Net()
    model = shard(model, kind) if kind else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        torch.manual_seed(100 + step)
        model(torch.randn(4, 13)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def whole(state):
    """Every tensor of a state dict, whole, by its path; and the other values."""
    tensors, others = {}, {}

    def visit(path, value):
        if isinstance(value, dict):
            for key, item in value.items():
                visit((*path, str(key)), item)
        elif isinstance(value, list) and path[-1] == "param_groups":
            for number, item in enumerate(value):
                visit((*path, str(number)), item)
        elif type(value).__name__ == "ShardedTensor":
            target = torch.empty(value.size()) if dist.get_rank() == 0 else None
            value.gather(0, target)
            tensors[path] = target
        elif isinstance(value, torch.Tensor):
            tensors[path] = full(value).detach().clone()
        else:
            others[path] = value

    visit((), state)
    return tensors, others


def _rank_main(rank, world_size, store, function, arguments):
    faulthandler.enable()
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        function(rank, *arguments)
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Not by Python's own exit, in which a rank was seen to abort ("terminate called without an active exception"), in a
    # thread unknown to Python; PyTorch without this package also does so after dcp.save
    # (tests/libtorch/make_golden.py). ExitTest tests this package's behaviour at exit.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(world_size, function, *arguments):
    """Calls function(rank, *arguments) in `world_size` processes with a group of gloo; raises if one fails."""
    if os.environ.get("FSDP_WHEEL_QUICK") and world_size > 2:
        raise unittest.SkipTest(f"starts {world_size} ranks, and the tests are to be quick")
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(_rank_main, (world_size, os.path.join(directory, "store"), function, arguments), nprocs=world_size)

# SPDX-License-Identifier: Apache-2.0
"""One rank of a run of FSDP2 on CPUs (gloo) that torch_checkpointing saves: torch_checkpointing_rank.py JSON

Trains two steps on the mesh "mesh", saves to "root", and rank 0 keeps in "live" what the ranks have together.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.checkpoint_layout import LayoutInfo, SafetensorsSerialization
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig


def gather(self, data, process_group=None):
    """Over gloo: the library's own goes through tensors on CUDA."""
    parts = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(parts, data, group=process_group)
    return dict(enumerate(parts))


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model_of(case, mesh):
    torch.manual_seed(case["seed"])
    blocks = [Block(case["dim"], case["hidden"]) for _ in range(case["layers"])]
    model = nn.Sequential(*blocks, nn.Linear(case["dim"], case["vocabulary"])).to(getattr(torch, case["dtype"]))
    for block in blocks:
        if "tp" in case["mesh"]:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def full(value):
    if isinstance(value, dict):
        return {name: full(member) for name, member in value.items()}
    return value.full_tensor() if isinstance(value, DTensor) else value


def main(case):
    DefaultMetadataManager._all_gather_pickled_data = gather
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", tuple(case["mesh"].values()), mesh_dim_names=tuple(case["mesh"]))
    model = model_of(case, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, case["dim"], dtype=getattr(torch, case["dtype"]))).float().square().mean().backward()
        optimizer.step()
    options = {"resharder": DefaultResharder()} if case["resharder"] else {}
    layout = {}
    if case["safetensors"]:
        layout["layout"] = LayoutInfo("parts/model-{rank}.safetensors", SafetensorsSerialization({}))
    config = CheckpointManager.Config(
        items={"model": ItemSpec(**options, **layout), "optimizer": ItemSpec(**options)},
        save=SyncCheckpointSaverConfig(),
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False),  # its direct writes are not aligned
    )
    manager = CheckpointManager(config)
    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer), "step": 2}
    manager.save(case["root"], state)
    live = {"model": full(state["model"]), "state": full(state["optimizer"]["state"])}
    if dist.get_rank() == 0:
        torch.save(live, case["live"])
    dist.barrier()
    manager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer with FSDP2: saves every third step, continues from its newest checkpoint.

    torchrun --nproc_per_node=2 examples/python/with_lightning.py checkpoints 20
    torchrun --nproc_per_node=4 examples/python/with_lightning.py checkpoints 40
"""

import itertools
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset

import fsdp_checkpoint
from fsdp_checkpoint.lightning import ModelParallelStrategy

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
except ModuleNotFoundError:
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint

BATCH = 12  # the examples of one step, of all ranks together
RANKS = int(os.environ.get("WORLD_SIZE", 1))


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(10, 33), nn.Tanh(), nn.Linear(33, 10))

    def configure_model(self):
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def training_step(self, x, _):
        loss = (self.layers(x) - x.sin()).square().mean()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if self.global_rank == 0:
            print(f"step {self.global_step + 1}: loss {total.item() / RANKS:.8g}", flush=True)
        return loss


class Batches(IterableDataset):
    """This rank's part of the examples of each step, from the module's step on."""

    def __init__(self, net):
        self.net = net

    def __iter__(self):
        for step in itertools.count(self.net.global_step):
            x = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(step))
            yield x[self.net.global_rank :: RANKS]


def main(directory, steps):
    net = Net()
    found = fsdp_checkpoint.steps(directory)
    trainer = pl.Trainer(
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy=ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1),
        max_steps=steps,
        callbacks=[ModelCheckpoint(dirpath=directory, every_n_train_steps=3, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(net, DataLoader(Batches(net), batch_size=None), ckpt_path=found[-1].path if found else None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

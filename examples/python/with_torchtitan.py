# SPDX-License-Identifier: Apache-2.0
"""torchtitan's checkpointer, optimizers and schedules around a small model: saves every third step in the background,
continues from its newest checkpoint.

    torchrun --nproc_per_node=2 examples/python/with_torchtitan.py outputs 20
    torchrun --nproc_per_node=3 examples/python/with_torchtitan.py outputs 40
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, default_adamw

import fsdp_checkpoint
from fsdp_checkpoint.frameworks import storage

BATCH = 12  # the examples of one step, of all ranks together


class TrainState:
    """As torchtitan's Trainer keeps it."""

    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step, dtype=torch.int32)}

    def load_state_dict(self, state_dict):
        self.step = int(state_dict["step"])


def train(model, optimizers, schedulers, step):
    x = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(step))[dist.get_rank() :: dist.get_world_size()]
    loss = (model(x) - x.sin()).square().mean()
    loss.backward()
    optimizers.step()
    schedulers.step()
    optimizers.zero_grad()
    dist.all_reduce(loss := loss.detach())
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item() / dist.get_world_size():.8g}", flush=True)


def main(dump_folder, steps):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 33), nn.Tanh(), nn.Linear(33, 10))
    fully_shard(model)
    optimizer_config = default_adamw(lr=1e-2)
    optimizer_config.implementation = "for-loop"
    optimizers = OptimizersContainer(optimizer_config, model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=optimizers, training_steps=100)
    train_state = TrainState()
    checkpointer = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=3, async_mode="async", last_save_model_only=False),
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": train_state},
        sd_adapter=None,
        base_folder=dump_folder,
    )

    found = fsdp_checkpoint.steps(os.path.join(dump_folder, "checkpoint"))
    with storage():
        checkpointer.load(step=found[-1].step if found else -1)
        for step in range(train_state.step + 1, steps + 1):
            train(model, optimizers, schedulers, step)
            train_state.step = step
            checkpointer.save(step, last_step=step == steps)
        checkpointer.maybe_wait_for_saving()
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

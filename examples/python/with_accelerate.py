# SPDX-License-Identifier: Apache-2.0
"""Accelerate with FSDP2: saves every third step, continues where it was stopped.

    torchrun --nproc_per_node=2 examples/python/with_accelerate.py checkpoints 20
    torchrun --nproc_per_node=4 examples/python/with_accelerate.py checkpoints 40
"""

import glob
import os
import re
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn

from fsdp_checkpoint.frameworks import storage

BATCH = 12  # the examples of one step, of all ranks together


def train(accelerator, model, optimizer, step):
    x = torch.randn(BATCH, 10, generator=torch.Generator().manual_seed(step))
    x = x[accelerator.process_index :: accelerator.num_processes].to(accelerator.device)
    loss = (model(x) - x.sin()).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    loss = accelerator.reduce(loss.detach(), reduction="mean").item()
    if accelerator.is_main_process:
        print(f"step {step}: loss {loss:.8g}", flush=True)


def main(directory, steps):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = Accelerator(fsdp_plugin=plugin)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 33), nn.Tanh(), nn.Linear(33, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

    start = 0
    # Accelerate saves the optimizer after the model.
    whole = sorted(glob.glob(f"{directory}/step-*/optimizer_0/manifest.json"))
    if whole:
        path = os.path.dirname(os.path.dirname(whole[-1]))
        start = int(re.findall("[0-9]+", path)[-1])
        with storage():
            accelerator.load_state(path)
    for step in range(start + 1, steps + 1):
        train(accelerator, model, optimizer, step)
        if step % 3 == 0:
            with storage():
                accelerator.save_state(f"{directory}/step-{step:06}")
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

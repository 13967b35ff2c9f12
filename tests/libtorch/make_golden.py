#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes testdata/: the models of models.py trained by PyTorch's fully_shard, two ranks over gloo, one thread a rank.

  losses.json    the loss of each step, the mean of both ranks', in float32 by AdamW; and the versions
  NAME.pt        the weights that NAME starts from, as torch.save wrote model.state_dict()
  resumed/       the transformer and its AdamW after RESUMED_AT steps, sharded, as torch.distributed.checkpoint wrote it
  gpt2_script.pt a GPT-2 of Hugging Face with random weights, traced: torch.jit.save (needs transformers)

    python3 -m venv v && v/bin/pip install torch numpy transformers && v/bin/python tests/libtorch/make_golden.py

A CPU is enough. The tests beside this file say how near ours are.
"""
import argparse
import json
import os
import shutil
import socket

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import models

RANKS, STEPS, RESUMED_AT, LEARNING_RATE = 2, 20, 8, 3e-3


def train(rank, name, port, out):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS,))
    model = models.MODELS[name]()
    model.load_state_dict(torch.load(os.path.join(out, name + ".pt"), weights_only=True))
    for unit in model.units():
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, foreach=False)
    losses = []
    for step in range(STEPS):
        loss = model.loss(step, *(t.chunk(RANKS)[rank].contiguous() for t in model.batch(step)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        both = [torch.zeros(1, dtype=torch.float64) for _ in range(RANKS)]
        dist.all_gather(both, loss.detach().double().reshape(1))
        losses.append(sum(both).item() / RANKS)
        if name == "transformer" and step + 1 == RESUMED_AT:
            state, optim = get_state_dict(model, optimizer)
            dcp.save({"model": state, "optim": optim, "step": RESUMED_AT}, checkpoint_id=os.path.join(out, "resumed"))
    if rank == 0:
        with open(os.path.join(out, name + ".losses"), "w") as file:
            json.dump(losses, file)
    dist.barrier()
    os._exit(0)  # destroy_process_group sometimes aborts after dcp.save, in a thread that it has not joined


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def export_gpt2(path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(5)
    config = GPT2Config(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3, attn_pdrop=0, embd_pdrop=0,
                        resid_pdrop=0, use_cache=False, tie_word_embeddings=False, attn_implementation="eager")
    model = GPT2LMHeadModel(config).float()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer, self.lm_head = model.transformer, model.lm_head

        def forward(self, tokens):
            return self.lm_head(self.transformer(tokens, use_cache=False)[0])

    traced = torch.jit.trace(Logits().train(), models.integers(1, 61, 4, 16), check_trace=False)
    tokens = models.integers(2, 61, 4, 16)
    assert torch.equal(traced(tokens), model(tokens).logits)
    torch.jit.save(traced, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata"))
    out = parser.parse_args().out
    os.makedirs(out, exist_ok=True)
    shutil.rmtree(os.path.join(out, "resumed"), ignore_errors=True)
    golden = {"torch": torch.__version__, "ranks": RANKS, "learning_rate": LEARNING_RATE, "weight_decay": 0.01,
              "resumed_at": RESUMED_AT, "losses": {}}
    for name, make in models.MODELS.items():
        torch.manual_seed(7)
        torch.save(make().state_dict(), os.path.join(out, name + ".pt"))
        mp.spawn(train, (name, free_port(), out), nprocs=RANKS)
        file = os.path.join(out, name + ".losses")
        golden["losses"][name] = json.load(open(file))
        os.remove(file)
    with open(os.path.join(out, "losses.json"), "w") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")
    export_gpt2(os.path.join(out, "gpt2_script.pt"))


if __name__ == "__main__":
    main()

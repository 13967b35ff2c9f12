#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes testdata/: the models of models.py trained by PyTorch's fully_shard, two ranks over gloo, one thread a rank.

  losses.json    the loss of each step, the mean of both ranks', in float32 by AdamW; and the versions
  mixed.json     the same by SGD, with the units, or the units and the root, in bfloat16; and the processor's kernels
  NAME.pt        the weights that NAME starts from, as torch.save wrote model.state_dict()
  resumed/       the transformer and its AdamW after RESUMED_AT steps, sharded, as torch.distributed.checkpoint wrote it
  gpt2_script.pt a GPT-2 of Hugging Face with random weights, traced: torch.jit.save (needs transformers)
  fork_script.pt a net that runs two children by torch.jit.fork, scripted

    python3 -m venv v && v/bin/pip install torch numpy transformers && v/bin/python tests/libtorch/make_golden.py

A CPU is enough. --only=NAME makes only that file. The tests next to this file define the tolerances.
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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import models

RANKS, STEPS, RESUMED_AT, LEARNING_RATE = 2, 20, 8, 3e-3
MIXED_STEPS, MIXED_LEARNING_RATE = 10, 0.1


def begin(rank, name, port, out):
    """The model with its saved weights, and the mesh of all ranks."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS,))
    model = models.MODELS[name]()
    model.load_state_dict(torch.load(os.path.join(out, name + ".pt"), weights_only=True))
    return model, mesh


def losses_of(model, optimizer, steps, rank, after_step=lambda step: None):
    """The mean of the ranks' losses, for each step."""
    losses = []
    for step in range(steps):
        loss = model.loss(step, *(t.chunk(RANKS)[rank].contiguous() for t in model.batch(step)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        both = [torch.zeros(1, dtype=torch.float64) for _ in range(RANKS)]
        dist.all_gather(both, loss.detach().double().reshape(1))
        losses.append(sum(both).item() / RANKS)
        after_step(step)
    return losses


def finish(rank, name, out, losses):
    if rank == 0:
        with open(os.path.join(out, name + ".losses"), "w") as file:
            json.dump(losses, file)
    dist.barrier()
    os._exit(0)  # destroy_process_group sometimes aborts after dcp.save, in a thread that it has not joined


def train(rank, name, port, out):
    model, mesh = begin(rank, name, port, out)
    for unit in model.units():
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, foreach=False)

    def save(step):
        if name == "transformer" and step + 1 == RESUMED_AT:
            state, optim = get_state_dict(model, optimizer)
            dcp.save({"model": state, "optim": optim, "step": RESUMED_AT}, checkpoint_id=os.path.join(out, "resumed"))

    finish(rank, name, out, losses_of(model, optimizer, STEPS, rank, save))


def linear_of_cpp(x, weight, bias=None):
    """torch::nn::Linear of C++, which rounds once more than Python's for more than two dimensions."""
    if x.dim() == 2 and bias is not None:
        return torch.addmm(bias, x, weight.t())
    y = x.matmul(weight.t())
    return y if bias is None else y.add_(bias)


def train_mixed(rank, name, whole, port, out):
    """The low_units in bfloat16 and their outputs in float32, or all except the full_units so."""
    torch.nn.functional.linear = linear_of_cpp
    model, mesh = begin(rank, name, port, out)
    low = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    of_units = MixedPrecisionPolicy(**low, output_dtype=None if whole else torch.float32)
    for unit in getattr(model, "low_units", model.units)():
        fully_shard(unit, mesh=mesh, mp_policy=of_units)
    for unit in getattr(model, "full_units", list)():
        fully_shard(unit, mesh=mesh)
    of_root = MixedPrecisionPolicy(**low, output_dtype=torch.float32) if whole else MixedPrecisionPolicy()
    fully_shard(model, mesh=mesh, mp_policy=of_root)
    optimizer = torch.optim.SGD(model.parameters(), lr=MIXED_LEARNING_RATE, momentum=0.9, foreach=False)
    finish(rank, name, out, losses_of(model, optimizer, MIXED_STEPS, rank))


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


class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.fc(x))


class ForkNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = Branch(), Branch(), torch.nn.Linear(8, 3)

    def forward(self, x):
        left = torch.jit.fork(self.left, x)
        right = torch.jit.fork(self.right, x)
        return self.head(torch.jit.wait(left) * torch.jit.wait(right))


def export_fork(path):
    torch.manual_seed(9)
    torch.jit.save(torch.jit.script(ForkNet()), path)


def take(path):
    """The JSON of a file, which is then removed."""
    with open(path) as file:
        value = json.load(file)
    os.remove(path)
    return value


def write(path, value):
    with open(path, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def make_losses(out):
    shutil.rmtree(os.path.join(out, "resumed"), ignore_errors=True)
    golden = {"torch": torch.__version__, "ranks": RANKS, "learning_rate": LEARNING_RATE, "weight_decay": 0.01,
              "resumed_at": RESUMED_AT, "losses": {}}
    for name, make in models.MODELS.items():
        torch.manual_seed(7)
        torch.save(make().state_dict(), os.path.join(out, name + ".pt"))
        mp.spawn(train, (name, free_port(), out), nprocs=RANKS)
        golden["losses"][name] = take(os.path.join(out, name + ".losses"))
    write(os.path.join(out, "losses.json"), golden)


def make_mixed(out):
    golden = {"torch": torch.__version__, "ranks": RANKS, "learning_rate": MIXED_LEARNING_RATE,
              "cpu_capability": torch.backends.cpu.get_cpu_capability(), "units": {}, "whole": {}}
    for name in models.MODELS:
        for whole in (False, True):
            mp.spawn(train_mixed, (name, whole, free_port(), out), nprocs=RANKS)
            golden["whole" if whole else "units"][name] = take(os.path.join(out, name + ".losses"))
    write(os.path.join(out, "mixed.json"), golden)


def main():
    makers = {"losses.json": make_losses, "mixed.json": make_mixed,
              "gpt2_script.pt": lambda out: export_gpt2(os.path.join(out, "gpt2_script.pt")),
              "fork_script.pt": lambda out: export_fork(os.path.join(out, "fork_script.pt"))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata"))
    parser.add_argument("--only", choices=makers)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name, make in makers.items():
        if args.only in (None, name):
            make(args.out)


if __name__ == "__main__":
    main()

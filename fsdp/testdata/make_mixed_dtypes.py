#!/usr/bin/env python3
"""Writes mixed_dtypes.json with the real PyTorch: python3 make_mixed_dtypes.py > mixed_dtypes.json (torch 2.11, gloo).

Two ranks train, under fully_shard, a block as in QLoRA: a frozen bfloat16 base and frozen float16 codes beside float32
weights, which all compute in bfloat16. For each case the output of each rank, and each whole gradient after two backwards.
All numbers are multiples of powers of two whose sums are exact, except where a cast to bfloat16 rounds.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

RANKS = 2
CASES = {
    "reduced in float32": {"reduce_dtype": "float32"},
    "reduced in bfloat16": {"reduce_dtype": "bfloat16"},
}


def pattern(shape, seed, scale, offset=0.0):
    numel = 1
    for size in shape:
        numel *= size
    values = [((i * 7 + seed * 5) % 11 - 5) * scale + offset for i in range(numel)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Parameter(pattern((5, 3), 1, 2**-3).bfloat16(), requires_grad=False)
        self.adapter = nn.Parameter(pattern((5, 3), 2, 2**-4, 2**-11))
        self.router = nn.Parameter(pattern((5, 5), 3, 2**-3, 2**-11))  # not a number of bfloat16
        codes = [(i * 5 + 3) % 16 for i in range(4 * 5)]
        self.codes = nn.Parameter(torch.tensor(codes, dtype=torch.float16).reshape(4, 5), requires_grad=False)
        self.head = nn.Parameter(pattern((4, 5), 4, 2**-3))

    def forward(self, x):
        h = x @ self.base.T + x @ self.adapter.T
        h = (h.to(self.router.dtype) @ self.router.T).to(x.dtype)
        return h @ ((self.codes.to(x.dtype) - 8) * 0.25).T + h @ self.head.T


def train(rank, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29561"))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    for name, case in CASES.items():
        block = Block()
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16,
            reduce_dtype=getattr(torch, case["reduce_dtype"]),
        )
        fully_shard(block, mesh=mesh, mp_policy=policy)
        outputs = []
        for step in range(2):
            x = torch.tensor([0.25 * ((rank + 1) * (i - 2) + step) for i in range(6)]).reshape(2, 3)
            output = block(x)
            output.backward(torch.full_like(output, rank + 1.0))
            outputs.append(output.detach().float().flatten().tolist())
        gradients = {n: p.grad.full_tensor().flatten().tolist() for n, p in block.named_parameters() if p.grad is not None}
        results[f"{name} {rank}"] = json.dumps({"outputs": outputs, "gradients": gradients})
    dist.destroy_process_group()
    os._exit(0)  # without destructors of threads of gloo


def main():
    results = mp.Manager().dict()
    mp.spawn(train, (results,), nprocs=RANKS)
    cases = []
    for name, case in CASES.items():
        ranks = [json.loads(results[f"{name} {rank}"]) for rank in range(RANKS)]
        assert all(one["gradients"] == ranks[0]["gradients"] for one in ranks)
        outputs = [one["outputs"] for one in ranks]
        cases.append({"name": name, **case, "outputs": outputs, "gradients": ranks[0]["gradients"]})
    json.dump({"torch": torch.__version__.split("+")[0], "cases": cases}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

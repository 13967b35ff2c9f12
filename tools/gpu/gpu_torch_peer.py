#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the training rows of gpu_check.py, in a process of its own; prints one line of JSON.

  gpu_torch_peer.py --kind=KIND [--model=gpt2-124m] [--rows=8] [--steps=40] [--scratch=FOLDER]

All compute in bfloat16 from float32 parameters, with fused AdamW and clipping, and read the loss in each step:

  eager            fully_shard, blocks as units
  compiled         the same with compiled blocks and a compiled loss, as torchtitan does
  padded           compiled, with the vocabulary rounded up to a multiple of 64, so that the head's products are fast
  whole            for one GPU: autocast, and model and loss in one torch.compile; padded
  reduce-overhead  whole, with mode="reduce-overhead": CUDA graphs

--device=cpu --tiny runs the same lines on a machine without a GPU; its numbers are meaningless.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

from gpu_torch_models import SIZES, TINY_SIZES, build

WARMUP = 10
KINDS = ["eager", "compiled", "padded", "whole", "reduce-overhead"]


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def compilation(args):
    """The options of torch.compile. Tiny runs test this file, not Inductor, whose C++ compiler takes minutes on a
    CPU."""
    if args.tiny:
        return dict(dynamic=False, backend="aot_eager")
    return dict(dynamic=False, mode="reduce-overhead" if args.kind == "reduce-overhead" else None)


def sharded(args, size):
    """fully_shard with one rank, whose blocks and loss may be compiled."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # The CPU's backend needs only the loopback network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1, init_method=f"file://{args.scratch}/store-{os.getpid()}")
    model = build(args.model, size, args.device)
    options = dict(mesh=init_device_mesh(args.device, (1,)),
                   mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    for block in model.h:
        if args.kind != "eager":
            block.compile(**compilation(args))
        fully_shard(block, **options)
    fully_shard(model, **options)
    loss = loss_of if args.kind == "eager" else torch.compile(loss_of, **compilation(args))
    return model, lambda tokens, targets: loss(model(tokens), targets)


def whole(args, size):
    model = build(args.model, size, args.device)

    def forward(tokens, targets):
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(tokens)
        return loss_of(logits, targets)

    return model, torch.compile(forward, **compilation(args))


def train(args):
    size = dict((TINY_SIZES if args.tiny else SIZES)[args.model])
    if args.kind not in ("eager", "compiled"):
        size["vocabulary"] = (size["vocabulary"] + 63) // 64 * 64
    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(0)
        torch.set_float32_matmul_precision("high")  # for operations that autocast leaves in float32
    model, forward = whole(args, size) if args.kind in ("whole", "reduce-overhead") else sharded(args, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rates, began_all, first = [], time.perf_counter(), None
    for _ in range(args.steps):
        tokens = torch.randint(size["vocabulary"], (args.rows, size["seq_len"] + 1), device=args.device)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        if args.kind == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        loss = forward(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if on_gpu:
            torch.cuda.synchronize()
        rates.append(args.rows * size["seq_len"] / (time.perf_counter() - began))
        first = first or time.perf_counter() - began_all
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    print(json.dumps(dict(tokens_per_second=rates[WARMUP:], peak_bytes=peak, loss=loss, first_step_seconds=first)))
    if dist.is_initialized():
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="compiled")
    parser.add_argument("--model", choices=sorted(SIZES), default="gpt2-124m")
    parser.add_argument("--scratch", default=".")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    train(args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of fsdp_benchmark.py: a rank that trains a model of transformers and prints the time of its steps.

  RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT OMP_NUM_THREADS=2 \\
  torch_training.py --config=FILE --wrap=eager|compile|ddp|fsdp1|fsdp2 --dtype=float32|bfloat16 --rows=2 \\
                    --seq_len=256 --warmup=3 --steps=12

FILE is a config.json of gpt2 or llama. In bfloat16 parameters are float32 and compute is bfloat16: by MixedPrecision if
the API has it, with float32 reduction, else by autocast. Rank 0 prints {"step": [seconds of each measured step],
"product": [seconds of one matrix product after each], "product_flops": its operations}.
"""

import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import transformers

PRODUCT = 1024  # rows and columns, as in train/bare_benchmark.cc


def build_model(path):
    with open(path, encoding="utf-8") as file:
        fields = json.load(file)
    kind = fields.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **fields, use_cache=False, attn_implementation="sdpa")
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    return model, (model.transformer.h if kind == "gpt2" else model.model.layers)


def wrap(model, blocks, name, low):
    if name == "compile":
        return torch.compile(model)
    if name == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if name == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else None
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({type(blocks[0])}),
                                        mixed_precision=mixed, device_id=torch.device("cpu"))
    if name == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy()
        if low:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--wrap", required=True, choices=["eager", "compile", "ddp", "fsdp1", "fsdp2"])
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seq_len", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    low = args.dtype == "bfloat16"
    model, blocks = build_model(args.config)
    model = wrap(model, blocks, args.wrap, low)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    autocast = low and args.wrap in ("eager", "compile", "ddp")
    precision = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    ids = torch.arange(args.rows * args.seq_len).square().remainder(512).reshape(args.rows, args.seq_len)
    matrix = torch.arange(PRODUCT * PRODUCT).remainder(17).sub(8).reshape(PRODUCT, PRODUCT)
    matrix = matrix.to(torch.bfloat16 if low else torch.float32)

    seconds, products = [], []
    for _ in range(args.warmup + args.steps):
        dist.barrier()
        begin = time.perf_counter()
        with precision:
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()  # a step ends when the slowest rank ends
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        products.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps({"step": seconds[args.warmup:], "product": products[args.warmup:],
                          "product_flops": 2 * PRODUCT**3}), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may outlive the interpreter otherwise


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 124M in bfloat16 on one GPU: this project beside PyTorch's FSDP, eager and compiled, in one run.

  ./gpu_benchmark.py --bundle=. [--rows=8] [--steps=30] [--rounds=3] [--json=FILE]

Columns: tokens per second, median of the steps after the first ten of each run, and its spread over the rounds; peak
memory that tensors took; blocking time of an asynchronous sharded checkpoint of model and AdamW, beside torch DCP's with
a pinned, cached stager. World size 1: no communication, but all of FSDP's work around it. Same widths, sequence length,
rows, float32 master weights, AdamW, clipping. Runs take turns, so that ratios are of the same minutes.
"""

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile

from gpu_check import environment

SEQ_LEN, VOCABULARY, LAYERS, WIDTH, HEADS = 1024, 50257, 12, 768, 12
WARMUP = 10


# ---------------------------------------------------------------- ours

def write_tokens(path):
    generator = random.Random(1)
    count = 64 * SEQ_LEN + 1
    path.write_bytes(struct.pack(f"<{count}H", *(generator.randrange(VOCABULARY) for _ in range(count))))


def run_ours(args, scratch):
    metrics, saved = scratch / "metrics.jsonl", scratch / "ours"
    command = [f"{args.bundle}/bin/train_gpt", "--device=cuda", "--nproc=1", "--config=gpt2-124m",
               f"--tokens={scratch}/tokens.u16", "--param_dtype=bfloat16", "--reduce_dtype=float32",
               f"--seq_len={SEQ_LEN}", f"--batch_size={args.rows}", f"--steps={args.steps}", "--resume=none",
               "--overwrite", f"--checkpoint_dir={saved}", f"--checkpoint_every={args.steps // 2}", "--keep_last=1",
               "--async_checkpoint", f"--metrics={metrics}"]
    done = subprocess.run(command, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"train_gpt failed:\n{done.stdout[-2000:]}")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    waits = re.findall(r"training waited (\S+?)(?::|$)", done.stdout, re.MULTILINE)
    return dict(tokens_per_second=[step["tokens_per_second"] for step in steps[WARMUP:]],
                peak_bytes=max(step["peak_bytes"] for step in steps), blocked=seconds(waits[-1]))


def seconds(duration):
    """Of a text like 1m2.5s or 830us."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(ms|us|h|m|s)", duration))


# ---------------------------------------------------------------- PyTorch, in a process of its own

def torch_model():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            rows, length, _ = x.shape
            q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2)
                       for part in self.qkv(self.ln_1(x)).split(WIDTH, dim=2))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(attended.transpose(1, 2).reshape(rows, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQ_LEN, WIDTH)
            self.h = nn.ModuleList(Block() for _ in range(LAYERS))
            self.ln_f = nn.LayerNorm(WIDTH)

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.h:
                x = block(x)
            return self.ln_f(x) @ self.wte.weight.T  # a tied head

    torch.manual_seed(0)
    return Gpt2()


def torch_worker(args):
    import time

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import staging
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional as F

    dist.init_process_group("nccl", rank=0, world_size=1, init_method=f"file://{args.scratch}/store-{os.getpid()}")
    torch.cuda.set_device(0)
    model = torch_model().cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.h:
        if args.worker == "compiled":
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)

    def cross_entropy(logits, targets):
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    if args.worker == "compiled":  # blocks and loss, as torchtitan does
        cross_entropy = torch.compile(cross_entropy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rates, blocked = [], []
    stager = staging.DefaultStager() if hasattr(staging, "DefaultStager") else None
    torch.cuda.reset_peak_memory_stats()
    pending, staged = None, None
    for step in range(args.steps):
        tokens = torch.randint(VOCABULARY, (args.rows, SEQ_LEN + 1), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if staged is not None:  # it may still copy what the update changes
            staged.result()
            staged = None
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        rates.append(args.rows * SEQ_LEN / (time.perf_counter() - began))
        if (step + 1) % (args.steps // 2) == 0:
            if pending is not None:
                pending.result()
            parameters, state = get_state_dict(model, optimizer)
            torch.cuda.synchronize()
            began = time.perf_counter()
            saved = dcp.async_save({"model": parameters, "optimizer": state},
                                   checkpoint_id=f"{args.scratch}/dcp-{step}",
                                   **(dict(async_stager=stager) if stager else {}))
            blocked.append(time.perf_counter() - began)
            staged = getattr(saved, "staging_completion", None)
            pending = getattr(saved, "upload_completion", saved)
    pending.result()
    if stager is not None:
        stager.close()
    print(json.dumps(dict(tokens_per_second=rates[WARMUP:], peak_bytes=torch.cuda.max_memory_allocated(),
                          blocked=blocked[-1])))
    dist.destroy_process_group()


def run_torch(args, scratch, kind):
    done = subprocess.run([sys.executable, __file__, f"--worker={kind}", f"--scratch={scratch}", f"--rows={args.rows}",
                           f"--steps={args.steps}"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        print(f"torch, {kind}: left out:\n{done.stderr[-1500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- the table

def report(results):
    lines = ["| | tokens/s | of compiled torch | spread | peak GiB | async save blocks, ms |", "|---|---|---|---|---|---|"]
    medians = {name: [statistics.median(run["tokens_per_second"]) for run in runs] for name, runs in results.items()}
    base = statistics.median(medians["torch fully_shard, compiled"]) if "torch fully_shard, compiled" in medians else None
    for name, runs in results.items():
        rate = statistics.median(medians[name])
        spread = (max(medians[name]) - min(medians[name])) / rate
        blocked = 1e3 * statistics.median(run["blocked"] for run in runs)
        share = f"{rate / base:.2f}" if base else ""
        peak = max(run["peak_bytes"] for run in runs) / 2**30
        lines.append(f"| {name} | {rate:.0f} | {share} | {spread:.1%} | {peak:.2f} | {blocked:.1f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default=".")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", choices=["eager", "compiled"], help=argparse.SUPPRESS)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < WARMUP + 4:
        parser.error(f"--steps={args.steps}: expected at least {WARMUP + 4}")
    if args.worker:
        return torch_worker(args)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        write_tokens(scratch / "tokens.u16")
        for _ in range(args.rounds):
            runs = {"this project": run_ours(args, scratch),
                    "torch fully_shard, eager": run_torch(args, scratch, "eager"),
                    "torch fully_shard, compiled": run_torch(args, scratch, "compiled")}
            for name, run in runs.items():
                if run is not None:
                    results.setdefault(name, []).append(run)
    print(report(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

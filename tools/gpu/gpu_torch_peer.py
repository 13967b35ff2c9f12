#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of gpu_benchmark.py, in a process of its own; prints JSON lines.

  gpu_torch_peer.py train --kind=eager|compiled --scratch=FOLDER [--rows=8] [--steps=60]   GPT-2 124M under fully_shard
  gpu_torch_peer.py kernels                                     PyTorch's fused kernels on cuda_kernels_benchmark's sizes

--device=cpu --tiny runs the same lines on a machine without a GPU, for no number that means anything.
"""

import argparse
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WARMUP = 10


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        width = size["width"]
        self.heads = size["heads"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(width, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.wte = nn.Embedding(size["vocabulary"], size["width"])
        self.wpe = nn.Embedding(size["seq_len"], size["width"])
        self.h = nn.ModuleList(Block(size) for _ in range(size["layers"]))
        self.ln_f = nn.LayerNorm(size["width"])

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T  # a tied head


def size_of(args):
    if args.tiny:
        return dict(seq_len=16, vocabulary=211, layers=2, width=32, heads=2)
    return dict(seq_len=1024, vocabulary=50257, layers=12, width=768, heads=12)


def synchronize(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def sharded_model(args, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = Gpt2(size).to(args.device)
    options = dict(mesh=init_device_mesh(args.device, (1,)),
                   mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    for block in model.h:
        if args.kind == "compiled":
            block.compile()
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


class AsyncSaver:
    """torch DCP's asynchronous save, with a pinned and cached stager where there is one."""

    def __init__(self, args):
        from torch.distributed.checkpoint import staging
        self.args, self.staged, self.pending, self.saved, self.fails = args, None, None, 0, False
        self.stager = None
        if hasattr(staging, "DefaultStager"):
            on_gpu = args.device == "cuda"
            self.stager = staging.DefaultStager(staging.StagingOptions(
                use_pinned_memory=on_gpu, use_async_staging=on_gpu, use_non_blocking_copy=on_gpu))

    def save(self, model, optimizer):
        """Returns how long the call blocked; None where the save fails, as with 2.11's stager and AdamW's state."""
        self.wait()
        return None if self.fails else self.guarded(lambda: self.begin(model, optimizer))

    def begin(self, model, optimizer):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        parameters, state = get_state_dict(model, optimizer)
        synchronize(self.args)
        began = time.perf_counter()
        saved = dcp.async_save({"model": parameters, "optimizer": state},
                               checkpoint_id=f"{self.args.scratch}/dcp-{self.args.kind}-{os.getpid()}-{self.saved}",
                               **(dict(async_stager=self.stager) if self.stager else {}))
        blocked = time.perf_counter() - began
        self.saved += 1
        self.staged = getattr(saved, "staging_completion", None)
        self.pending = getattr(saved, "upload_completion", saved)
        return blocked

    def guarded(self, work):
        """What `work` returns. After an error there are no more saves: training is measured without them."""
        try:
            return work()
        except Exception as error:
            print(f"no asynchronous save: {type(error).__name__}: {error}", file=sys.stderr)
            self.staged, self.pending, self.fails = None, None, True
            return None

    def before_update(self):
        """Waits: the save may still copy state that the update changes."""
        if self.staged is not None:
            self.guarded(self.staged.result)
            self.staged = None

    def wait(self):
        if self.pending is not None:
            self.guarded(self.pending.result)
            self.pending = None

    def close(self):
        self.wait()
        if self.stager is not None:
            self.stager.close()


def train(args):
    size = size_of(args)
    # The CPU's backend is DCP's; one process needs no other network than the loopback.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo"
    if args.device == "cuda":
        torch.cuda.set_device(0)
        torch.cuda.reset_peak_memory_stats()
    dist.init_process_group(backend, rank=0, world_size=1, init_method=f"file://{args.scratch}/store-{os.getpid()}")
    model = sharded_model(args, size)

    def cross_entropy(logits, targets):
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    if args.kind == "compiled":  # blocks and loss, as torchtitan does
        cross_entropy = torch.compile(cross_entropy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    saver = AsyncSaver(args)
    rates, blocked = [], []
    for step in range(args.steps):
        tokens = torch.randint(size["vocabulary"], (args.rows, size["seq_len"] + 1), device=args.device)
        synchronize(args)
        began = time.perf_counter()
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        saver.before_update()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        synchronize(args)
        rates.append(args.rows * size["seq_len"] / (time.perf_counter() - began))
        if (step + 1) % (args.steps // 2) == 0:
            blocked.append(saver.save(model, optimizer))
    saver.close()
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    print(json.dumps(dict(tokens_per_second=rates[WARMUP:], peak_bytes=peak, blocked=None if saver.fails else blocked[-1], loss=loss.item())))
    dist.destroy_process_group()


def microseconds(args, launch):
    """The seconds of one call, the median of seven bursts, as cuda_kernels_benchmark measures."""
    burst = 2 if args.tiny else 20
    times = []
    for _ in range(8):
        synchronize(args)
        began = time.perf_counter()
        for _ in range(burst):
            launch()
        synchronize(args)
        times.append((time.perf_counter() - began) / burst * 1e6)
    return statistics.median(times[1:])


def embedding_kernels(args, dtype, new, measure, rows, columns, classes):
    tokens = torch.arange(rows, device=args.device) * 7919 % classes
    table, grad = new(classes, columns), new(rows, columns)
    measure("embedding", dtype, lambda: F.embedding(tokens, table))
    measure("embedding backward", dtype, lambda: torch.ops.aten.embedding_dense_backward(
        grad, tokens, classes, -1, False))


def product_kernels(args, dtype, new, measure, rows, columns):
    """cuBLAS and scaled_dot_product_attention; the latter picks flash attention for 16 bits."""
    x, weight, bias = new(rows, columns), new(4 * columns, columns), new(4 * columns)
    grad_out = new(rows, 4 * columns)
    measure("linear with bias", dtype, lambda: F.linear(x, weight, bias))
    measure("linear weight gradient", dtype, lambda: grad_out.T @ x)
    length = min(rows, 1024)
    heads = columns // (16 if args.tiny else 64)
    q, k, v = (new(rows // length, heads, length, columns // heads).requires_grad_() for _ in range(3))
    measure("attention", dtype, lambda: F.scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.zeros_like(out)
    measure("attention backward", dtype, lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))


def kernels(args):
    """The names are cuda_kernels_benchmark's."""
    rows, columns, classes = (64, 32, 211) if args.tiny else (16384, 768, 50257)

    def measure(name, dtype, launch):
        row = dict(kernel=name, dtype=str(dtype).removeprefix("torch."), microseconds=round(microseconds(args, launch), 1))
        print(json.dumps(row), flush=True)

    for dtype in (torch.float32, torch.bfloat16):
        def new(*shape):
            return torch.zeros(shape, device=args.device, dtype=dtype)

        wide = new(rows, 4 * columns)
        other, out = torch.zeros_like(wide), torch.zeros(wide.shape, device=args.device)
        measure("add", dtype, lambda: torch.add(wide, other, out=other))
        measure("gelu", dtype, lambda: F.gelu(wide, approximate="tanh"))
        measure("bias backward", dtype, lambda: wide.sum(0))
        measure("scale", dtype, lambda: wide.mul_(0.5))
        measure("accumulate", dtype, lambda: other.add_(wide))
        measure("cast to float32 and divide", dtype, lambda: torch.div(wide, 8, out=out))
        measure("squared norm", dtype, lambda: torch.linalg.vector_norm(wide))
        x, weight, bias = new(rows, columns), new(columns), new(columns)
        measure("layer norm", dtype, lambda: F.layer_norm(x, (columns,), weight, bias))
        measure("rms norm", dtype, lambda: F.rms_norm(x, (columns,), weight))
        mean, rstd = (torch.zeros(rows, 1, device=args.device) for _ in range(2))
        measure("layer norm backward", dtype, lambda: torch.ops.aten.native_layer_norm_backward(
            x, x, [columns], mean.to(dtype) if args.device == "cpu" else mean,
            rstd.to(dtype) if args.device == "cpu" else rstd, weight, bias, [True, True, True]))
        embedding_kernels(args, dtype, new, measure, rows, columns, classes)
        product_kernels(args, dtype, new, measure, rows, columns)
        logits = new(rows // 2, classes)
        targets = torch.zeros(rows // 2, device=args.device, dtype=torch.int64)
        measure("cross entropy", dtype, lambda: F.cross_entropy(logits, targets))
        del wide, other, out, x
        logits.requires_grad_()
        loss = F.cross_entropy(logits, targets)
        measure("cross entropy backward", dtype,
                lambda: torch.autograd.grad(loss, logits, retain_graph=True))
        del logits, loss
        numel = rows * columns * 4
        parameter = torch.zeros(numel, device=args.device, requires_grad=True)
        parameter.grad = torch.zeros_like(parameter)  # PyTorch wants the parameter's dtype
        if dtype == torch.float32:
            optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
            measure("adamw", dtype, optimizer.step)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "kernels"])
    parser.add_argument("--kind", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--scratch", default=".")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    return {"train": train, "kernels": kernels}[args.what](args)


if __name__ == "__main__":
    main()

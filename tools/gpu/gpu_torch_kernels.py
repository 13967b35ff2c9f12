#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's kernels on the sizes of cuda_kernels_benchmark, measured as it measures its own; prints JSON lines.

  gpu_torch_kernels.py [--sections=ceilings,head,attention,products,memory] [--seconds=0] [--rounds=7]

Random operands, as many sets as exceed twice the L2 cache, a CUDA graph of launches on all sets, replayed and timed by
events, the median of --rounds bursts. "graph": false means that a kernel could not be captured; its time then includes
launching. "ceilings" are the limits of this GPU: a copy of 4 GB within its memory, and the product of two square
matrices. --device=cpu --tiny runs the same lines without a GPU; its numbers are meaningless.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

COLD_BYTES = 256 << 20
BURST_SECONDS = 4e-3
GRAPH_LAUNCHES = 20

GPT2 = dict(name="gpt2", batch=8, seq_len=1024, width=768, inner=3072, heads=12, kv_heads=12, vocabulary=50257)
LLAMA = dict(name="llama", batch=4, seq_len=2048, width=2048, inner=8192, heads=32, kv_heads=8, vocabulary=128256)
TINY_GPT2 = dict(name="gpt2", batch=2, seq_len=16, width=32, inner=128, heads=2, kv_heads=2, vocabulary=211)
TINY_LLAMA = dict(name="llama", batch=2, seq_len=16, width=32, inner=64, heads=2, kv_heads=1, vocabulary=307)
# batch, seq_len, heads, kv_heads, head_dim
ATTENTION = [(8, 1024, 12, 12, 64), (4, 2048, 32, 8, 64), (2, 4096, 32, 8, 64), (8, 1024, 16, 8, 128),
             (4, 2048, 16, 8, 128), (2, 4096, 16, 8, 128)]
TINY_ATTENTION = [(2, 16, 2, 2, 64), (1, 32, 2, 1, 128)]


class Stopwatch:
    """Measures one kernel and prints its line."""

    def __init__(self, args):
        self.args, self.began, self.skipped, self.measured = args, time.monotonic(), 0, 0
        self.on_gpu = args.device == "cuda"
        self.stream = torch.cuda.current_stream() if self.on_gpu else None

    def burst(self, work, count):
        """Seconds of one of the `count` launches of work()."""
        if not self.on_gpu:
            began = time.perf_counter()
            work()
            return (time.perf_counter() - began) / count
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return max(begin.elapsed_time(end) * 1e-3, 1e-9) / count

    def captured(self, launches, passes, wanted):
        """A function that runs `passes` passes over the launches, as a graph if that is requested and possible."""
        def all_passes():
            for _ in range(passes):
                for launch in launches:
                    launch()

        if not self.on_gpu or not wanted:
            return all_passes, False
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                all_passes()
            graph.replay()
            torch.cuda.synchronize()
            return graph.replay, True
        except RuntimeError as error:
            print(f"not captured: {str(error).splitlines()[0]}", file=sys.stderr)
            torch.cuda.synchronize()
            return all_passes, False

    def seconds_of(self, launches, graph):
        """The seconds of one launch in each burst, and whether they were replays of a graph."""
        def one_pass():
            for launch in launches:
                launch()

        self.burst(one_pass, len(launches))
        of_pass = self.burst(one_pass, 1)
        target = 0 if self.args.tiny else BURST_SECONDS
        passes = min(int(target / max(of_pass, 1e-6)) + 1, -(-GRAPH_LAUNCHES // len(launches)))
        work, graph = self.captured(launches, passes, graph)
        count = passes * len(launches)
        replays = 1 + int(target / (self.burst(work, count) * count))

        def replay():
            for _ in range(replays):
                work()

        return [self.burst(replay, replays * count) for _ in range(self.args.rounds)], graph

    def measure(self, name, shape, make, bytes=0, flops=0, graph=True):
        """`make` returns a launch with its own operands, of `bytes` bytes."""
        if self.args.seconds and time.monotonic() - self.began > self.args.seconds:
            self.skipped += 1
            return
        try:
            cold = 4096 if self.args.tiny else COLD_BYTES
            seconds, graph = self.seconds_of([make() for _ in range(max(1, -(-cold // bytes)))], graph)
        except (RuntimeError, NotImplementedError) as error:  # out of memory, or no such kernel: the others still count
            print(f"{name}, {shape}: {str(error).splitlines()[0]}", file=sys.stderr)
            self.skipped += 1
            return
        median = statistics.median(seconds)
        unit, of = ("tflop_per_s", flops / 1e12) if flops else ("gb_per_s", bytes / 1e9)
        line = dict(kernel=name, shape=shape, dtype="bfloat16", microseconds=round(median * 1e6, 2),
                    spread=round((max(seconds) - min(seconds)) / median, 3), graph=graph)
        print(json.dumps({**line, unit: round(of / median, 1)}), flush=True)
        self.measured += 1


def new(args, *shape, deviation=1.0, dtype=torch.bfloat16):
    return torch.randn(shape, device=args.device, dtype=dtype).mul_(deviation)


def tokens(args, count, classes):
    """Distributed as words are: token k has probability proportional to 1 / (k + 1)."""
    return (classes ** torch.rand(count, device=args.device, dtype=torch.float64) - 1).long().clamp_(max=classes - 1)


def shape_of(size, columns):
    return f"{size['name']} {size['batch'] * size['seq_len']}x{columns}"


def ceilings(args, watch):
    numel = 1 << (12 if args.tiny else 30)
    side = 64 if args.tiny else 8192

    def copy():
        source, target = new(args, numel), new(args, numel)
        return lambda: target.copy_(source)

    def product():
        a, b = new(args, side, side), new(args, side, side)
        return lambda: a @ b

    watch.measure("ceiling copy", str(4 * numel), copy, bytes=4 * numel)
    watch.measure("ceiling product", str(side), product, bytes=6 * side * side, flops=2 * side**3)


def layer(args, watch, name, shape, rows, inputs, outputs, bias):
    """The three products of a layer; PyTorch's weights are [outputs, inputs]."""
    sizes = dict(bytes=2 * (rows * (inputs + outputs) + inputs * outputs), flops=2 * rows * inputs * outputs)

    def forward():
        x, weight, b = new(args, rows, inputs), new(args, outputs, inputs, deviation=inputs**-0.5), new(args, outputs)
        return lambda: F.linear(x, weight, b if bias else None)

    def input_gradient():
        grad, weight = new(args, rows, outputs), new(args, outputs, inputs, deviation=inputs**-0.5)
        return lambda: grad @ weight

    def weight_gradient():
        grad, x = new(args, rows, outputs), new(args, rows, inputs)
        return lambda: grad.T @ x

    watch.measure(name, shape, forward, **sizes)
    watch.measure(f"{name} input gradient", shape, input_gradient, **sizes)
    watch.measure(f"{name} weight gradient", shape, weight_gradient, **sizes)


def head(args, watch):
    """GPT-2's head, with rows of logits that are a multiple of 2, of 16 and of 128 bytes: by a larger vocabulary;
    cuda_kernels_benchmark pads the rows instead."""
    size = TINY_GPT2 if args.tiny else GPT2
    rows, width, classes = size["batch"] * size["seq_len"], size["width"], size["vocabulary"]
    for columns in (classes, (classes + 7) // 8 * 8, (classes + 63) // 64 * 64):
        stride = "" if columns == classes else f" stride {columns}"
        layer(args, watch, "head", f"{size['name']} {rows}x{width}x{classes}{stride}", rows, width, columns, False)


def products(args, watch):
    for size in (TINY_GPT2, TINY_LLAMA) if args.tiny else (GPT2, LLAMA):
        rows, width, inner = size["batch"] * size["seq_len"], size["width"], size["inner"]
        kv_width = width // size["heads"] * size["kv_heads"]
        layers = [("qkv", width, 3 * width), ("proj", width, width), ("up", width, inner), ("down", inner, width)]
        if size["name"] == "llama":
            layers = [("q", width, width), ("k", width, kv_width), ("up", width, inner), ("down", inner, width)]
        for name, inputs, outputs in layers:
            shape = f"{size['name']} {name} {rows}x{inputs}x{outputs}"
            layer(args, watch, "product", shape, rows, inputs, outputs, size["name"] == "gpt2")


def attention(args, watch):
    """PyTorch's own choice, and each backend by name."""
    backends = {"attention": None}
    if not args.tiny:
        backends |= {"attention cudnn": SDPBackend.CUDNN_ATTENTION, "attention flash": SDPBackend.FLASH_ATTENTION}
    for batch, length, heads, kv_heads, head_dim in TINY_ATTENTION if args.tiny else ATTENTION:
        text = f"b{batch} t{length} h{heads}/{kv_heads} d{head_dim}"
        widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        product = batch * length * length * heads * head_dim

        def attend(choice, widths=widths, batch=batch, length=length, heads=heads, kv_heads=kv_heads):
            qkv = new(args, batch, length, sum(widths)).requires_grad_()
            q, k, v = (part.unflatten(2, (count, -1)).transpose(1, 2)
                       for part, count in zip(qkv.split(widths, dim=2), (heads, kv_heads, kv_heads)))
            with sdpa_kernel(choice) if choice else contextlib.nullcontext():
                return (q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

        def forward(choice):
            (q, k, v), _ = attend(choice)
            q, k, v = q.detach(), k.detach(), v.detach()

            def launch():
                with sdpa_kernel(choice) if choice else contextlib.nullcontext():
                    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
            return launch

        def backward(choice):
            operands, out = attend(choice)
            grad = torch.randn_like(out)
            return lambda: torch.autograd.grad(out, operands, grad, retain_graph=True)

        nbytes = 2 * batch * length * (sum(widths) + widths[0])
        for name, choice in backends.items():
            watch.measure(name, text, lambda choice=choice: forward(choice), bytes=nbytes, flops=2 * product)
            watch.measure(f"{name} backward", text, lambda choice=choice: backward(choice), bytes=2 * nbytes,
                          flops=5 * product)


def backward_of(function, *operands):
    """A launch of only the backward of function(*operands)."""
    leaves = [operand for operand in operands if operand.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()
    out = function(*operands)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def memory(args, watch):
    gpt2, llama = (TINY_GPT2, TINY_LLAMA) if args.tiny else (GPT2, LLAMA)
    for size in (gpt2, llama):
        rows, width, inner = size["batch"] * size["seq_len"], size["width"], size["inner"]
        classes, nbytes = size["vocabulary"], 2 * size["batch"] * size["seq_len"] * size["width"]
        text, wide, logits = (shape_of(size, columns) for columns in (width, inner, classes))

        def unary(function, shape):
            x = new(args, *shape)
            return lambda: function(x)

        def add(shape=(rows, width)):
            a, b, out = (new(args, *shape) for _ in range(3))
            return lambda: torch.add(a, b, out=out)

        watch.measure("add", text, add, bytes=3 * nbytes)
        if size is gpt2:
            gelu = lambda x: F.gelu(x, approximate="tanh")
            norm = lambda x, weight, bias: F.layer_norm(x, (weight.numel(),), weight, bias)
            shape = (rows, inner)
            watch.measure("gelu", wide, lambda: unary(gelu, shape), bytes=4 * rows * inner)
            watch.measure("gelu backward", wide, lambda: backward_of(gelu, new(args, *shape)), bytes=6 * rows * inner)
            watch.measure("bias backward", wide, lambda: unary(lambda x: x.sum(0), shape), bytes=2 * rows * inner)
            parameters = 2
        else:
            norm = lambda x, weight: F.rms_norm(x, (weight.numel(),), weight, 1e-5)
            parameters = 1

        def norm_launch(norm=norm, shape=(rows, width), parameters=parameters):
            x, weights = new(args, *shape), [new(args, shape[1]) for _ in range(parameters)]
            return lambda: norm(x, *weights)

        def norm_backward(norm=norm, shape=(rows, width), parameters=parameters):
            return backward_of(norm, new(args, *shape), *(new(args, shape[1]) for _ in range(parameters)))

        name = "layer norm" if size is gpt2 else "rms norm"
        watch.measure(name, text, norm_launch, bytes=2 * nbytes)
        watch.measure(f"{name} backward", text, norm_backward, bytes=3 * nbytes)
        token_cases(args, watch, rows, width, classes, text, logits)
    flat(args, watch)


def token_cases(args, watch, rows, width, classes, text, logits):
    def embedding():
        ids, table = tokens(args, rows, classes), new(args, classes, width)
        return lambda: F.embedding(ids, table)

    def embedding_backward():
        ids, grad = tokens(args, rows, classes), new(args, rows, width)
        return lambda: torch.ops.aten.embedding_dense_backward(grad, ids, classes, -1, False)

    def cross_entropy():
        x, targets = new(args, rows, classes), tokens(args, rows, classes)
        return lambda: F.cross_entropy(x, targets)

    def cross_entropy_backward():
        x, targets = new(args, rows, classes).requires_grad_(), tokens(args, rows, classes)
        loss = F.cross_entropy(x, targets)
        return lambda: torch.autograd.grad(loss, x, retain_graph=True)

    def cross_entropy_with_gradient():
        x, targets = new(args, rows, classes).requires_grad_(), tokens(args, rows, classes)
        return lambda: torch.autograd.grad(F.cross_entropy(x, targets), x)

    watch.measure("cross entropy", logits, cross_entropy, bytes=2 * rows * classes)
    watch.measure("cross entropy with gradient", logits, cross_entropy_with_gradient, bytes=4 * rows * classes)
    watch.measure("cross entropy backward", logits, cross_entropy_backward, bytes=4 * rows * classes)
    watch.measure("embedding", text, embedding, bytes=4 * rows * width)
    # It may wait for the number of distinct tokens, and a failed capture breaks the captures after it.
    watch.measure("embedding backward", text, embedding_backward, bytes=6 * rows * width, graph=False)


def flat(args, watch):
    numel = 1 << 12 if args.tiny else 25 << 20

    def squared_norm():
        x = new(args, numel)
        return lambda: torch.linalg.vector_norm(x)

    def accumulate():
        x, total = new(args, numel), new(args, numel)
        return lambda: total.add_(x)

    def adamw():
        parameter = new(args, numel, dtype=torch.float32).requires_grad_()
        parameter.grad = new(args, numel, dtype=torch.float32)
        optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True, capturable=args.device == "cuda")
        return optimizer.step

    watch.measure("squared norm", str(numel), squared_norm, bytes=2 * numel)
    watch.measure("accumulate", str(numel), accumulate, bytes=6 * numel)
    watch.measure("adamw with float32 gradients", str(numel), adamw, bytes=28 * numel)


SECTIONS = dict(ceilings=ceilings, head=head, attention=attention, products=products, memory=memory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=0, help="measure no further kernel after so many; 0: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    unknown = set(args.sections.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"--sections: no {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    # Captures need a stream other than the default one, and autograd runs a backward on its forward's stream.
    with torch.cuda.stream(torch.cuda.Stream()) if args.device == "cuda" else contextlib.nullcontext():
        watch = Stopwatch(args)
        for section in args.sections.split(","):
            SECTIONS[section](args, watch)
    print(json.dumps(dict(measured=watch.measured, no_time_for=watch.skipped)))


if __name__ == "__main__":
    main()

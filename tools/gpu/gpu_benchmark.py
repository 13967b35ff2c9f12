#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 124M in bfloat16 on one GPU: this project and PyTorch's FSDP, eager and compiled, in one run; and kernels.

  ./gpu_benchmark.py --bundle=. [--rows=8] [--steps=60] [--rounds=3] [--budget=525] [--json=FILE] [--markdown=FILE]

Columns: tokens per second, median of the steps after the first ten of each run, and its spread over the rounds; peak
memory that tensors took; blocking time of an asynchronous sharded checkpoint of model and AdamW, and torch DCP's with
a pinned, cached stager. World size 1: no communication, but all of FSDP's work around it. Same widths, sequence length,
rows, float32 master weights, AdamW, clipping. Runs take turns, so that ratios are of the same minutes. A second table
has cuda_kernels_benchmark's kernels and PyTorch's.

A run that fails is left out, and said so; the files are kept up to date after every run; nothing starts that the budget
has no room for. --device=cpu --tiny exercises the PyTorch side where there is no GPU.
"""

import argparse
import json
import pathlib
import random
import re
import statistics
import struct
import sys
import tempfile
import time

from gpu_check import run

HERE = pathlib.Path(__file__).resolve().parent
SEQ_LEN, VOCABULARY = 1024, 50257
WARMUP = 10
OURS, CASTS = "this project", "this project, --optimizer_casts"
GRAPH = "this project, --optimizer_casts --cuda_graph"
EAGER, COMPILED = "torch fully_shard, eager", "torch fully_shard, compiled"


class Failed(Exception):
    """An error of one run, with its last lines of output."""


def write_tokens(path):
    generator = random.Random(1)
    count = 64 * SEQ_LEN + 1
    path.write_bytes(struct.pack(f"<{count}H", *(generator.randrange(VOCABULARY) for _ in range(count))))


def seconds(duration):
    """The seconds of a text like 1m2.5s or 830us."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(ms|us|ns|h|m|s)", duration))


def output_of(command, timeout, scratch):
    status, took, output = run(command, timeout, scratch)
    if status != 0:
        why = f"not done after {took:.0f} s" if status == 124 else f"exit status {status}"
        raise Failed("\n".join([why, *output[-25:]]))
    return output


def run_ours(args, scratch, timeout, flags):
    tokens, metrics, saved = scratch / "tokens.u16", scratch / "metrics.jsonl", scratch / "ours"
    metrics.unlink(missing_ok=True)
    if not tokens.exists():
        write_tokens(tokens)
    output = output_of(
        [f"{args.bundle}/bin/train_gpt", "--device=cuda", "--nproc=1", "--config=gpt2-124m", f"--tokens={tokens}",
         "--param_dtype=bfloat16", "--reduce_dtype=float32", f"--seq_len={SEQ_LEN}", f"--batch_size={args.rows}",
         f"--steps={args.steps}", "--resume=none", "--overwrite", f"--checkpoint_dir={saved}",
         f"--checkpoint_every={args.steps // 2}", "--keep_last=1", "--async_checkpoint", f"--metrics={metrics}", *flags],
        timeout, scratch)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    waits = re.findall(r"training waited (\S+?)(?::|$)", "\n".join(output), re.MULTILINE)
    return dict(tokens_per_second=[step["tokens_per_second"] for step in steps[WARMUP:]],
                peak_bytes=max(step["peak_bytes"] for step in steps), blocked=seconds(waits[-1]) if waits else None,
                loss=steps[-1]["loss"])


def torch_command(args, what, *flags):
    command = [sys.executable, HERE / "gpu_torch_peer.py", what, f"--device={args.device}", *flags]
    return command + ["--tiny"] if args.tiny else command


def json_lines(output):
    return [json.loads(line) for line in output if line.startswith("{") and line.endswith("}")]


def run_torch(args, scratch, timeout, kind):
    command = torch_command(args, "train", f"--kind={kind}", f"--scratch={scratch}", f"--rows={args.rows}",
                            f"--steps={args.steps}")
    return json_lines(output_of(command, timeout, scratch))[-1]


def our_kernels(args, scratch, timeout):
    return json_lines(output_of([f"{args.bundle}/bin/cuda_kernels_benchmark"], timeout, scratch))


def torch_kernels(args, scratch, timeout):
    return json_lines(output_of(torch_command(args, "kernels"), timeout, scratch))


# The tables.

def training_table(results):
    lines = ["| | tokens/s | of compiled torch | spread | peak GiB | async save blocks, ms |", "|---|---|---|---|---|---|"]
    medians = {name: [statistics.median(run["tokens_per_second"]) for run in runs] for name, runs in results.items()}
    base = statistics.median(medians[COMPILED]) if COMPILED in medians else None
    for name, runs in results.items():
        rate = statistics.median(medians[name])
        spread = (max(medians[name]) - min(medians[name])) / rate
        waits = [run["blocked"] for run in runs if run["blocked"] is not None]
        blocked = f"{1e3 * statistics.median(waits):.1f}" if waits else ""
        share = f"{rate / base:.2f}" if base else ""
        peak = max(run["peak_bytes"] for run in runs) / 2**30
        lines.append(f"| {name} | {rate:.0f} | {share} | {spread:.1%} of {len(runs)} | {peak:.2f} | {blocked} |")
    return lines


def kernel_table(ours, theirs):
    lines = ["| kernel | dtype | microseconds | of a copy's speed, or TFLOP/s | torch, microseconds | torch / ours |",
             "|---|---|---|---|---|---|"]
    by_name = {(row["kernel"], row["dtype"]): row["microseconds"] for row in theirs}
    for row in ours:
        torch = by_name.pop((row["kernel"], row["dtype"]), None)
        ratio = f"{torch / row['microseconds']:.2f}" if torch else ""
        speed = row["of_copy"] if "of_copy" in row else f"{row['tflop_per_s']} TFLOP/s"
        lines.append(f"| {row['kernel']} | {row['dtype']} | {row['microseconds']} | {speed} | {torch or ''} | {ratio} |")
    return lines + [f"| {kernel} | {dtype} | | | {torch} | |" for (kernel, dtype), torch in by_name.items()]


def markdown(results):
    lines = []
    if results["training"]:
        lines += training_table(results["training"])
    kernels = results["kernels"]
    if kernels:
        lines += ["", *kernel_table(kernels.get(OURS, []), kernels.get("torch", []))]
    for failure in results["failed"]:
        lines += ["", f"Left out: {failure['what']}", "", "```", failure["why"], "```"]
    return "\n".join(lines) + "\n"


def write(args, results):
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(markdown(results))


def work_of(args, scratch, results):
    """(name, function of a timeout): first every program once, so that even a short budget fills the whole table."""
    def training(name, function, *more):
        def piece(timeout):
            made = function(args, scratch, timeout, *more)  # may fail
            results["training"].setdefault(name, []).append(made)
        return (name, piece)

    def kernels(name, function):
        def piece(timeout):
            results["kernels"][name] = function(args, scratch, timeout)
        return (f"kernels of {name}", piece)

    peers = [training(EAGER, run_torch, "eager"), training(COMPILED, run_torch, "compiled")]
    ours = [training(OURS, run_ours, []), training(CASTS, run_ours, ["--optimizer_casts"]),
            training(GRAPH, run_ours, ["--optimizer_casts", "--cuda_graph"])]
    if args.device == "cpu":
        return [kernels("torch", torch_kernels), *peers]
    first = [*ours, *peers, kernels(OURS, our_kernels), kernels("torch", torch_kernels)]
    return first + [piece for _ in range(args.rounds - 1) for piece in [*ours, *peers]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=lambda path: pathlib.Path(path).resolve(), default=HERE)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=525, help="seconds for everything")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.steps < WARMUP + 4:
        parser.error(f"--steps={args.steps}: expected at least {WARMUP + 4}")
    began = time.monotonic()
    results = dict(training={}, kernels={}, failed=[], arguments={key: str(value) for key, value in vars(args).items()})
    with tempfile.TemporaryDirectory() as folder:
        for what, piece in work_of(args, pathlib.Path(folder), results):
            left = args.budget - (time.monotonic() - began)
            if left < 10:
                results["failed"].append(dict(what=what, why="not reached: the budget is spent"))
                continue
            try:
                # A hang leaves time for the others; torch.compile takes a minute or two the first time.
                piece(min(left, 200))
            except Exception as error:  # whatever it is, the other runs count
                results["failed"].append(dict(what=what, why=f"{type(error).__name__}: {error}"))
            print(f"{time.monotonic() - began:6.0f} s  {what}", flush=True)
            write(args, results)
    write(args, results)
    print("\n" + markdown(results), end="")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

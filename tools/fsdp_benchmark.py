#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of a training step: the bare model, FSDP, and PyTorch's bare module, DDP, FSDP1 and FSDP2 if installed.

  ./bazelw build //train:train_gpt //train:bare_benchmark
  tools/fsdp_benchmark.py [--bin=bazel-bin] [--models=tiny,small,llama] [--dtypes=float32,bfloat16] [--rounds=3]
                          [--steps=12] [--save=FILE] [--load=FILE...]

The same model, batch and cores for all; a rank has cores / ranks threads. Runs take turns, in a new random order for
each round, so that ratios compare the same minutes; a figure is the median over all steps except each run's first ones.
PyTorch is the one that this python3 imports (with transformers); without it, its columns are empty. --save writes the
seconds of all steps as JSON; --load prints the tables of such files together, and measures nothing. Standard library
only.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile

GPT2 = dict(model_type="gpt2", n_positions=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
MODELS = {  # config.json, rows of each rank's batch
    "tiny": (dict(GPT2, n_layer=4, n_embd=256, n_head=4, vocab_size=512), 4),
    "small": (dict(GPT2, n_layer=8, n_embd=512, n_head=8, vocab_size=8192), 2),
    "llama": (dict(model_type="llama", num_hidden_layers=8, hidden_size=512, num_attention_heads=8,
                   num_key_value_heads=4, intermediate_size=1536, vocab_size=8192, max_position_embeddings=256,
                   tie_word_embeddings=False), 2),
}
SEQ_LEN = 256
WARMUP = 3
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
PEERS = ("ddp", "fsdp1", "fsdp2")


def flops_per_token(config):
    """Forward and backward: three times two for each weight in a matrix product, and the causal half of attention."""
    if config["model_type"] == "gpt2":
        layers, width = config["n_layer"], config["n_embd"]
        block = 12 * width**2
    else:
        layers, width = config["num_hidden_layers"], config["hidden_size"]
        of_keys = width * config["num_key_value_heads"] // config["num_attention_heads"]
        block = 2 * width**2 + 2 * width * of_keys + 3 * width * config["intermediate_size"]
    return 6 * (layers * (block + SEQ_LEN * width) + width * config["vocab_size"])


def write_files(scratch, name):
    """The config.json and the token file of a model."""
    config, _ = MODELS[name]
    (scratch / f"{name}.json").write_text(json.dumps(config))
    generator = random.Random(1)
    count = 64 * SEQ_LEN + 1
    tokens = struct.pack(f"<{count}H", *(generator.randrange(config["vocab_size"]) for _ in range(count)))
    (scratch / f"{name}.u16").write_bytes(tokens)


# Runs. Each returns {column: [seconds of each measured step]}.

def our_flags(scratch, name, dtype):
    config, rows = MODELS[name]
    return [f"--model={config['model_type']}", f"--config={scratch}/{name}.json", f"--tokens={scratch}/{name}.u16",
            f"--batch_size={rows}", f"--seq_len={SEQ_LEN}", f"--param_dtype={dtype}", "--reduce_dtype=float32"]


def run_bare(args, scratch, name, dtype, cores):
    """The bare model, FSDP with one rank, and a matrix product, in turns in one process that has `cores` threads."""
    done = subprocess.run([f"{args.bin}/train/bare_benchmark", *our_flags(scratch, name, dtype),
                           f"--steps={args.steps}", f"--kernel_threads={cores}"],
                          check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    return {f"bare{cores}": result["bare"], f"sharded{cores}": result["fsdp"],
            f"product{cores}": [seconds / result["product_flops"] for seconds in result["product"]]}


def run_ours(args, scratch, name, dtype, ranks):
    metrics, trace = scratch / "metrics.jsonl", scratch / "trace.json"
    subprocess.run([f"{args.bin}/train/train_gpt", *our_flags(scratch, name, dtype), f"--nproc={ranks}",
                    f"--steps={args.steps + WARMUP}", "--max_grad_norm=0", "--resume=none", f"--metrics={metrics}",
                    f"--trace={trace}"], check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line)["step_seconds"] for line in metrics.read_text().splitlines()]
    return {"ranks": steps[WARMUP:], "hidden": [hidden_share(trace)]}


def hidden_share(trace):
    """The share of the time in collectives during which the same rank computes; all ranks, all steps but the first."""
    events = json.loads(trace.read_text())["traceEvents"]
    collective = hidden = 0
    for rank in {event["pid"] for event in events}:
        spans = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        first = min(event["ts"] + event["dur"] for event in spans if event["name"] == "optimizer")
        spans = [(event["ts"], event["ts"] + event["dur"], event["name"]) for event in spans if event["ts"] >= first]
        # The root's forward and backward contain the blocks' and the waiting between them.
        compute = [span for span in spans if not span[2].startswith(COLLECTIVES) and not span[2].endswith(" root")]
        for begin, end, name in spans:
            if not name.startswith(COLLECTIVES):
                continue
            collective += end - begin
            hidden += sum(max(0, min(end, span[1]) - max(begin, span[0])) for span in compute)
    return hidden / collective


def have_torch():
    return subprocess.run([sys.executable, "-c", "import torch, transformers"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def run_torch(args, scratch, name, dtype, wrap, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(ranks):
        # A malloc that keeps freed memory, which is fastest for PyTorch.
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS=str(max(1, args.cores // ranks)), GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1",
                   MALLOC_MMAP_THRESHOLD_="8589934592", MALLOC_TRIM_THRESHOLD_="8589934592")
        flags = [f"--config={scratch}/{name}.json", f"--wrap={wrap}", f"--dtype={dtype}", f"--rows={MODELS[name][1]}",
                 f"--seq_len={SEQ_LEN}", f"--warmup={WARMUP}", f"--steps={args.steps}"]
        worker = pathlib.Path(__file__).with_name("torch_training.py")
        workers.append(subprocess.Popen([sys.executable, worker, *flags], env=env, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE))
    outputs = [worker.communicate() for worker in workers]
    for worker, (_, errors) in zip(workers, outputs):
        if worker.returncode:
            sys.exit(f"fsdp_benchmark.py: PyTorch's {wrap} failed on {name}, {dtype}:\n{errors[-2000:]}")
    result = json.loads(outputs[0][0])
    products = [seconds / result["product_flops"] for seconds in result["product"]]
    return {f"{wrap}{ranks}": result["step"], **({"torch_product": products} if ranks == 1 else {})}


def measure(args, scratch, name, dtype, with_torch):
    """{column: [seconds]} over all rounds."""
    write_files(scratch, name)
    runs = [lambda: run_bare(args, scratch, name, dtype, 1), lambda: run_ours(args, scratch, name, dtype, args.cores)]
    if args.cores > 1:
        runs.append(lambda: run_bare(args, scratch, name, dtype, args.cores))
    if with_torch:
        single = [("eager", 1), ("compile", 1), *((peer, 1) for peer in PEERS)]
        for wrap, ranks in single + [(peer, args.cores) for peer in PEERS]:
            runs.append(lambda wrap=wrap, ranks=ranks: run_torch(args, scratch, name, dtype, wrap, ranks))
    columns = collections.defaultdict(list)
    for _ in range(args.rounds):
        random.shuffle(runs)
        for run in runs:
            for column, seconds in run().items():
                columns[column] += seconds
    return dict(columns)


# Tables.

class Row:
    def __init__(self, name, dtype, columns, cores):
        self.title, self.columns, self.cores = f"{name}, {dtype}", columns, cores
        self.tokens, self.flops = MODELS[name][1] * SEQ_LEN, flops_per_token(MODELS[name][0])

    def speed(self, column, ranks=1):
        """Tokens per second; None if not measured."""
        seconds = self.columns.get(column)
        return ranks * self.tokens / statistics.median(seconds) if seconds else None

    def beside(self, peer, ours, ranks=1, ours_ranks=1):
        """A peer's tokens per second, and ours divided by them."""
        theirs = self.speed(peer, ranks)
        return f"{theirs:.0f} ({self.speed(ours, ours_ranks) / theirs:.2f})" if theirs else ""

    def share_of_product(self, column):
        """The share of the fastest matrix product of the same run on as many threads."""
        products = [self.columns[key] for key in (f"product{self.cores}", "torch_product") if key in self.columns]
        best = 1 / min(statistics.median(product) for product in products)
        speed = self.speed(column)
        return f"{speed * self.flops / best:.2f} of {best / 1e9:.0f} GFLOP/s" if speed else ""


def print_tables(rows, cores):
    bare, sharded = f"bare{cores}", f"sharded{cores}"
    print(f"One process, {cores} threads; tokens per second. In parentheses: ours over it, and FSDP over bare.\n")
    print("| model | bare | of the best product | FSDP, 1 rank | over 1 thread | eager | compile | DDP | FSDP1 | FSDP2 |")
    print("|---" * 10 + "|")
    for row in rows:
        speed = row.speed(sharded)
        cells = [f"{row.speed(bare):.0f}", row.share_of_product(bare), f"{speed:.0f} ({speed / row.speed(bare):.3f})",
                 f"{speed / row.speed('sharded1'):.2f}" if cores > 1 else "",
                 row.beside("eager1", bare), row.beside("compile1", bare)]
        cells += [row.beside(f"{peer}1", sharded) for peer in PEERS]
        print(f"| {row.title} | " + " | ".join(cells) + " |")
    print(f"\n{cores} ranks of one thread; tokens per second of all. hidden: how much of its communication runs while\n"
          "the same rank computes. In parentheses: ours over it.\n")
    print("| model | FSDP | hidden | DDP | FSDP1 | FSDP2 |\n|---|---|---|---|---|---|")
    for row in rows:
        cells = [f"{row.speed('ranks', cores):.0f}", f"{100 * statistics.median(row.columns['hidden']):.0f} %"]
        cells += [row.beside(f"{peer}{cores}", "ranks", cores, cores) for peer in PEERS]
        print(f"| {row.title}, {cores} ranks | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="bazel-bin")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each run")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1,
                        help="threads in all, and ranks of the second table")
    parser.add_argument("--save", metavar="FILE", help="write the seconds of all steps here, as JSON")
    parser.add_argument("--load", metavar="FILE", nargs="+", help="print the tables of these instead of measuring")
    args = parser.parse_args()
    measured = []  # [model, dtype, columns]
    if args.load:
        for path in args.load:
            measured += json.loads(pathlib.Path(path).read_text())
    else:
        with_torch = have_torch()
        with tempfile.TemporaryDirectory() as scratch:
            for name in args.models.split(","):
                for dtype in args.dtypes.split(","):
                    measured.append([name, dtype, measure(args, pathlib.Path(scratch), name, dtype, with_torch)])
    if args.save:
        pathlib.Path(args.save).write_text(json.dumps(measured))
    # The same model and dtype from several files make one row.
    columns = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, dtype, seconds in measured:
        for column, values in seconds.items():
            columns[name, dtype][column] += values
    print_tables([Row(name, dtype, values, args.cores) for (name, dtype), values in columns.items()], args.cores)
    if not args.load:
        print(f"\n{args.cores} cores, load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

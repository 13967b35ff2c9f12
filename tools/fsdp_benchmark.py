#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of a sharded step compared with the bare model, and with PyTorch's FSDP1 and FSDP2 over gloo if installed.

  ./bazelw build //train:train_gpt //train:bare_benchmark
  tools/fsdp_benchmark.py [--bin=bazel-bin] [--configs=tiny,small] [--dtypes=float32,bfloat16] [--rounds=3] [--steps=12]

The same GPT-2, batch and cores for all: a rank has cores / ranks threads. Runs take turns, `--rounds` times, so that ratios
are of the same minutes; a figure is the median over all steps but each run's first ones. PyTorch is the one that this
python3 imports (with transformers); without it, its lines are left out. Standard library only otherwise.
"""

import argparse
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

CONFIGS = {
    "tiny": dict(n_layer=4, n_embd=256, n_head=4, vocab_size=512, n_positions=256, rows=4),
    "small": dict(n_layer=8, n_embd=512, n_head=8, vocab_size=8192, n_positions=256, rows=2),
}
SEQ_LEN = 256
WARMUP = 3
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


# Ours.

def model_flags(scratch, name):
    config = {key: value for key, value in CONFIGS[name].items() if key != "rows"}
    path = scratch / f"{name}.json"
    path.write_text(json.dumps({"model_type": "gpt2", "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, **config}))
    tokens = scratch / f"{name}.u16"
    generator = random.Random(1)
    count = 64 * SEQ_LEN + 1
    tokens.write_bytes(struct.pack(f"<{count}H", *(generator.randrange(config["vocab_size"]) for _ in range(count))))
    return [f"--config={path}", f"--tokens={tokens}", f"--batch_size={CONFIGS[name]['rows']}", f"--seq_len={SEQ_LEN}"]


def run_ours(args, scratch, name, dtype, ranks):
    """(seconds of each measured step, path of the trace)."""
    metrics, trace = scratch / "metrics.jsonl", scratch / "trace.json"
    subprocess.run([f"{args.bin}/train/train_gpt", *model_flags(scratch, name), f"--nproc={ranks}",
                    f"--steps={args.steps + WARMUP}", f"--param_dtype={dtype}", "--reduce_dtype=float32",
                    "--max_grad_norm=0", "--resume=none", f"--metrics={metrics}", f"--trace={trace}"],
                   check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line)["step_seconds"] for line in metrics.read_text().splitlines()]
    return steps[WARMUP:], trace


def run_bare(args, scratch, name, dtype):
    """Seconds of each measured step of the bare model and of FSDP with one rank, in turns within one process."""
    flags = model_flags(scratch, name)
    done = subprocess.run([f"{args.bin}/train/bare_benchmark", *flags, f"--param_dtype={dtype}",
                           f"--steps={args.steps}"], check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    return result["bare"], result["fsdp"]


def hidden_share(trace):
    """The share of the time in collectives during which the same rank computes; all ranks, all steps except the first."""
    events = json.loads(trace.read_text())["traceEvents"]
    collective = hidden = 0
    for rank in {event["pid"] for event in events}:
        spans = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        first = min(event["ts"] + event["dur"] for event in spans if event["name"] == "optimizer")
        spans = [(event["ts"], event["ts"] + event["dur"], event["name"]) for event in spans if event["ts"] >= first]
        # The root's forward and backward hold those of the blocks, and the waiting between them.
        compute = [span for span in spans if not span[2].startswith(COLLECTIVES) and not span[2].endswith(" root")]
        for begin, end, name in spans:
            if not name.startswith(COLLECTIVES):
                continue
            collective += end - begin
            hidden += sum(max(0, min(end, span[1]) - max(begin, span[0])) for span in compute)
    return hidden / collective


# PyTorch.

def have_torch():
    return subprocess.run([sys.executable, "-c", "import torch, transformers"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def run_torch(args, api, name, dtype, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // ranks)
    workers = []
    for rank in range(ranks):
        # A malloc that keeps freed memory, which makes PyTorch fastest.
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS=str(threads), GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1",
                   MALLOC_MMAP_THRESHOLD_="8589934592", MALLOC_TRIM_THRESHOLD_="8589934592")
        workers.append(subprocess.Popen([sys.executable, __file__, f"--torch_worker={api}", f"--configs={name}",
                                         f"--dtypes={dtype}", f"--steps={args.steps}"], env=env, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit(f"fsdp_benchmark.py: PyTorch's {api} failed on {name}, {dtype}")
    return json.loads(outputs[0])


def wrap_torch(model, block, api, low):
    import torch
    if api == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else None
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({block}), mixed_precision=mixed,
                                        device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    for layer in model.transformer.h:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def torch_worker(args):
    import time
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo")
    fields = CONFIGS[args.configs]
    config = GPT2Config(**{key: value for key, value in fields.items() if key != "rows"}, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="sdpa")
    torch.manual_seed(0)
    model = wrap_torch(GPT2LMHeadModel(config).train(), GPT2Block, args.torch_worker, args.dtypes == "bfloat16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(0, fields["vocab_size"], (fields["rows"], SEQ_LEN))
    seconds = []
    for _ in range(args.steps + WARMUP):
        dist.barrier()
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dist.barrier()  # a step ends when the slowest rank ends
        seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps(seconds[WARMUP:]), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may outlive the interpreter otherwise


# The table.

def compare(args, scratch, name, dtype, with_torch):
    bare, one, two, shares = [], [], [], []
    theirs = {"fsdp1": [], "fsdp2": []}
    for _ in range(args.rounds):
        seconds = run_bare(args, scratch, name, dtype)
        bare += seconds[0]
        one += seconds[1]
        seconds, trace = run_ours(args, scratch, name, dtype, ranks=2)
        two += seconds
        shares.append(hidden_share(trace))
        for api, steps in theirs.items():
            if with_torch:
                steps += run_torch(args, api, name, dtype, ranks=2)
    tokens = CONFIGS[name]["rows"] * SEQ_LEN
    speed = lambda steps, ranks: tokens * ranks / statistics.median(steps)
    cells = [f"{speed(bare, 1):.0f}", f"{speed(one, 1):.0f} ({speed(one, 1) / speed(bare, 1):.3f})",
             f"{speed(two, 2):.0f}", f"{100 * statistics.median(shares):.0f} %"]
    for api in theirs:
        cells.append(f"{speed(theirs[api], 2):.0f} ({speed(two, 2) / speed(theirs[api], 2):.2f})" if with_torch else "-")
    print(f"| {name}, {dtype} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="bazel-bin")
    parser.add_argument("--configs", default="tiny,small")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each run")
    parser.add_argument("--torch_worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_worker:
        return torch_worker(args)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    print("tokens per second. bare: the model in one process. 1 rank: FSDP around it (over bare). 2 ranks: FSDP; how much of its\n"
          "communication runs while it computes; PyTorch's FSDP1 and FSDP2 (ours over theirs).\n")
    print("| model | bare | 1 rank | 2 ranks | hidden | FSDP1 | FSDP2 |\n|---|---|---|---|---|---|---|")
    with_torch = have_torch()
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.configs.split(","):
            for dtype in args.dtypes.split(","):
                compare(args, pathlib.Path(scratch), name, dtype, with_torch)
    print(f"\n{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

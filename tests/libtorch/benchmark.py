#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our sharded torch::nn modules with the bare module and with PyTorch's fully_shard: the same model, data,
torch build.

    tests/libtorch/benchmark.py [--models=tiny,small] [--bfloat16] [--rounds=5] [--steps=12] [--python=VENV/bin/python]

builds nothing: first `./bazelw build --repo_env=TORCH_PATH=... //tests/libtorch:benchmark //tools:launch`. One thread
per rank. A round runs, in turn:

  one rank    the bare module and the sharded one in one process, alternating step by step: their ratio is the share
  two ranks   ours as two processes; then fully_shard as two processes over gloo: their ratio is the gain

With --bfloat16 the parameters are in bfloat16 and gradients are reduced in float32, by FSDP2 in both. There is no bare
module; instead each run of ours has two sharded ones, alternating step by step: their ratio is the cost.

  CallUnit      CallUnit calls the blocks and casts their inputs
  at operators  no class changes, and every operator is checked for operands to cast

Times are medians over the steps of a run without the first three, and over the rounds; a step is forward, backward,
AdamW of torch::optim (of torch.optim) and zero_grad. --python imports torch of the build that TORCH_PATH names; without
it the last column stays empty. bound: the most bytes of whole parameters that tensors refer to, of the model's bytes.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

# Vocabulary, width, heads, blocks, length; rows of a rank.
MODELS = {"tiny": (512, 256, 4, 4, 256, 2), "small": (8192, 512, 8, 8, 256, 1)}


def environment(**more):
    # A malloc that keeps freed memory, which is fastest for both.
    return dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_="8589934592",
                MALLOC_TRIM_THRESHOLD_="8589934592", **more)


def run_ours(args, name, ranks):
    """The JSON that the benchmark prints; rank 0's if there are two ranks."""
    command = [f"{args.bin}/tests/libtorch/benchmark", f"--steps={args.steps}", f"--bfloat16={args.bfloat16}"]
    command.append("--size=" + ",".join(map(str, MODELS[name])))
    if ranks > 1:
        command = [f"{args.bin}/tools/launch", f"--nproc={ranks}", "--"] + command
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1])


def run_python(args, name):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [args.python, __file__, f"--worker={name}", f"--steps={args.steps}"] + ["--bfloat16"] * args.bfloat16
    workers = [subprocess.Popen(command, text=True,
                                env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                                MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo"),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    outputs = [worker.communicate() for worker in workers]
    for worker, (_, errors) in zip(workers, outputs):
        if worker.returncode:
            sys.exit(f"benchmark.py: fully_shard on {name} failed:\n{errors}")
    return json.loads(outputs[0][0])


def worker(args):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    import models

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    *size, rows = MODELS[args.worker]
    model = models.Transformer(*size, rows=rows * ranks)
    low = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if args.bfloat16 else {}
    for unit in model.units() + [model]:
        fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(**low))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds = []
    for step in range(args.steps):
        batch = [t.chunk(ranks)[rank].contiguous() for t in model.batch(step)]
        dist.barrier()
        start = time.perf_counter()
        model.loss(step, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    dist.barrier()
    os._exit(0)


def milliseconds(seconds):
    return 1e3 * statistics.median(seconds[3:])


def medians(rows):
    return [statistics.median(column) for column in zip(*rows)]


def compare_float32(args):
    print("| model | bare, ms | 1 rank, ms | share | 2 ranks, ms | bound | fully_shard, ms | gain |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.models.split(","):
        rows = []
        for _ in range(args.rounds):
            one, two = run_ours(args, name, 1), run_ours(args, name, 2)
            bare, sharded, pair = (milliseconds(run) for run in (one["bare"], one["sharded"], two["sharded"]))
            python = milliseconds(run_python(args, name)["seconds"]) if args.python else float("nan")
            rows.append((bare, sharded, bare / sharded, pair, python, python / pair))
        bare, sharded, share, pair, python, gain = medians(rows)
        shown = (f"{python:.1f}", f"{gain:.2f}") if args.python else ("", "")
        print(f"| {name} | {bare:.1f} | {sharded:.1f} | {share:.3f} | {pair:.1f} | "
              f"{two['bound_bytes']} of {two['model_bytes']} | {shown[0]} | {shown[1]} |", flush=True)


def compare_bfloat16(args):
    print("| model | ranks | CallUnit, ms | at operators, ms | cost | fully_shard, ms | gain | gain at operators |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.models.split(","):
        rows = {1: [], 2: []}
        for _ in range(args.rounds):
            for ranks in rows:
                run = run_ours(args, name, ranks)
                called, at_operators = milliseconds(run["sharded"]), milliseconds(run["at_operators"])
                rows[ranks].append([called, at_operators, at_operators / called])
            if args.python:
                python = milliseconds(run_python(args, name)["seconds"])
                rows[2][-1] += [python, python / called, python / at_operators]
        for ranks in rows:
            called, at_operators, cost, *peer = medians(rows[ranks])
            shown = (f"{peer[0]:.1f}", f"{peer[1]:.2f}", f"{peer[2]:.2f}") if peer else ("", "", "")
            ours = f"| {name} | {ranks} | {called:.1f} | {at_operators:.1f} | {cost:.3f} |"
            print(ours, " | ".join(shown), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny,small")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--python", help="a Python that imports torch")
    parser.add_argument("--bin", default="bazel-bin")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 4 or args.rounds < 1:
        parser.error("--steps: at least 4; --rounds: at least 1")
    unknown = set(args.models.split(",")) - set(MODELS)
    if unknown:
        parser.error(f"--models={','.join(sorted(unknown))}: {', '.join(MODELS)} are")
    if args.worker:
        return worker(args)
    (compare_bfloat16 if args.bfloat16 else compare_float32)(args)


if __name__ == "__main__":
    main()

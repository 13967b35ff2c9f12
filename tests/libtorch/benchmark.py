#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our sharded torch::nn modules beside the bare module and beside PyTorch's fully_shard: the same model, data, torch build.

    tests/libtorch/benchmark.py [--models=tiny,small] [--rounds=5] [--steps=12] [--python=VENV/bin/python]

builds nothing: first `./bazelw build --repo_env=TORCH_PATH=... //tests/libtorch:benchmark //tools:launch`. One thread a
rank. A round runs, in turn:

  one rank    the bare module and the sharded one in one process, step by step in turn: their ratio is the share
  two ranks   ours as two processes; then fully_shard as two processes over gloo: their ratio is the gain

Times are medians over the steps of a run but the first three, and over the rounds; a step is forward, backward, AdamW of
torch::optim (of torch.optim) and zero_grad. --python imports torch of the build that TORCH_PATH names; without it the
last column stays empty. bound: bytes of whole parameters that tensors refer to at most, of those of the model.
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
    # A malloc that keeps freed memory, which makes both fastest.
    return dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_="8589934592",
                MALLOC_TRIM_THRESHOLD_="8589934592", **more)


def run_ours(args, name, ranks):
    """What the benchmark prints as JSON; of two ranks, rank 0's."""
    command = [f"{args.bin}/tests/libtorch/benchmark", f"--steps={args.steps}"]
    command.append("--size=" + ",".join(map(str, MODELS[name])))
    if ranks > 1:
        command = [f"{args.bin}/tools/launch", f"--nproc={ranks}", "--"] + command
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1])


def run_python(args, name):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = [subprocess.Popen([args.python, __file__, f"--worker={name}", f"--steps={args.steps}"], text=True,
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
    from torch.distributed.fsdp import fully_shard

    import models

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    *size, rows = MODELS[args.worker]
    model = models.Transformer(*size, rows=rows * ranks)
    for unit in model.units():
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny,small")
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
    print("| model | bare, ms | 1 rank, ms | share | 2 ranks, ms | bound | fully_shard, ms | gain |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.models.split(","):
        rows = []
        for _ in range(args.rounds):
            one, two = run_ours(args, name, 1), run_ours(args, name, 2)
            python = milliseconds(run_python(args, name)["seconds"]) if args.python else float("nan")
            rows.append((milliseconds(one["bare"]), milliseconds(one["sharded"]), milliseconds(two["sharded"]), python))
        bare, sharded, pair, python = (statistics.median(row[i] for row in rows) for i in range(4))
        share = statistics.median(row[0] / row[1] for row in rows)
        gain = statistics.median(row[3] / row[2] for row in rows)
        shown = (f"{python:.1f}", f"{gain:.2f}") if args.python else ("", "")
        print(f"| {name} | {bare:.1f} | {sharded:.1f} | {share:.3f} | {pair:.1f} | "
              f"{two['bound_bytes']} of {two['model_bytes']} | {shown[0]} | {shown[1]} |", flush=True)


if __name__ == "__main__":
    main()

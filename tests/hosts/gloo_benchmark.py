#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch's Gloo between hosts, timed as collective_timing.cc times ours: batches of about 20 ms, the
slowest rank's time, the median batch. A rank of torchrun's environment; rank 0 prints a line of JSON for each size.

  gloo_benchmark.py ROUNDS BYTES...      BYTES: all_gather's output, reduce_scatter's input, per rank
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def slowest(seconds):
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def batch(collective, repeat):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(repeat):
        collective()
    return slowest((time.perf_counter() - begin) / repeat)


def measure(collective, rounds):
    batch(collective, 1)
    repeat = min(2000, max(1, int(0.02 / batch(collective, 1))))
    return statistics.median(batch(collective, repeat) for _ in range(rounds))


def main():
    rounds, sizes = int(sys.argv[1]), [int(argument) for argument in sys.argv[2:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for nbytes in sizes:
        whole, part = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4 // dist.get_world_size())
        collectives = {"all_gather": lambda: dist.all_gather_into_tensor(whole, part),
                       "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole)}
        for name, collective in collectives.items():
            seconds = measure(collective, rounds)
            if dist.get_rank() == 0:
                print(json.dumps({"op": name, "bytes": nbytes, "time_us": seconds * 1e6}), flush=True)
    dist.destroy_process_group()


main()

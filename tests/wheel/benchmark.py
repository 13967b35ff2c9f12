# SPDX-License-Identifier: Apache-2.0
"""Writer and Reader compared with PyTorch's FileSystemWriter and FileSystemReader, in one run: run.sh --benchmark.

Each round saves and loads the same state with one and then with the other, so that both use the disk in the same state.
Both make their files durable (fsync); Writer also digests every byte, and Reader compares the digests. Writer leaves
nothing in the page cache and FileSystemWriter leaves all, so each checkpoint is loaded from equal states of it: cold,
with its pages dropped, and warm, after all have been read. Prints medians with the smallest and the largest, in seconds
and GB/s, and the largest growth of rank 0's memory meanwhile.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402

ROUNDS = 5
RANKS = 2
TENSORS = 24
ROWS, COLUMNS = 2048, 4096  # float32: 32 MiB each, 768 MiB in all


def resident(field):
    """Bytes of this process: VmRSS now, or VmHWM at most."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field + ":"))


def measured(function):
    """Seconds, and the largest growth of this process in bytes meanwhile."""
    dist.barrier()
    with open("/proc/self/clear_refs", "w") as references:
        references.write("5")  # resets VmHWM
    before = resident("VmRSS")
    begin = time.perf_counter()
    function()
    dist.barrier()
    return time.perf_counter() - begin, resident("VmHWM") - before


def files_of(path):
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def cool(path):
    """Drops the files from the page cache; they are durable, so all their pages can be dropped."""
    for name in files_of(path):
        with open(name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(path):
    """Reads the files into the page cache."""
    for name in files_of(path):
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def rank_main(rank, root, report):
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0)
    state = {
        f"layer.{i}.weight": distribute_tensor(torch.randn(ROWS, COLUMNS), mesh, [Shard(0)]) for i in range(TENSORS)
    }
    wanted = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    measurements = {}
    for number in range(ROUNDS + 1):
        for name, writer, reader in (
            ("FileSystem", dcp.FileSystemWriter, dcp.FileSystemReader),
            ("fsdp_checkpoint", Writer, Reader),
        ):
            path = f"{root}/step-{number:08}"
            found = {"save": measured(lambda: dcp.save({"model": state}, storage_writer=writer(path)))}
            for what, prepare in (("load, cold", cool), ("load, warm", warm)):
                if rank == 0:
                    prepare(path)
                found[what] = measured(lambda: dcp.load({"model": wanted}, storage_reader=reader(path)))
                assert all(torch.equal(wanted[key].to_local(), tensor.to_local()) for key, tensor in state.items())
            for what, value in found.items():
                measurements.setdefault((what, name), []).append(value)
            dist.barrier()
            if rank == 0:
                shutil.rmtree(path)
    if rank == 0:
        torch.save(measurements, report)


def main():
    gigabytes = TENSORS * ROWS * COLUMNS * 4 / 1e9
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_DIR")) as root:
        models.run_ranks(RANKS, rank_main, root, root + "/report.pt")
        measurements = torch.load(root + "/report.pt")
    print(f"torch {torch.__version__}, {RANKS} ranks, {TENSORS} tensors, {gigabytes:.2f} GB, {ROUNDS} rounds")
    for (what, name), values in sorted(measurements.items()):
        seconds, grown = zip(*values)
        seconds = seconds[1:]  # the first round is the warm-up, in which memory grows
        median = statistics.median(seconds)
        spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
        print(f"{what:10}  {name:17} {median:6.2f} s {spread}  {gigabytes / median:5.2f} GB/s  "
              f"{max(grown) / 1e6:5.0f} MB more")


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()

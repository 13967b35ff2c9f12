# SPDX-License-Identifier: Apache-2.0
"""What h5py, torch.save and torch.distributed.checkpoint take to save and load the tensors of checkpoint_benchmark.

usage: benchmark_peers.py WHAT DIRECTORY ROWS...    prints seconds, or exits with 77 where a library is missing

WHAT is h5py-save, h5py-load, torch-save, torch-load, dcp-save or dcp-load; dcp is one process without a group.
DIRECTORY/flat holds the tensors' bytes, float32, one after the other; tensor i has ROWS[i] rows of 16. A save makes new
files and ends with fsync.
"""
import os
import shutil
import sys
import time
import warnings

warnings.simplefilter("ignore")

try:
    import numpy
    what, directory, rows = sys.argv[1], sys.argv[2], [int(r) for r in sys.argv[3:]]
    if what.startswith("h5py"):
        import h5py
    else:
        import torch
        import torch.distributed.checkpoint as dcp
except ImportError:
    sys.exit(77)


def tensors():
    values = numpy.fromfile(directory + "/flat", dtype=numpy.float32)
    begin = 0
    for i, count in enumerate(rows):
        yield "layer.%d.weight" % i, values[begin:begin + count * 16].reshape(count, 16)
        begin += count * 16


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


path = directory + "/peer." + what.split("-")[0]
if what.endswith("save"):
    # A save makes new files, and nobody pays for the deletion of old ones.
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)
if what == "h5py-save":
    values = dict(tensors())
    start = time.perf_counter()
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            file.create_dataset(name, data=value)
    sync(path)
elif what == "h5py-load":
    start = time.perf_counter()
    with h5py.File(path, "r") as file:
        loaded = {name: file[name][...] for name in file}
elif what == "torch-save":
    values = {name: torch.from_numpy(value) for name, value in tensors()}
    start = time.perf_counter()
    torch.save(values, path)
    sync(path)
elif what == "torch-load":
    start = time.perf_counter()
    loaded = torch.load(path, weights_only=True)
elif what == "dcp-save":
    values = {name: torch.from_numpy(value) for name, value in tensors()}
    start = time.perf_counter()
    dcp.save(values, storage_writer=dcp.FileSystemWriter(path, sync_files=True), no_dist=True)
elif what == "dcp-load":
    values = {"layer.%d.weight" % i: torch.zeros(count, 16) for i, count in enumerate(rows)}
    start = time.perf_counter()
    dcp.load(values, storage_reader=dcp.FileSystemReader(path), no_dist=True)
else:
    sys.exit("unknown: " + what)
print(time.perf_counter() - start)

# SPDX-License-Identifier: Apache-2.0
"""Times h5py, torch.save and torch.distributed.checkpoint on the tensors of checkpoint_benchmark.

usage: benchmark_peers.py DIRECTORY ROWS...

Reads questions, one per line: h5py-save, h5py-load, torch-save, torch-load, dcp-save or dcp-load; dcp is one process
without a group. Answers each with a line: seconds, or "no: " and the reason. DIRECTORY/flat holds the tensors' bytes,
float32, one after the other; tensor i has ROWS[i] rows of 16. A save makes new files and ends with fsync. A load makes
a save first, untimed, if there is no file yet.
"""
import importlib
import os
import shutil
import sys
import time
import warnings

warnings.simplefilter("ignore")

directory, rows = sys.argv[1], [int(r) for r in sys.argv[2:]]


def tensors():
    import numpy
    values = numpy.fromfile(directory + "/flat", dtype=numpy.float32)
    begin = 0
    for i, count in enumerate(rows):
        yield "layer.%d.weight" % i, values[begin:begin + count * 16].reshape(count, 16)
        begin += count * 16


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


class H5py:
    needs = ["h5py"]

    def save(self, path, values):
        import h5py
        with h5py.File(path, "w") as file:
            for name, value in values.items():
                file.create_dataset(name, data=value)
        sync(path)

    def load(self, path):
        import h5py
        with h5py.File(path, "r") as file:
            return {name: file[name][...] for name in file}


class Torch:
    needs = ["torch"]

    def convert(self, values):
        import torch
        return {name: torch.from_numpy(value) for name, value in values.items()}

    def save(self, path, values):
        import torch
        torch.save(values, path)
        sync(path)

    def load(self, path):
        import torch
        return torch.load(path, weights_only=True)


class Dcp(Torch):
    needs = ["torch", "torch.distributed.checkpoint"]

    def save(self, path, values):
        import torch.distributed.checkpoint as dcp
        dcp.save(values, storage_writer=dcp.FileSystemWriter(path, sync_files=True), no_dist=True)

    def prepare_load(self):
        import torch
        return {"layer.%d.weight" % i: torch.zeros(count, 16) for i, count in enumerate(rows)}

    def load(self, path, values):
        import torch.distributed.checkpoint as dcp
        dcp.load(values, storage_reader=dcp.FileSystemReader(path), no_dist=True)


def timed(action, *arguments):
    start = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - start, result


def answer(what):
    kind, action = what.split("-")
    peer = {"h5py": H5py, "torch": Torch, "dcp": Dcp}[kind]()
    for module in peer.needs:
        importlib.import_module(module)
    path = directory + "/peer." + kind
    if action == "save" or not os.path.exists(path):
        # Deleting old files and making the tensors is not part of the measured time.
        remove(path)
        values = dict(tensors())
        if hasattr(peer, "convert"):
            values = peer.convert(values)
        seconds, _ = timed(peer.save, path, values)
        if action == "save":
            return seconds
    arguments = [peer.prepare_load()] if hasattr(peer, "prepare_load") else []
    return timed(peer.load, path, *arguments)[0]


# Output of the libraries goes to stderr: stdout has only the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    try:
        answers.write("%r\n" % answer(line.strip()))
    except Exception as error:  # libraries throw exceptions of any type
        answers.write("no: %s: %s\n" % (type(error).__name__, " ".join(str(error).split())))
    answers.flush()

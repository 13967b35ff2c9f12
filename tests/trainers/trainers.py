# SPDX-License-Identifier: Apache-2.0
"""What the tests of the trainers' own libraries share: `ckpt`, ranks as processes, and comparisons of tensors."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

_CKPT = os.environ.get("CKPT", "")
_SECONDS = 300  # of one program

# DeepSpeed compiles its communication through shared memory once for all ranks of these tests. A lock that a killed run
# has left in the user's folder would stop it for ever.
_EXTENSIONS = tempfile.TemporaryDirectory()

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "torch",
    "DS_ACCELERATOR": "cpu",
    "TORCH_EXTENSIONS_DIR": _EXTENSIONS.name,
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron-Core asserts it
}


def run(command, environment=None):
    """Runs `command` and returns its standard output; an AssertionError has the end of its other output."""
    result = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_SECONDS,
    )
    if result.returncode:
        end = (result.stdout + result.stderr)[-3000:]
        raise AssertionError(f"{' '.join(map(str, command))}: exit status {result.returncode}\n{end}")
    return result.stdout


def ckpt(*arguments):
    return run([_CKPT, *map(str, arguments)])


def ranks(program, world, *arguments):
    """Runs the Python file `program` once for each of `world` ranks."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = str(port.getsockname()[1])
    folder = tempfile.mkdtemp()
    processes = []
    try:
        for rank in range(world):
            environment = {
                **os.environ,
                **ENVIRONMENT,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": address,
            }
            log = open(os.path.join(folder, str(rank)), "w+", encoding="utf-8")
            command = [sys.executable, program, *map(str, arguments)]
            processes.append((subprocess.Popen(command, env=environment, stdout=log, stderr=log), log))
        # The others wait for a rank that has failed.
        failed = None
        deadline = time.monotonic() + _SECONDS
        while failed is None and any(process.poll() is None for process, _ in processes):
            failed = next((rank for rank, (process, _) in enumerate(processes) if process.poll()), None)
            if failed is None and time.monotonic() > deadline:
                failed = 0
            time.sleep(0.1)
        failed = next((rank for rank, (process, _) in enumerate(processes) if process.poll()), failed)
        if failed is not None:
            log = processes[failed][1]
            log.seek(0)
            raise AssertionError(f"{os.path.basename(program)}, rank {failed} of {world}:\n{log.read()[-3000:]}")
    finally:
        for process, log in processes:
            process.kill()
            process.wait()
            log.close()
        shutil.rmtree(folder)


class TrainerCase(unittest.TestCase):
    """A test with a directory of its own."""

    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def path(self, name):
        return os.path.join(self.root, name)

    def inspect(self, path):
        return json.loads(ckpt("inspect", path, "--json"))

    def read(self, path, *flags):
        """The values of a checkpoint of any format: converted to a torch file, which torch.load reads."""
        import torch

        converted = self.path("read.pt")
        ckpt("convert", path, converted, "--force", *flags)
        return torch.load(converted, weights_only=True)

    def assert_same(self, found, expected, name):
        """Two tensors or arrays with equal dtype, shape and bytes."""
        found, expected = _array(found), _array(expected)
        self.assertEqual((str(found.dtype), found.shape), (str(expected.dtype), expected.shape), name)
        self.assertEqual(found.tobytes(), expected.tobytes(), name)

    def assert_all_same(self, found, expected):
        """The same names, with equal tensors."""
        self.assertEqual(sorted(found), sorted(expected))
        for name, tensor in expected.items():
            self.assert_same(found[name], tensor, name)


def _array(tensor):
    if type(tensor).__module__.startswith("torch"):
        import torch

        tensor = tensor.detach().cpu().contiguous()
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            # numpy has no such dtype: the bytes, and the name as a field.
            raw = tensor.view(integers[tensor.element_size()]).numpy()
            return raw.view(numpy.dtype([(str(tensor.dtype).replace("torch.", ""), raw.dtype)]))
        return tensor.numpy()
    array = numpy.ascontiguousarray(tensor).reshape(numpy.shape(tensor))
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):  # ml_dtypes
        raw = array.view({1: numpy.uint8, 2: numpy.int16}[array.dtype.itemsize])
        return raw.view(numpy.dtype([(array.dtype.name, raw.dtype)]))
    return array

# SPDX-License-Identifier: Apache-2.0
"""The installed wheel, without NumPy and PyTorch:

  use_wheel.py MODEL.safetensors
"""

import array
import importlib.util
import os
import subprocess
import sys
import tempfile

import fsdp_checkpoint

model = os.path.abspath(sys.argv[1])
assert "site-packages" in fsdp_checkpoint.__file__, fsdp_checkpoint.__file__
for absent in ("numpy", "torch"):
    assert importlib.util.find_spec(absent) is None, absent


def elements(path, name):
    with fsdp_checkpoint.open(path) as checkpoint:
        info = checkpoint.info(name)
        values = array.array("f", bytes(4 * info.numel))
        address = values.buffer_info()[0]
        checkpoint.read_into([fsdp_checkpoint.ReadRequest(name, 0, info.numel, "float32", address)])
        assert info.shape == (3, 7), info
        return values.tolist()


with tempfile.TemporaryDirectory() as root:
    sharded = root + "/sharded"
    assert fsdp_checkpoint.convert(model, sharded, kind="sharded", world_size=3) == []
    fsdp_checkpoint.verify(sharded)
    assert fsdp_checkpoint.diff(model, sharded) == []
    with fsdp_checkpoint.open(sharded) as checkpoint:
        assert checkpoint.world_size == 3 and checkpoint.format == "hdf5"
        assert "model/a.float32" in checkpoint
    assert elements(sharded, "model/a.float32") == elements(model, "model/a.float32")
    assert any(elements(sharded, "model/a.float32"))
    try:
        fsdp_checkpoint.open(root + "/nothing")
        raise AssertionError("opened")
    except FileNotFoundError as error:
        assert "nothing" in str(error)
    with open(sharded + "/rank-00001-of-00003.h5", "r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in data))
    try:
        fsdp_checkpoint.verify(sharded)
        raise AssertionError("verified")
    except fsdp_checkpoint.CheckpointError as error:
        assert "rank-00001-of-00003.h5" in str(error), error
    try:
        import fsdp_checkpoint.torch  # noqa: F401

        raise AssertionError("imported without PyTorch")
    except ModuleNotFoundError as error:
        assert error.name == "torch", error
    said = subprocess.run(["ckpt", "inspect", model], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    assert "safetensors" in said, said
print("OK")

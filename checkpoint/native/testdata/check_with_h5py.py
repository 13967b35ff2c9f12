# SPDX-License-Identifier: Apache-2.0
"""Opens DIRECTORY/checkpoint.h5 with h5py, as any user would, and compares every tensor with EXPECTED.

EXPECTED is JSON: [{"path": ..., "fqn": NAME, "dtype": ..., "shape": [...], "bytes": FILE}, {"path": ..., "text": ...}].
Exits with 0 if everything is equal, 77 without h5py.
"""

import json
import os
import sys

try:
    import h5py
    import numpy
except ImportError as error:
    print("no h5py:", error)
    sys.exit(77)

SHOWN_AS = {"bfloat16": "float32", "complex32": [("real", "<f2"), ("imag", "<f2")]}


def expected_values(item):
    raw = open(item["bytes"], "rb").read()
    if item["dtype"] == "bfloat16":  # the upper half of a float32
        halves = numpy.frombuffer(raw, "<u2").astype("<u4")
        return (halves << 16).view("<f4").reshape(item["shape"])
    name = "uint8" if item["dtype"].startswith(("float8", "float4")) else item["dtype"]
    dtype = numpy.dtype(SHOWN_AS.get(name, name))
    return numpy.frombuffer(raw, dtype).reshape(item["shape"])


def check_tensor(file, item):
    dataset = file[item["path"]]
    expected = expected_values(item)
    assert dataset.shape == tuple(item["shape"]), (item["path"], dataset.shape)
    assert dataset.dtype == expected.dtype, (item["path"], dataset.dtype)
    assert numpy.array_equal(dataset[()], expected), item["path"]
    assert dataset.attrs["dtype"] == item["dtype"], item["path"]
    assert dataset.attrs["fqn"] == item["fqn"], (item["path"], dataset.attrs["fqn"])


def is_tied(dataset):
    return h5py.h5o.get_info(dataset.id).rc > 1  # hard links


def name_of(path, thing):
    """Of the names of a tied tensor the one that its attribute tells."""
    return "/model/" + thing.attrs["fqn"].replace("%", "%25").replace("/", "%2F") if is_tied(thing) else path


def main(directory, expected):
    os.chdir("/")  # sources of virtual datasets are found in the directory of the file, not in the working directory
    items = json.load(open(expected))
    with h5py.File(os.path.join(directory, "checkpoint.h5"), "r") as file:
        for item in items:
            if "text" in item:
                assert file[item["path"]][()].decode() == item["text"], item["path"]
            else:
                check_tensor(file, item)
        datasets = []
        file.visititems(lambda name, thing: datasets.append(name_of("/" + name, thing))
                        if isinstance(thing, h5py.Dataset) else None)
        assert sorted(datasets) == sorted(item["path"] for item in items), datasets
        is_sharded = any(name.startswith("rank-") for name in os.listdir(directory))
        assert ("warning" in file.attrs) == is_sharded, dict(file.attrs)
        assert not is_sharded or "ckpt verify" in file.attrs["warning"]
    print(len(items), "values equal")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))

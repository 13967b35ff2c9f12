"""check_with_torch.py PATH EXPECTED.json: whether torch reads our output, and finds equal bits.

PATH is a .pt file, read by torch.load(weights_only=True), or a DCP directory, read by torch.distributed.checkpoint.load at
1, 2 and 3 ranks into sharded tensors. EXPECTED.json: {"tensors": [{"path": [...], "dtype", "shape", "bytes": FILE}],
"values": [{"path": [...], "value" or "repr"}]}. Exits with 77 if torch is missing.
"""

import json
import os
import pathlib
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, zeros
except ImportError:
    sys.exit(77)


def find(tree, path):
    for name in path:
        tree = tree[name]
    return tree


def insert(tree, path, value):
    for name, following in zip(path[:-1], path[1:]):
        if isinstance(name, int) and len(tree) <= name:
            tree.append([] if isinstance(following, int) else {})
        tree = tree[name] if isinstance(name, int) else tree.setdefault(name, [] if isinstance(following, int) else {})
    tree[path[-1]] = value


def whole(item):
    dtype = getattr(torch, item["dtype"])
    raw = bytearray(pathlib.Path(item["bytes"]).read_bytes())
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(item["shape"])


def same(a, b):
    a, b = a.contiguous(), b.contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def check_value(tree, item):
    got = find(tree, item["path"])
    if "repr" in item:
        assert repr(got) == item["repr"], (item["path"], got)
    else:
        assert (list(got) if isinstance(got, tuple) else got) == item["value"], (item["path"], got)


def check_file(path, expected):
    tree = torch.load(path, weights_only=True)
    for item in expected["tensors"]:
        assert same(find(tree, item["path"]), whole(item)), item["path"]
    for item in expected["values"]:
        check_value(tree, item)


def check_rank(rank, size, store, path, expected):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    tree = {}
    for item in expected["tensors"]:
        dtype = getattr(torch, item["dtype"])
        is_sharded = item["shape"] and min(item["shape"]) > 0
        insert(tree, item["path"], zeros(item["shape"], dtype=dtype, device_mesh=mesh, placements=[Shard(0)]) if is_sharded
               else torch.zeros(item["shape"], dtype=dtype))
    for item in expected["values"]:
        insert(tree, item["path"], None)
    dcp.load(tree, checkpoint_id=path)
    for item in expected["tensors"]:
        got, want = find(tree, item["path"]), whole(item)
        if isinstance(got, DTensor):
            rows = torch.arange(want.shape[0]).chunk(size)
            want = want[rows[rank]] if rank < len(rows) else want[:0]
            got = got.to_local()
        assert same(got, want), (rank, size, item["path"])
    for item in expected["values"]:
        check_value(tree, item)
    dist.destroy_process_group()


def main():
    path, expected = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
    if not os.path.isdir(path):
        return check_file(path, expected)
    for size in (1, 2, 3):
        with tempfile.TemporaryDirectory() as scratch:
            mp.spawn(check_rank, args=(size, os.path.join(scratch, "store"), path, expected), nprocs=size, join=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors that are not whole rows: tensor parallelism, alone and under FSDP2, and any other placements. What
Writer saves is what FileSystemWriter saves, in every bit, and is loaded by other meshes and by one process."""

import copy
import itertools
import os
import random
import sys
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fsdp_checkpoint
from fsdp_checkpoint import _torch_exchange
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
import tensors_testutil as forms  # noqa: E402
from cases import Case, same  # noqa: E402


def whole(seed):
    """Tensors of many shapes and dtypes, equal on all ranks, by name."""
    generator = random.Random(seed)
    state = {}
    for number in range(12):
        shape = [generator.choice((1, 2, 3, 5, 8)) for _ in range(generator.randrange(1, 5))]
        dtype = generator.choice(forms.DTYPES)
        state[f"layers.{number}.w"] = forms.memory(generator, torch.Size(shape).numel(), dtype).reshape(shape)
    return state


def box_of(tensor, mesh, placements):
    """This rank's box of it."""
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes))]


def placed(state, mesh, seed, is_empty=False):
    """The tensors as DTensors, with random placements; `is_empty`: with other values."""
    generator = random.Random(seed)
    made = {}
    for name, tensor in state.items():
        dims = [*range(tensor.dim()), None]
        places = [Replicate() if d is None else Shard(d) for d in (generator.choice(dims) for _ in range(mesh.ndim))]
        local = box_of(tensor, mesh, places).clone(memory_format=torch.contiguous_format)
        local = torch.zeros_like(local) if is_empty else local
        made[name] = DTensor.from_local(local, mesh, places, shape=tensor.shape, stride=tensor.stride())
    return made


def differences(a, b):
    """Of tensors; ours also has the text with DCP's names."""
    return [line for line in fsdp_checkpoint.diff(a, b) if line.startswith(("model/", "optim/state/"))]


def meshes():
    return [init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))]


def placed_ranks(rank, steps, root):
    for seed, step_bytes in enumerate(steps):
        _torch_exchange._STEP_BYTES = step_bytes
        save_and_load(seed, f"{root}/{seed}")


def save_and_load(seed, root):
    state = whole(seed)
    for number, mesh in enumerate(meshes()):
        parts = placed(state, mesh, seed + number)
        dcp.save({"model": parts}, storage_writer=Writer(f"{root}/ours{number}"))
        dcp.save({"model": parts}, storage_writer=dcp.FileSystemWriter(f"{root}/torch{number}"))
        for other in meshes():
            loaded = placed(state, other, seed + 7, is_empty=True)
            dcp.load({"model": loaded}, storage_reader=Reader(f"{root}/ours{number}"))
            for name, part in loaded.items():
                wanted = box_of(state[name], other, part.placements)
                assert same(part.to_local(), wanted), (name, part.placements, part.to_local(), wanted)


class PlacementsTest(Case):
    def test_any_placements_on_any_mesh_in_any_number_of_steps_are_saved_and_loaded_in_every_bit(self):
        steps = [_torch_exchange._STEP_BYTES, 1, 100]
        models.run_ranks(4, placed_ranks, steps, self.root)
        for seed, number in itertools.product(range(len(steps)), range(2)):
            state, ours = whole(seed), f"{self.root}/{seed}/ours{number}"
            fsdp_checkpoint.verify(ours)
            self.assertEqual(differences(f"{self.root}/{seed}/torch{number}", ours), [])
            with fsdp_checkpoint.open(ours) as checkpoint:
                self.assertEqual(sorted(checkpoint.state_dict()), sorted(state))
                for name, tensor in checkpoint.state_dict().items():
                    self.assertTrue(same(tensor, state[name]), f"{ours}, {name}")


class Net(nn.Module):
    """Sizes that two ranks do not divide."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 9)
        self.down = nn.Linear(9, 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, x):
        return self.norm(self.down(torch.relu(self.up(x))))


def stepped(net):
    """Its AdamW after a step with gradients that are equal for every sharding."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)  # parameters are on several meshes
    for parameter in net.parameters():
        parameter.grad = parameter.detach() * 0.5
    optimizer.step()
    return optimizer


def parallel(seed, kind):
    torch.manual_seed(seed)
    net = Net()
    if kind == "one":
        return net
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    if kind == "1d":
        return fully_shard(net, mesh=init_device_mesh("cpu", (4,)))
    parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net if kind == "tp" else fully_shard(net, mesh=mesh["dp"])


def state_of(net, optimizer):
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim}


def parallel_ranks(rank, root):
    for kind in ("2d", "tp"):
        net = parallel(1, kind)
        state = state_of(net, stepped(net))
        dcp.save(state, storage_writer=Writer(f"{root}/{kind}"))
        dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{root}/{kind}_torch"))
    for saved, kind in itertools.product(("2d", "one"), ("2d", "1d")):
        net = parallel(2, kind)
        state = state_of(net, stepped(net))
        dcp.load(state, storage_reader=Reader(f"{root}/{saved}"))
        dcp.save(state, storage_writer=Writer(f"{root}/{saved}_{kind}"))


class TensorParallelTest(Case):
    def test_columns_rows_and_fsdp_are_saved_as_torch_saves_them_and_loaded_on_other_meshes(self):
        net = parallel(1, "one")
        wanted = state_of(net, stepped(net))
        dcp.save(copy.deepcopy(wanted), storage_writer=Writer(self.root + "/one"))
        models.run_ranks(4, parallel_ranks, self.root)
        for kind in ("2d", "tp"):
            fsdp_checkpoint.verify(f"{self.root}/{kind}")
            for other in (f"/{kind}_torch", "/one"):
                self.assertEqual(differences(self.root + other, f"{self.root}/{kind}"), [], kind + other)
        for saved, kind in itertools.product(("2d", "one"), ("2d", "1d")):
            self.assertEqual(differences(self.root + "/one", f"{self.root}/{saved}_{kind}"), [], (saved, kind))
        other = parallel(2, "one")
        loaded = state_of(other, stepped(other))
        dcp.load(loaded, storage_reader=Reader(self.root + "/2d"))
        for name, tensor in wanted["model"].items():
            self.assertTrue(same(loaded["model"][name], tensor), name)

    def test_async_save_exchanges_too(self):
        models.run_ranks(2, async_ranks, self.path())
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            self.assertEqual(checkpoint["model/w"][:].tolist(), torch.arange(35.0).reshape(5, 7).tolist())

    def test_a_rank_that_fails_before_the_exchange_is_every_ranks_failure(self):
        models.run_ranks(2, failing_ranks, self.path())
        self.assertFalse(os.path.exists(self.path()))

    def test_rows_that_torch_plans_for_other_ranks_are_refused_by_name(self):
        models.run_ranks(6, uneven_ranks, self.path())
        self.assertEqual(os.listdir(self.root), [])


def uneven_ranks(rank, path):
    """7 rows on 3 ranks of FSDP2 by 2 of tensor parallelism: torch's plan has one of them on another rank than FSDP2, so
    that DCP cannot load what it saves of them itself."""
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
    net = nn.Sequential(nn.Linear(3, 7, bias=False))
    fully_shard(parallelize_module(net, mesh["tp"], {"0": ColwiseParallel()}), mesh=mesh["dp"])
    try:
        dcp.save(net.state_dict(), storage_writer=Writer(path))
    except dcp.CheckpointException as error:
        assert "0.weight: the planner gave float32 of [1, 3], and its plan says float32 of [0, 3]" in str(error), error
        return
    raise AssertionError("saved")


def columns():
    matrix = torch.arange(35.0).reshape(5, 7)
    mesh = init_device_mesh("cpu", (2,))
    local = box_of(matrix, mesh, [Shard(1)]).contiguous()
    return DTensor.from_local(local, mesh, [Shard(1)], shape=matrix.shape, stride=matrix.stride())


def async_ranks(rank, path):
    dcp.async_save({"model": {"w": columns()}}, storage_writer=Writer(path)).result()


def failing_ranks(rank, path):
    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if rank == 1:
                raise OSError("this rank's memory is gone")
            return super().resolve_data(item)

    try:
        dcp.save({"model": {"w": columns()}}, storage_writer=Writer(path), planner=Planner())
    except dcp.CheckpointException as error:
        assert "memory is gone" in str(error), error
        return
    raise AssertionError("saved")


if __name__ == "__main__":
    unittest.main()

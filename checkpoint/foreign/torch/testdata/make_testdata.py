#!/usr/bin/env python3
"""Makes the files of this folder with the real PyTorch: python3 make_testdata.py (needs torch 2.15; CPU and gloo).

The contents of each, and the SHA-256 of every tensor's row-major little-endian bytes, go to expected.json, with which
the tests compare. Nothing in it is typed in.
"""

import argparse
import collections
import dataclasses
import datetime
import enum
import hashlib
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import tempfile
import zipfile

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
          "uint64", "uint32", "uint16", "uint8", "bool"]
RARE_DTYPES = ["complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
expected = {}


def digest(tensor):
    data = torch.as_tensor(tensor).detach().cpu().contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return {"dtype": str(data.dtype).replace("torch.", ""), "shape": list(data.shape), "sha256": hashlib.sha256(raw).hexdigest()}


def expect(name, model, optimizer=None, **more):
    expected[name] = {"model": {k: digest(v) for k, v in model.items()}, **more}
    if optimizer:
        expected[name]["optim"] = {k: {s: digest(v) for s, v in state.items()} for k, state in optimizer["state"].items()}
        expected[name]["param_groups"] = optimizer["param_groups"]


def numbers(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) / 8


class Net(nn.Module):
    """Sizes that nothing divides, a tied weight, buffers, a parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.body = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6, bias=False))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.norm(self.embed(tokens))))


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.arange(8) % (3 + step)).square().mean().backward()
        optimizer.step()


def save_files():
    torch.manual_seed(1)
    model = Net()
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=False)
    train(model, optimizer)
    by_id = optimizer.state_dict()
    names = [n for decays in (True, False) for n, p in model.named_parameters() if (p.ndim > 1) == decays]
    by_name = {"state": {names[i]: s for i, s in by_id["state"].items()},
               "param_groups": [{**g, "params": [names[i] for i in g["params"]]} for g in by_id["param_groups"]]}
    state = model.state_dict()
    torch.save({"model": state, "optim": by_name, "step": 3, "epoch": 1.5, "note": "1"}, HERE / "full.pt")
    expect("full.pt", state, by_name)
    torch.save({"state_dict": state, "optimizer": by_id, "scheduler": {
        "milestones": collections.Counter({30: 1}), "best": float("inf"), "betas": (0.9, 0.99), "ids": {1, 2}, "raw": b"\x01a"}},
        HERE / "by_id.pth")
    expect("by_id.pth", state, by_name)
    torch.save({"model": state, "step": 3}, HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    expect("legacy.pt", state)
    for protocol in (3, 4, 5):
        torch.save(dict(model.named_parameters()), HERE / f"protocol{protocol}.pt", pickle_protocol=protocol)
        expect(f"protocol{protocol}.pt", dict(model.named_parameters()))
    old_step = {"state": {n: {**s, "step": 3} for n, s in by_name["state"].items()}, "param_groups": by_name["param_groups"]}
    torch.save({"module": state, "optimizer_state_dict": old_step}, HERE / "step_is_int.pt")
    expect("step_is_int.pt", state, by_name)


def save_tensor_lr():
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), foreach=False)
    train(model, optimizer)
    optimizer.param_groups[0]["betas"] = (torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.95))  # as of a capturable one
    names = [n for n, _ in model.named_parameters()]
    by_id = optimizer.state_dict()
    torch.save({"model": model.state_dict(), "optim": by_id}, HERE / "tensor_lr.pt")
    expect("tensor_lr.pt", model.state_dict(), {"state": {names[i]: s for i, s in by_id["state"].items()}, "param_groups": []})
    del expected["tensor_lr.pt"]["param_groups"]


def save_views():
    base = numbers(6, 8)
    views = {
        "whole": base, "tied": base, "rows": base[2:5], "columns": base[:, 3:5], "transposed": base.t(), "every_other": base[::2, ::3],
        "expanded": numbers(4)[None].expand(3, 4), "permuted": numbers(2, 3, 4).permute(2, 0, 1), "scalar": torch.tensor(2.5),
        "element": base[5, 7], "empty": torch.empty(0, 4), "empty_view": base[3:3], "long_name." + "x" * 300: torch.ones(1), "\u00fc/%": torch.ones(2),
    }
    for name in DTYPES:
        views["dtype." + name] = (torch.arange(21) % 2).bool() if name == "bool" else torch.arange(21.0).to(getattr(torch, name))
    torch.save(views, HERE / "views.pt")
    expect("views.pt", views)
    torch.save({k: v for k, v in views.items() if "uint" not in k or k.endswith("uint8")}, HERE / "views_legacy.pt",
               _use_new_zipfile_serialization=False)
    expect("views_legacy.pt", {k: v for k, v in views.items() if "uint" not in k or k.endswith("uint8")})


def save_rare_dtypes():
    complexes = torch.complex(numbers(4, 3), -numbers(4, 3))
    tensors = {"complex64.transposed": complexes.t(), "complex64.rows": complexes[1:3], "real": complexes.clone().real,
               "scalar": torch.tensor(1 - 2j)}
    for name in RARE_DTYPES:
        tensors["dtype." + name] = torch.arange(48, dtype=torch.uint8).view(getattr(torch, name)).reshape(3, -1)
    torch.save(tensors, HERE / "rare_dtypes.pt")
    expect("rare_dtypes.pt", tensors)


def save_indexed():
    directory = HERE / "indexed"
    directory.mkdir(exist_ok=True)
    tensors = {f"layer.{i}.weight": numbers(3, i + 1) for i in range(4)}
    weight_map = {n: f"pytorch_model-0000{1 + i // 2}-of-00002.bin" for i, n in enumerate(tensors)}
    for file in sorted(set(weight_map.values())):
        torch.save({n: t.clone() for n, t in tensors.items() if weight_map[n] == file}, directory / file)
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=1))
    expect("indexed", tensors)


# DCP directories.

class Plain(nn.Module):
    """Net without the parts that FSDP on a CPU cannot handle: buffers stay, the batch norm goes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6, bias=False))
        self.register_buffer("count", torch.tensor(17))

    def forward(self, tokens):
        return self.body(self.embed(tokens))


def wrap(case, model):
    size = dist.get_world_size()
    if case == "fsdp1_w2":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    if case == "hybrid_w4":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        return FullyShardedDataParallel(model, device_mesh=mesh, sharding_strategy=ShardingStrategy.HYBRID_SHARD,
                                        device_id=torch.device("cpu"), use_orig_params=True)
    if case == "tensor_parallel_w4":  # rows over one dimension of the mesh, columns over the other
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model.body[0].weight = nn.Parameter(distribute_tensor(model.body[0].weight.detach(), mesh["tp"], [Shard(1)]))
        model.body[2].weight = nn.Parameter(distribute_tensor(model.body[2].weight.detach(), mesh["tp"], [Shard(0)]))
        for module in (model.embed, model.body):
            fully_shard(module, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])
    fully_shard(model.body)
    return fully_shard(model)


def save_dcp(rank, case, world_size, store, scratch):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    torch.manual_seed(1)
    model = wrap(case, Plain())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    if case == "tensor_parallel_w4":
        for p in model.parameters():  # the forward of this layout needs more than a test is worth
            p.grad = p.detach().clone()
        optimizer.step()
    else:
        train(model, optimizer)
    state, optim = get_state_dict(model, optimizer)
    os.chdir(HERE)
    shutil.rmtree(case, ignore_errors=True) if rank == 0 else None
    dist.barrier()
    dcp.save({"model": state, "optim": optim, "step": 3}, checkpoint_id=case)
    dist.barrier()
    if rank == 0:
        # The tensors that torch itself reads from it, in one process.
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
        dcp_to_torch_save(case, scratch)
    dist.barrier()
    dist.destroy_process_group()


def save_dcps():
    for case, world_size in (("fsdp1_w2", 2), ("fsdp2_w3", 3), ("hybrid_w4", 4), ("tensor_parallel_w4", 4)):
        with tempfile.TemporaryDirectory() as scratch:
            file = os.path.join(scratch, "whole.pt")
            mp.spawn(save_dcp, args=(case, world_size, os.path.join(scratch, "store"), file), nprocs=world_size, join=True)
            whole = torch.load(file, weights_only=False)
        expect(case, whole["model"], whole["optim"])


# Flat parameters of FSDP1.

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 9)
        self.down = nn.Linear(9, 6, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Nested units, with sizes that nothing divides."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.h = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(6)
        self.register_buffer("count", torch.arange(3))  # a floating-point one would need a layout

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.h:
            x = block(x)
        return self.norm(x)


def save_flat(rank, orig, world_size, store, scratch):
    from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    torch.manual_seed(1)
    plain = Blocks()
    layout = {"parameters": [{"name": n, "shape": list(p.shape)} for n, p in plain.named_parameters()], "units": ["", "h.0", "h.1"]}
    model = FullyShardedDataParallel(plain, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=orig,
                                     device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.arange(8) % (3 + step)).square().mean().backward()
        optimizer.step()
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    sharded = FullyShardedDataParallel.sharded_optim_state_dict(model, optimizer)
    # The state that a rank loads into its optimizer and saves: shards of flat parameters, or of parameters.
    flat = FullyShardedDataParallel.flatten_sharded_optim_state_dict(sharded, model, optimizer)
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(),
                                                 FullOptimStateDictConfig())
    # With use_orig_params, FULL optimizer state is wrong on a CPU (torch 2.15): the sharded one is right.
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optim = {"state": {}, "param_groups": sharded["param_groups"]}
    for name, state in sharded["state"].items():
        optim["state"][name] = {}
        for key, value in state.items():
            if value.dim():
                out = torch.zeros(value.size()) if rank == 0 else None
                value.gather(0, out)
                value = out
            optim["state"][name][key] = value
    os.chdir(HERE)
    ranks = f"flat_{'orig_' if orig else ''}ranks_w{world_size}"
    if rank == 0:
        for directory in (ranks, f"flat_local_{'orig_' if orig else ''}w{world_size}"):
            shutil.rmtree(directory, ignore_errors=True)
            os.mkdir(directory)
        (HERE / "flat_layout.json").write_text(json.dumps(layout) + "\n")
    dist.barrier()
    torch.save({"model": whole, "optim": flat, "step": 3}, f"{ranks}/rank{rank}.pt")
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    dcp.save({"model": model.state_dict(), "step": 3}, checkpoint_id=f"flat_local_{'orig_' if orig else ''}w{world_size}")
    if rank == 0:
        torch.save((whole, optim), scratch)
        if world_size == 1:
            torch.save({"model": whole, "optim": flat, "step": 3}, "flat.pt")
    dist.barrier()
    dist.destroy_process_group()


def save_flats():
    for orig, world_size in ((False, 1), (False, 3), (True, 2)):
        with tempfile.TemporaryDirectory() as scratch:
            file = os.path.join(scratch, "whole.pt")
            mp.spawn(save_flat, args=(orig, world_size, os.path.join(scratch, "store"), file), nprocs=world_size, join=True)
            whole, optim = torch.load(file, weights_only=False)
        name = "orig_" if orig else ""
        if world_size == 1:
            for directory in (f"flat_{name}ranks_w1", f"flat_local_{name}w1"):
                shutil.rmtree(HERE / directory)
            expect("flat.pt", whole, optim)
            continue
        expect(f"flat_{name}ranks_w{world_size}", whole, optim)
        expect(f"flat_local_{name}w{world_size}", whole)


# A model that train_gpt knows.

GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}


class Gpt2Part(nn.Module):
    """Parameters and parts by the names and shapes, in the order, of GPT-2; forward only makes gradients."""

    def __init__(self, shapes, **parts):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(0.1 * torch.randn(shape)))
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for parameter in self.parameters(recurse=False):
            x = x + parameter.square().mean()
        for part in self.children():
            for one in part if isinstance(part, nn.ModuleList) else [part]:
                x = one(x)
        return x


class Gpt2Block(Gpt2Part):
    pass


def gpt2():
    def affine(*shape):
        return Gpt2Part({"weight": shape, "bias": shape[-1:]})
    e = GPT2["n_embd"]
    blocks = [Gpt2Block({}, ln_1=affine(e), attn=Gpt2Part({}, c_attn=affine(e, 3 * e), c_proj=affine(e, e)), ln_2=affine(e),
                        mlp=Gpt2Part({}, c_fc=affine(e, 4 * e), c_proj=affine(4 * e, e))) for _ in range(GPT2["n_layer"])]
    return Gpt2Part({}, transformer=Gpt2Part(
        {}, wte=Gpt2Part({"weight": (GPT2["vocab_size"], e)}), wpe=Gpt2Part({"weight": (GPT2["n_positions"], e)}),
        h=nn.ModuleList(blocks), ln_f=affine(e)))


def save_gpt2(rank, world_size, store, scratch):
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world_size)
    torch.manual_seed(1)
    plain = gpt2()
    layout = {"parameters": [{"name": n, "shape": list(p.shape)} for n, p in plain.named_parameters()]}
    model = FullyShardedDataParallel(plain, auto_wrap_policy=ModuleWrapPolicy({Gpt2Block}), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.zeros(1)).sum().backward()
        optimizer.step()
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    optim = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig())
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for state in optim["state"].values():
        for key, value in state.items():
            if value.dim():
                state[key] = torch.zeros(value.size())
                value.gather(0, state[key] if rank == 0 else None)
                dist.broadcast(state[key], 0)
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    directory = HERE / f"gpt2_local_w{world_size}"
    if rank == 0:
        shutil.rmtree(directory, ignore_errors=True)
        (HERE / "gpt2.json").write_text(json.dumps(GPT2) + "\n")
        (HERE / "gpt2_layout.json").write_text(json.dumps(layout) + "\n")
        torch.save((whole, optim), scratch)
    dist.barrier()
    dcp.save({"model": model.state_dict(), "optim": optim, "step": 2}, checkpoint_id=directory)
    dist.destroy_process_group()


def save_local_gpt2():
    with tempfile.TemporaryDirectory() as scratch:
        file = os.path.join(scratch, "whole.pt")
        mp.spawn(save_gpt2, args=(3, os.path.join(scratch, "store"), file), nprocs=3, join=True)
        expect("gpt2_local_w3", *torch.load(file, weights_only=False))


# Objects of Python classes beside the weights, as training programs save them.

class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Config:
    width: int = 3


class History(list):
    pass


def save_objects():
    model = {"w": numbers(2, 3)}
    objects = {
        "args": argparse.Namespace(lr=0.1, out=pathlib.PosixPath("/out")), "paths": [pathlib.PosixPath("/a"), "b"],
        "when": datetime.datetime(2026, 11, 26), "color": Color.RED, "config": Config(), "history": History([1, 2]),
        "by_name": collections.defaultdict(list, {"a": [1]}), "buffer": io.BytesIO(b"\xff"), "rng": {
            "numpy": numpy.random.default_rng(1), "python": random.Random(1), "step": 3}, "type": argparse.Namespace}
    torch.save({"model": model, **objects, "step": 3}, HERE / "objects.pt")
    torch.save({"model": model, **objects, "step": 3}, HERE / "objects_legacy.pt", _use_new_zipfile_serialization=False)
    dcp.save({"model": model, "train_state": {"losses": io.BytesIO(b"\xff"), "step": 3}, "step": 3},
             checkpoint_id=HERE / "objects_dcp", no_dist=True)
    dcp.save({"model": model, "rng": {"pair": (numbers(5), [numbers(2, 2)], 7), "state": numbers(3), "order": collections.OrderedDict(a=1)}},
             checkpoint_id=HERE / "tuples_dcp", no_dist=True)
    torch.save({"model": model, "best": numpy.float64(0.5), "count": numpy.int64(3), "is_last": numpy.bool_(True),
                "rng": numpy.random.RandomState(1).get_state(), "ids": numpy.arange(-3, 3, dtype=numpy.int16).reshape(2, 3),
                "losses": numpy.array([0.5]), "names": numpy.array(["a"])}, HERE / "numpy.pt")
    for name in ("objects.pt", "objects_legacy.pt", "objects_dcp", "tuples_dcp", "numpy.pt"):
        expect(name, model)


class Mask(torch.Tensor):
    pass


# Tensors that are not read, and dicts of tensors with any keys.
def save_other_forms():
    model = {"w": numbers(2, 3)}
    eye = torch.eye(2)
    forms = {"sparse": eye.to_sparse(), "csr": [eye.to_sparse_csr()], "int8": torch.quantize_per_tensor(eye, 0.5, 0, torch.qint8),
             "meta": torch.empty(2, device="meta"), "nested": torch.nested.nested_tensor([eye, eye]),
             "mask": eye.as_subclass(Mask), "conj": torch.ones(2, dtype=torch.complex64).conj(), "set": {torch.eye(3), 7},
             "storage": torch.eye(3).untyped_storage(), "lr": 0.5}
    torch.save({"model": model, "forms": forms, "step": 3}, HERE / "other_forms.pt")
    torch.save({"model": {**model, "mask": forms["sparse"]}, "step": 3}, HERE / "sparse_model.pt")
    by_key = {(0, None): numbers(2), None: numbers(3), True: numbers(1), 0.5: 7, b"b": [numbers(2, 2)]}
    torch.save({"model": model, "by_key": by_key, "step": 3}, HERE / "other_keys.pt")
    for name in ("other_forms.pt", "sparse_model.pt", "other_keys.pt"):
        expect(name, model)


# Layouts that have no model and optimizer under the usual names at the top.

class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.parts = model, optimizer

    def state_dict(self):
        return dict(zip(("model", "optim"), get_state_dict(*self.parts)))


def save_directory(name, state):
    os.chdir(HERE)  # .metadata records the path
    shutil.rmtree(name, ignore_errors=True)
    dcp.save(state, checkpoint_id=name, no_dist=True)


def by_name(model, optimizer, prefix=""):
    names = [prefix + n for n, _ in model.named_parameters()]
    state = optimizer.state_dict()["state"]
    return {"state": {names[i]: s for i, s in state.items()}, "param_groups": []}


def trained(optimizer_class):
    model = Plain()
    optimizer = optimizer_class(model.parameters(), lr=1e-3)
    train(model, optimizer)
    return model, optimizer


def save_layouts():
    torch.manual_seed(1)
    model, optimizer = trained(torch.optim.AdamW)
    save_directory("app", {"app": AppState(model, optimizer), "lr": 0.5})
    expect("app", model.state_dict(), by_name(model, optimizer))
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    save_directory("top", {**model.state_dict(), "optimizer": flat, "lr_scheduler": {"last_epoch": 3},
                           "train_state": {"step": torch.tensor(3, dtype=torch.int32)}})
    expect("top", model.state_dict(), by_name(model, optimizer))
    critic, critics = trained(torch.optim.Adafactor)
    torch.save({"generator": model.state_dict(), "discriminator": critic.state_dict(), "opt_g": optimizer.state_dict(),
                "opt_d": critics.state_dict(), "epoch": torch.tensor(3)}, HERE / "two_models.pt")
    state = {f"{name}.{n}": t for name, m in (("generator", model), ("discriminator", critic)) for n, t in m.state_dict().items()}
    both = {**by_name(model, optimizer, "generator.")["state"], **by_name(critic, critics, "discriminator.")["state"]}
    expect("two_models.pt", state, {"state": both, "param_groups": []})
    for name in ("app", "top", "two_models.pt"):
        del expected[name]["param_groups"]


# Hostile files.

class Calls:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def zip_of(path, data, **more):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"archive/data.pkl": data, "archive/version": b"3\n", **more}.items():
            archive.writestr(zipfile.ZipInfo(name), content)


def save_hostile():
    directory = HERE / "hostile"
    directory.mkdir(exist_ok=True)
    command = "touch hostile_pickle_was_executed"
    torch.save({"model": {"w": torch.ones(2)}, "evil": Calls(os.system, command)}, directory / "system.pt")
    torch.save({"w": Calls(eval, "__import__('os').system('%s')" % command)}, directory / "eval.pt", pickle_protocol=4)
    torch.save({"w": Calls(getattr, Calls(__import__, "os"), "system")}, directory / "import.pt")
    torch.save({"w": Calls(os.system, command)}, directory / "legacy.pt", _use_new_zipfile_serialization=False)
    zip_of(directory / "calls_a_call.pt", b"\x80\x02ctorch\nSize\n)R)R.")
    zip_of(directory / "deep.pt", b"\x80\x02" + b"(" * 100000 + b".")
    laughs = b"\x80\x02]q\x00"
    for i in range(1, 40):  # each list holds the one before it ten times
        laughs += b"]q" + bytes([i]) + b"(" + (b"h" + bytes([i - 1])) * 10 + b"e"
    zip_of(directory / "laughs.pt", b"\x80\x02}X\x01\x00\x00\x00a(" + laughs[2:] + b"ts.")
    with zipfile.ZipFile(directory / "compressed.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    beyond = (b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
              b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x01K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs.")
    zip_of(directory / "beyond_its_storage.pt", beyond, **{"archive/data/0": b"\0" * 8})
    big = {"archive/byteorder": b"big"}
    zip_of(directory / "big_endian.pt", b"\x80\x02}.", **big)
    evil = directory / "dcp"
    evil.mkdir(exist_ok=True)
    (evil / ".metadata").write_bytes(pickle.dumps(Calls(os.system, command)))


def main():
    torch.use_deterministic_algorithms(True)
    save_files()
    save_tensor_lr()
    save_views()
    save_rare_dtypes()
    save_indexed()
    save_dcps()
    save_flats()
    save_local_gpt2()
    save_objects()
    save_other_forms()
    save_layouts()
    save_hostile()
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes losses/*.json with the real PyTorch: the loss, gradient norm and learning rate of every step of a case.

  python3 -m venv v && v/bin/pip install torch transformers safetensors
  v/bin/python make_losses.py [--only=REGEX] [--out=DIR]

cases.json lists the cases. A case is flags of train_gpt, and these that are none: `bare` (the plain module in one process),
`master_dtype`, `attn` (attention of Hugging Face) and `comm_hook`. A case trains as train_gpt does: sample
order, AdamW with decay on matrices only, cosine schedule, clipping. Logits are cast to float32 before the cross entropy.
Runs on a CPU with gloo, one thread a rank.
"""

import argparse
import json
import math
import os
import pathlib
import re
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
warnings.filterwarnings("ignore")

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import transformers
from torch.distributed.device_mesh import init_device_mesh
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

transformers.utils.logging.disable_progress_bar()

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {"gpt2": (GPT2Config, GPT2LMHeadModel, GPT2Block), "llama": (LlamaConfig, LlamaForCausalLM, LlamaDecoderLayer)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

# Flags of train_gpt with the values that a case leaves out; None: not given.
FLAGS = dict(nproc=1, steps=50, batch_size=2, seq_len=32, grad_accum=1, lr=1e-3, min_lr=None, warmup_steps=0,
             weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, max_grad_norm=0.0, sharding_strategy="full_shard",
             shard_group_size=None, wrap="block", api="fsdp1", use_orig_params=True, param_dtype="float32",
             reduce_dtype="float32", keep_low_precision_grads=None, cpu_offload=None, backward_prefetch="pre",
             init_scale=None, growth_interval=None)
OTHERS = dict(bare=False, master_dtype="float32", attn="eager", comm_hook=None)


# ---------------------------------------------------------------- model and data

def build_model(case):
    directory = HERE / case["model"]
    config = json.loads((directory / "config.json").read_text())
    config_class, model_class, block = MODELS[config["model_type"]]
    model = model_class.from_pretrained(directory, config=config_class.from_pretrained(directory),
                                        attn_implementation=case["attn"], dtype=torch.float32)
    return model.to(DTYPES[case["master_dtype"]]).train(), block


def sample(tokens, index, seq_len):
    start = (index * seq_len) % (len(tokens) - seq_len)
    window = torch.from_numpy(tokens[start:start + seq_len + 1].astype(np.int64))
    return window[:-1], window[1:]


def batch(tokens, case, step, micro, rank):
    first = ((step * case["grad_accum"] + micro) * case["nproc"] + rank) * case["batch_size"]
    rows = [sample(tokens, first + row, case["seq_len"]) for row in range(case["batch_size"])]
    return torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])


def learning_rate(case, step):
    lr = case["lr"]
    min_lr = lr if case["min_lr"] is None else case["min_lr"]
    if step < case["warmup_steps"]:
        return lr * (step + 1) / case["warmup_steps"]
    progress = (step - case["warmup_steps"]) / max(1, case["steps"] - case["warmup_steps"])
    return min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(math.pi * progress))


# ---------------------------------------------------------------- wrapping

def is_mixed(case):
    return case["param_dtype"] != "float32" or case["reduce_dtype"] != "float32"


def mesh_of(case):
    shards = case["shard_group_size"] or case["nproc"]
    if shards == case["nproc"]:
        return init_device_mesh("cpu", (shards,), mesh_dim_names=("shard",))
    return init_device_mesh("cpu", (case["nproc"] // shards, shards), mesh_dim_names=("replicate", "shard"))


def halve_and_reduce(state, grad, output=None):
    """A communication hook that is no compression: reduces half of the gradient."""
    grad.div_(2 * state.size())
    if output is None:
        dist.all_reduce(grad, group=state)
    else:
        dist.reduce_scatter_tensor(output, grad, group=state)


def register_hook(model, case):
    from torch.distributed.algorithms._comm_hooks import default_hooks
    group = dist.group.WORLD
    if case["comm_hook"] == "halve":
        model.register_comm_hook(group, halve_and_reduce)
    else:
        hook = {"bf16_compress": default_hooks.bf16_compress_hook, "fp16_compress": default_hooks.fp16_compress_hook}
        model.register_comm_hook(default_hooks.LowPrecisionState(group), hook[case["comm_hook"]])


def wrap_fsdp1(model, case, block):
    from torch.distributed.fsdp import (BackwardPrefetch, CPUOffload, FullyShardedDataParallel, MixedPrecision,
                                        ShardingStrategy)
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    strategy = {"full_shard": ShardingStrategy.FULL_SHARD, "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
                "no_shard": ShardingStrategy.NO_SHARD, "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
                "hybrid_shard_zero2": ShardingStrategy._HYBRID_SHARD_ZERO2}[case["sharding_strategy"]]
    prefetch = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, "none": None}
    mixed = None
    if is_mixed(case):
        mixed = MixedPrecision(param_dtype=DTYPES[case["param_dtype"]], reduce_dtype=DTYPES[case["reduce_dtype"]],
                               keep_low_precision_grads=bool(case["keep_low_precision_grads"]))
    model = FullyShardedDataParallel(
        model, sharding_strategy=strategy, auto_wrap_policy=ModuleWrapPolicy({block}) if case["wrap"] == "block" else None,
        mixed_precision=mixed, device_mesh=mesh_of(case) if case["shard_group_size"] else None,
        use_orig_params=case["use_orig_params"], backward_prefetch=prefetch[case["backward_prefetch"]],
        cpu_offload=CPUOffload(offload_params=True) if case["cpu_offload"] else None, device_id=torch.device("cpu"))
    if case["comm_hook"]:
        register_hook(model, case)
    return model


def wrap_fsdp2(model, case, block):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    policy = MixedPrecisionPolicy()
    if is_mixed(case):
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[case["param_dtype"]], reduce_dtype=DTYPES[case["reduce_dtype"]])
    options = dict(mesh=mesh_of(case), mp_policy=policy,
                   offload_policy=CPUOffloadPolicy(pin_memory=False) if case["cpu_offload"] else OffloadPolicy())
    # With full_shard reshard_after_forward keeps its default, which leaves the root unsharded; no number depends on it.
    if case["sharding_strategy"] in ("shard_grad_op", "hybrid_shard_zero2"):
        options["reshard_after_forward"] = False
    if case["wrap"] == "block":
        for module in list(model.modules()):
            if isinstance(module, block):
                fully_shard(module, **options)
    fully_shard(model, **options)
    if case["comm_hook"]:
        assert case["comm_hook"] == "halve"
        for module in model.modules():
            if isinstance(module, block) or module is model:
                module.set_all_reduce_hook(lambda output: output.mul_(0.5))
    return model


# ---------------------------------------------------------------- training

def make_optimizer(model, case, decays):
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[decays.get(name.replace("_fsdp_wrapped_module.", ""), True)].append(parameter)
    parts = [dict(params=groups[True], weight_decay=case["weight_decay"]), dict(params=groups[False], weight_decay=0.0)]
    return torch.optim.AdamW([p for p in parts if p["params"]], lr=case["lr"], betas=(case["beta1"], case["beta2"]),
                             eps=case["eps"], foreach=False)


def make_scaler(case):
    """The scaler of a case in float16, as train_gpt has it; one that does nothing in other dtypes."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    enabled = "float16" in (case["param_dtype"], case["reduce_dtype"])
    return ShardedGradScaler(device="cpu", init_scale=float(case["init_scale"] or 65536), enabled=enabled,
                             growth_interval=case["growth_interval"] or 2000)


def grad_norm(model, case, wrapped):
    limit = case["max_grad_norm"] if case["max_grad_norm"] > 0 else math.inf
    if wrapped == "fsdp1":
        return float(model.clip_grad_norm_(limit))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit, foreach=False)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def backward(model, case, wrapped, scaler, tokens, step, rank):
    """All micro-steps of a step; returns this rank's loss."""
    total = torch.zeros((), dtype=torch.float64)
    for micro in range(case["grad_accum"]):
        inputs, targets = batch(tokens, case, step, micro, rank)
        last = micro == case["grad_accum"] - 1
        context = torch.autograd.profiler.record_function("micro_step")
        if wrapped == "fsdp1" and not last:
            context = model.no_sync()
        elif wrapped == "fsdp2":
            model.set_requires_gradient_sync(last)
        with context:
            logits = model(input_ids=inputs, use_cache=False).logits
            loss_dtype = torch.float64 if case["master_dtype"] == "float64" else torch.float32
            loss = F.cross_entropy(logits.to(loss_dtype).reshape(-1, logits.shape[-1]), targets.reshape(-1))
            scaler.scale(loss / case["grad_accum"]).backward()
        total += loss.detach().double() / case["grad_accum"]
    return total


def train(rank, case, tokens):
    """One rank of a case; returns (loss, grad_norm, lr, scale) of every step. The loss is the mean over the global batch."""
    model, block = build_model(case)
    decays = {name: parameter.ndim >= 2 for name, parameter in model.named_parameters()}
    wrapped = "none" if case["bare"] else case["api"]
    if wrapped != "none":
        model = (wrap_fsdp1 if wrapped == "fsdp1" else wrap_fsdp2)(model, case, block)
    optimizer = make_optimizer(model, case, decays)
    scaler = make_scaler(case)
    records = []
    for step in range(case["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(case, step)
        loss = backward(model, case, wrapped, scaler, tokens, step, rank)
        if case["nproc"] > 1:
            dist.all_reduce(loss)
            loss /= case["nproc"]
        scale = scaler.get_scale()
        scaler.unscale_(optimizer)
        norm = grad_norm(model, case, wrapped)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        records.append((float(loss), norm if math.isfinite(norm) else None, learning_rate(case, step), scale))
    return records


def worker(rank, case, store, result):
    # For GPUs alone, changes no value, and is called by the compressing hooks on a CPU too.
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not case["bare"]:
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=case["nproc"])
    records = train(rank, case, np.fromfile(HERE / "tokens.u16", dtype="<u2"))
    if rank == 0:
        pathlib.Path(result).write_text(json.dumps(records))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def flags_of(case):
    """The flags of train_gpt. no_shard on one rank stands for the plain module."""
    given = {name: case[name] for name in FLAGS if case[name] is not None and name != "use_orig_params"}
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()]
    if case["use_orig_params"] and case["api"] == "fsdp1":
        flags.append("--use_orig_params")
    return flags


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression of the names of the cases to make")
    parser.add_argument("--out", default=HERE / "losses", type=pathlib.Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for item in json.loads((HERE / "cases.json").read_text()):
        if not re.search(args.only, item["name"]):
            continue
        unknown = item.keys() - FLAGS.keys() - OTHERS.keys() - {"name", "model"}
        assert not unknown, f"{item['name']}: unknown {unknown}"
        case = {**FLAGS, **OTHERS, **item}
        with tempfile.TemporaryDirectory() as scratch:
            result = pathlib.Path(scratch, "result.json")
            mp.spawn(worker, args=(case, os.path.join(scratch, "store"), str(result)), nprocs=case["nproc"])
            losses, norms, rates, scales = zip(*json.loads(result.read_text()))
        record = {"name": item["name"], "model": case["model"], "flags": flags_of(case), "loss": losses,
                  "grad_norm": norms, "lr": rates}
        if "float16" in (case["param_dtype"], case["reduce_dtype"]):
            record["scale"] = scales
        if case["comm_hook"]:
            record["comm_hook"] = case["comm_hook"]
        (args.out / (item["name"] + ".json")).write_text(json.dumps(record) + "\n")
        print(f"{item['name']}: {losses[0]:.6f} -> {losses[-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()

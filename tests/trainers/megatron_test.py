# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core on CPUs: its torch_dist checkpoints are read, and it loads ours and makes the same next step."""

import json
import os
import re
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

import trainers

_RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "megatron_rank.py")

SIZES = {"vocabulary": 24, "dim": 12, "heads": 2, "hidden": 20, "layers": 3, "tp": 1, "pp": 1, "swiglu": False}


def stored_in(directory):
    """The tensors of a torch_dist checkpoint by the names of layers, as PyTorch's own DCP reads them."""
    metadata = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    tensors = {
        key: torch.empty(value.size, dtype=value.properties.dtype)
        for key, value in metadata.items()
        if isinstance(value, TensorStorageMetadata)
    }
    dcp.load(tensors, checkpoint_id=directory, no_dist=True)
    by_layer = {}
    for key, tensor in tensors.items():
        if not re.search(r"\.layers\.(?!\d)", key):
            by_layer[key] = tensor
            continue
        for layer, part in enumerate(tensor):
            by_layer[re.sub(r"\.layers\.", f".layers.{layer}.", key, count=1)] = part
    return by_layer


class MegatronTest(trainers.TrainerCase):
    def rank(self, action, root, world, **case):
        case = {**SIZES, "dtype": "float32", "seed": 1, "optimizer": True, **case}
        case.update(directory=os.path.join(root, "iter_0000007"), live=self.path("live"), next=self.path("next"))
        trainers.ranks(_RANK, world, action, json.dumps(case))
        return [
            [torch.load(f"{case[name]}.{rank}", weights_only=True) for rank in range(world)]
            for name in ("live", "next")
        ]

    def check_is_read(self, root):
        summary = self.inspect(root)
        self.assertEqual((summary["format"], summary["step"]), ("megatron", 7))
        stored = stored_in(os.path.join(root, "iter_0000007"))
        read = self.read(root)
        state = {}
        for name, values in read.get("optim", {"state": {}})["state"].items():
            for key, value in values.items():
                if key != "step":
                    state[f"optimizer.state.{key}.{name}"] = value
        self.assert_all_same({**read.get("model", read), **state}, stored)

    def check_round_trip(self, world, other_world, other, **case):
        """Megatron-Core loads the converted checkpoint in the layout `other` as it loads its own, and makes the same next
        step; in the layout in which it was saved, that of the run that goes on."""
        root, copy = self.path("root"), self.path("copy")
        saved = self.rank("save", root, world, **case)
        self.check_is_read(root)
        trainers.ckpt("convert", root, copy, "--to=megatron")
        self.check_is_read(copy)
        other = {**case, **other, "seed": 99}
        expected = saved if other_world == world else self.rank("load", root, other_world, **other)
        found = self.rank("load", copy, other_world, **other)
        for of_copy, of_root in zip(found, expected):
            for rank in range(other_world):
                self.assert_all_same(of_copy[rank], of_root[rank])

    def test_the_model_and_the_distributed_optimizer_go_on(self):
        self.check_round_trip(2, 2, {})

    def test_low_precision_keeps_its_float32_copies(self):
        self.check_round_trip(2, 2, {}, dtype="bfloat16", swiglu=True, layers=2)

    def test_tensor_parallel_ranks_are_joined_and_divided(self):
        self.check_round_trip(2, 1, {"tp": 1}, tp=2, layers=2, swiglu=True)

    def test_pipeline_stages_are_joined(self):
        self.check_round_trip(2, 1, {"pp": 1}, pp=2, layers=4)

    def test_a_model_without_an_optimizer(self):
        self.check_round_trip(1, 1, {}, optimizer=False, layers=1, dtype="bfloat16")

    def test_the_optimizer_of_pytorch_becomes_that_of_megatron_core(self):
        """A float32 model with PyTorch's AdamW, which has no copies of parameters."""
        root, converted, copy = self.path("root"), self.path("plain.pt"), self.path("copy")
        live, after = self.rank("save", root, 1)
        trainers.ckpt("convert", root, converted)
        plain = torch.load(converted, weights_only=True)
        state = {}
        for name, values in plain["optim"]["state"].items():
            state[name] = {key: value for key, value in values.items() if key != "param"}
        groups = [{"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "params": list(state)}]
        optimizer = {"state": state, "param_groups": groups}
        torch.save({"model": plain["model"], "optimizer": optimizer, "global_step": 7}, converted)
        trainers.ckpt("convert", converted, copy, "--to=megatron")
        loaded, stepped = self.rank("load", copy, 1, seed=99)
        self.assert_all_same(loaded[0], live[0])
        for name, tensor in after[0].items():
            if tensor.dim() > 1:  # Megatron-Core's own scheduler sets the decay of the others
                self.assert_same(stepped[0][name], tensor, name)


if __name__ == "__main__":
    unittest.main()

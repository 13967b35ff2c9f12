# SPDX-License-Identifier: Apache-2.0
"""torch_checkpointing on CPUs: what ranks of FSDP2 save is read whole."""

import json
import math
import os
import unittest

import torch

import trainers

_RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_checkpointing_rank.py")

# Sizes that ranks do not divide.
SIZES = {"vocabulary": 13, "dim": 6, "hidden": 10, "layers": 2}


class TorchCheckpointingTest(trainers.TrainerCase):
    def check(self, mesh, dtype="float32", safetensors=False, resharder=True):
        case = {**SIZES, "mesh": mesh, "dtype": dtype, "safetensors": safetensors, "resharder": resharder, "seed": 3}
        case.update(root=self.path("saved"), live=self.path("live.pt"))
        world = math.prod(mesh.values())
        trainers.ranks(_RANK, world, json.dumps(case))
        live = torch.load(case["live"], weights_only=True)
        summary = self.inspect(case["root"])
        self.assertEqual(
            (summary["format"], summary["step"], summary["world_size"]), ("torch_checkpointing", 2, world)
        )
        read = self.read(case["root"])
        self.assert_all_same(read["model"], live["model"])
        self.assertEqual(sorted(read["optim"]["state"]), sorted(live["state"]))
        for name, values in live["state"].items():
            self.assert_all_same(read["optim"]["state"][name], values)

    def test_shards_of_fsdp2(self):
        self.check({"dp": 3})

    def test_strided_shards_of_tensor_parallelism(self):
        self.check({"dp": 2, "tp": 2}, dtype="bfloat16")

    def test_a_model_in_safetensors(self):
        self.check({"dp": 2}, safetensors=True)

    def test_dtensors_without_metadata(self):
        self.check({"dp": 2}, resharder=False)


if __name__ == "__main__":
    unittest.main()

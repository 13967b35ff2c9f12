# SPDX-License-Identifier: Apache-2.0
"""What a run records about itself is saved by Writer, save and CheckpointManager, and read by everything that reads."""

import enum
import json
import os
import pathlib
import pickle
import subprocess
import unittest

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import fsdp_checkpoint
import models
from cases import Case
from fsdp_checkpoint.torch import CheckpointManager, Reader, Writer


class Kind(str, enum.Enum):
    GPT2 = "gpt2"


CONFIG = {
    "model": {"n_head": 12, "kind": Kind.GPT2, "dropout": 0.1, "bias": True, "none": None, "rope": {}},
    "betas": (0.9, 0.95),
    "id2label": {0: "a", 1: "b"},
    "data": pathlib.Path("/data/web"),
    "lr": numpy.float64(1e-3),
    "steps": torch.tensor(300),
    "seed": 2**62 + 1,
    "note": "h\u00e9\n",
}
NAMED = {
    "model.n_head": 12,
    "model.kind": "gpt2",
    "model.dropout": 0.1,
    "model.bias": True,
    "model.none": None,
    "model.rope": "{}",
    "betas": "[0.9,0.95]",
    "id2label.0": "a",
    "id2label.1": "b",
    "data": "/data/web",
    "lr": 1e-3,
    "steps": 300,
    "seed": 2**62 + 1,
    "note": "h\u00e9\n",
}
STATE = {"model": {"w": torch.arange(6.0)}}


def attributes_of(path):
    with fsdp_checkpoint.open(path) as checkpoint:
        return checkpoint.attributes


def ranks_disagree(rank, path):
    writer = Writer(path, attributes={"lr": 1e-3, "rank": rank})
    try:
        dcp.save({"w": torch.ones(4)}, storage_writer=writer)
    except CheckpointException as error:
        assert "the attributes on rank 1 differ from rank 0's" in str(error) and "rank: 0 -> 1" in str(error), error
    else:
        raise AssertionError("ranks with other attributes save")
    dcp.save({"w": torch.ones(4)}, storage_writer=Writer(path, attributes={"ranks": dist.get_world_size()}))


class AttributesTest(Case):
    def check(self, path):
        got = attributes_of(path)
        self.assertEqual(got, NAMED)
        self.assertEqual({name: type(value) for name, value in got.items()}, {n: type(v) for n, v in NAMED.items()})
        self.assertEqual(fsdp_checkpoint.inspect(path)["attributes"], NAMED)
        self.assertEqual(Reader(path).attributes, NAMED)

    def test_everything_that_saves_records_them_and_everything_that_reads_has_them(self):
        dcp.save(STATE, storage_writer=Writer(self.root + "/writer", attributes=CONFIG))
        fsdp_checkpoint.save(self.root + "/save", STATE, attributes=CONFIG)
        with CheckpointManager(self.root + "/managed", attributes=CONFIG, async_=True) as manager:
            manager.save(1, STATE)
        unpickled = pickle.loads(pickle.dumps(Writer(self.root + "/unpickled", attributes=CONFIG)))
        dcp.save(STATE, storage_writer=unpickled)
        for name in ("writer", "save", "managed", "unpickled"):
            self.check(f"{self.root}/{name}")

    def test_a_conversion_keeps_them_and_a_checkpoint_without_has_none(self):
        fsdp_checkpoint.save(self.root + "/with", STATE, attributes=CONFIG)
        fsdp_checkpoint.convert(self.root + "/with", self.root + "/sharded", kind="sharded", world_size=2)
        self.check(self.root + "/sharded")
        fsdp_checkpoint.save(self.root + "/without", STATE)
        torch.save(STATE, self.root + "/m.pt")
        for name in ("without", "m.pt"):
            self.assertEqual(attributes_of(f"{self.root}/{name}"), {})

    def test_h5py_has_them_as_attributes_of_the_file(self):
        code = (
            "import h5py, json, sys; found = h5py.File(sys.argv[1] + '/checkpoint.h5').attrs; "
            "print(json.dumps({name: found[name].item() if hasattr(found[name], 'item') else found[name] "
            "for name in ('model.n_head', 'lr', 'note')}))"
        )
        if subprocess.run(["/usr/bin/python3", "-c", "import h5py"], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: /usr/bin/python3 has no h5py")
        dcp.save(STATE, storage_writer=Writer(self.path(), attributes=CONFIG))
        command = ["/usr/bin/python3", "-c", code, self.path()]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(shown), {"model.n_head": 12, "lr": 1e-3, "note": "h\u00e9\n"})

    def test_what_cannot_be_recorded_is_refused_by_its_name_when_it_is_given(self):
        for wrong, error, text in (
            ({"model": {"lr": float("nan")}}, ValueError, "attributes: model.lr: nan cannot be stored"),
            ({"a.b": 1, "a": {"b": 2}}, ValueError, "attributes: a.b: two values have this name"),
            ({"a": {1: 2, "1": 3}}, ValueError, "attributes: a: two keys are the same text"),
            ({"a": [{"b": object()}]}, TypeError, "attributes: a.0.b: a object is none of"),
            ({"a": {(1,): 2}}, TypeError, r"attributes: a: the key \(1,\) is neither"),
            ([1], TypeError, "attributes: expected a dict, found a list"),
        ):
            with self.assertRaisesRegex(error, text):
                Writer(self.path(), attributes=wrong)
            with self.assertRaisesRegex(error, text):
                fsdp_checkpoint.save(self.path(), STATE, attributes=wrong)
        beyond = (({"big": 2**63}, '"big": '), ({"nul": "a\0b"}, '"nul": it holds NUL'), ({"": 1}, "is empty"))
        for wrong, text in beyond:
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, text):
                fsdp_checkpoint.save(self.path(), STATE, attributes=wrong)
            with self.assertRaisesRegex(CheckpointException, text):
                dcp.save(STATE, storage_writer=Writer(self.path(), attributes=wrong))
        self.assertEqual(os.listdir(self.root), [])

    def test_ranks_whose_attributes_differ_are_refused_with_both_values(self):
        models.run_ranks(2, ranks_disagree, self.path())
        self.assertEqual(attributes_of(self.path()), {"ranks": 2})


if __name__ == "__main__":
    unittest.main()

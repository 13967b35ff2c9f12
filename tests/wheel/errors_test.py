# SPDX-License-Identifier: Apache-2.0
"""Failures reach every rank and every caller with their type and text."""

import copy
import os
import pickle
import sys
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import fsdp_checkpoint
from fsdp_checkpoint._torch_ranks import Ranks
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
from cases import Case  # noqa: E402


class Locked(Exception):
    """As the exceptions of many libraries, with something that pickle refuses."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")
        self.file = sys.stderr


def damaged_ranks(rank, path):
    mesh = init_device_mesh("cpu", (2,))
    wanted = {"w": distribute_tensor(torch.zeros(4000, 10), mesh, [Shard(0)])}
    try:
        dcp.load(wanted, storage_reader=Reader(path))
    except CheckpointException as error:
        failures = [failure for failure, _ in error.failures.values()]
        assert failures and {type(failure) for failure in failures} == {fsdp_checkpoint.DataLossError}, error
        assert all(failure.code == "data loss" for failure in failures)
        assert 'rank-00000-of-00001.h5, bytes ' in str(error) and '(tensor "model/w"' in str(error), error
        return
    raise AssertionError("loaded")


def locked_ranks(rank, path):
    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if rank == 1:
                raise Locked("the memory of this rank", "is gone")
            return super().resolve_data(item)

    rows = distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (2,)), [Shard(0)])
    try:
        dcp.save({"w": rows}, storage_writer=Writer(path), planner=Planner())
    except CheckpointException as error:
        assert "Locked: the memory of this rank is gone" in str(error), error
        return
    raise AssertionError("saved")


def gather_ranks(rank, path):
    gather = Ranks.gather

    def failing(ranks, mine):
        if isinstance(mine[0], bytes):  # of the library
            raise OSError("the network is down")
        return gather(ranks, mine)

    Ranks.gather = failing
    try:
        dcp.save({"w": torch.ones(4, 3)}, storage_writer=Writer(path))
    except CheckpointException as error:
        assert set(error.failures) == {0, 1} and str(error).count("the network is down") >= 2, error
        return
    raise AssertionError("saved")


class ErrorsTest(Case):
    def exceptions(self):
        for name in fsdp_checkpoint.__all__:
            thing = getattr(fsdp_checkpoint, name)
            if isinstance(thing, type) and issubclass(thing, BaseException):
                yield thing

    def test_every_exception_is_the_same_after_pickling(self):
        for kind in self.exceptions():
            error = kind(15, 'a.h5, bytes 3 to 7 (tensor "w")')
            error.note = "of the caller"
            for other in [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)] + [copy.copy(error)]:
                self.assertIs(type(other), kind)
                self.assertEqual(str(other), str(error))
                self.assertEqual((other.code, other.args, other.note), ("data loss", error.args, "of the caller"))
        self.assertEqual(len(list(self.exceptions())), 4)

    def test_a_checkpoint_that_cannot_be_opened_is_named_by_dcp_load_and_by_its_metadata(self):
        reader = Reader(self.root + "/none")
        with self.assertRaisesRegex(CheckpointException, "none") as raised:
            dcp.load({"w": torch.ones(2)}, storage_reader=reader)
        self.assertIs(type(raised.exception.failures[0][0]), fsdp_checkpoint.NotFoundError)
        with self.assertRaisesRegex(fsdp_checkpoint.NotFoundError, "none"):
            reader.read_metadata().state_dict_metadata

    def test_damage_that_one_rank_of_two_finds_is_named_on_both(self):
        dcp.save({"w": torch.full((4000, 10), 1.0)}, storage_writer=Writer(self.path()))
        with open(self.path() + "/rank-00000-of-00001.h5", "r+b") as file:
            file.seek(file.read().find(b"\x00\x00\x80\x3f" * 8))
            file.write(b"\x01")
        models.run_ranks(2, damaged_ranks, self.path())

    def test_a_failure_that_cannot_be_pickled_reaches_every_rank_as_its_text(self):
        models.run_ranks(2, locked_ranks, self.path())
        self.assertEqual(os.listdir(self.root), [])

    def test_a_failure_of_the_process_group_reaches_every_rank_as_its_text(self):
        models.run_ranks(2, gather_ranks, self.path())
        self.assertEqual(os.listdir(self.root), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

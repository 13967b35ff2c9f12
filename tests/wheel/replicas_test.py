# SPDX-License-Identifier: Apache-2.0
"""Ranks save values under one name, of which a checkpoint has one: Writer warns of those that differ, and of no others.
"""

import collections
import os
import sys
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import fsdp_checkpoint
from fsdp_checkpoint import _torch_replicas as replicas
from fsdp_checkpoint.torch import Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
import tensors_testutil as forms  # noqa: E402
from cases import Case  # noqa: E402


class Opaque:
    """torch.load does not take it with weights_only."""

    def __init__(self, value):
        self.value = value


def warnings_of(state, path, **arguments):
    """What the save of this rank warns of differences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.save(state, storage_writer=Writer(path, **arguments))
    return [str(warning.message) for warning in caught if "different values" in str(warning.message)]


def equal_state():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        "model": {
            "sharded": distribute_tensor(torch.ones(64, 3), mesh, [Shard(0)]),
            "copied": distribute_tensor(torch.ones(64, 3), mesh, [Replicate()]),
            "buffer": torch.arange(100_000),
            "transposed": torch.arange(6.0).reshape(2, 3).T,
        },
        "optim": {
            "state": {"sharded": {"step": torch.tensor(3.0)}},
            "param_groups": [{"params": ["sharded"], "lr": torch.tensor(0.1)}],
        },
        "values": {"set": {"a", "b", "c", "d"}, "n": 5, "nan": float("nan"), "opaque": Opaque(1)},
        "empty": torch.zeros(0, 3),
    }


def differing_states(rank):
    """Name of the case to the state, and the texts of which each is in the warning."""
    lines = {}
    for name in ("plain", "tensor", "large", "buffer", "form", "group", "opaque", "list"):
        lines[name] = equal_state()
    world = dist.get_world_size()
    lines["plain"]["values"]["n"] = rank
    lines["tensor"]["optim"]["state"]["sharded"]["step"] += rank
    lines["large"]["model"]["buffer"] = lines["large"]["model"]["buffer"] + rank
    lines["buffer"]["model"]["copied"].to_local().mul_(1 + rank)
    lines["form"]["model"]["buffer"] = torch.arange(100_000 if rank == 0 else 99_999)
    lines["group"]["optim"]["param_groups"][0]["lr"] = torch.tensor(0.5 * (1 + rank))
    lines["opaque"]["values"]["opaque"] = Opaque(rank)
    lines["list"]["values"]["list"] = [rank, "x"]
    wanted = {
        "plain": ["values.n: ", " has 0", " has 1" if world == 2 else " has 2"],
        "tensor": ["optim.state.sharded.step: ", "3.0", "4.0"],
        "large": ["model.buffer: int64 of [100000] is saved, of rank ", " has other contents"],
        "buffer": ["model.copied: float32 of [64, 3] is saved", " has other contents"],
        "form": ["model.buffer: ", "int64 of [100000]", "int64 of [99999]"],
        "group": ["optim.param_groups.0.lr: ", "tensor(0.5000)", "tensor(1.)"],
        "opaque": ["values.opaque: a pickle of ", " bytes is saved, of rank ", "has other contents"],
        "list": ["values.list: ", "[0, 'x']", "[1, 'x']"],
    }
    return {name: (state, wanted[name]) for name, state in lines.items()}


def has_one_of(text, part):
    """Rank 0's value may be the one that is saved, which is then named in another place."""
    return part in text or part.replace(" has ", ": ") in text


def equal_ranks(rank, root):
    assert warnings_of(equal_state(), root + "/equal") == []


def differing_ranks(rank, root):
    for name, (state, texts) in differing_states(rank).items():
        found = warnings_of(state, f"{root}/{name}")
        assert len(found) == (1 if rank == 0 else 0), (name, rank, found)
        for text in texts if rank == 0 else ():
            assert has_one_of(found[0], text), (name, text, found[0])
        if rank == 0:
            assert found[0].count("\n") == 1 and "rank1" in found[0], (name, found[0])


def own_names_ranks(rank, root):
    """A value of each rank under a name of its own, and values of some ranks only."""
    state = {"w": torch.ones(4), f"rng.{rank}": torch.full((5,), rank), "epoch": 3}
    if rank == 0:
        state["only"] = 7
    assert warnings_of(state, root + "/own") == []


def error_ranks(rank, root):
    """A program that makes it an error gets it on every rank."""
    warnings.filterwarnings("error", message="Writer: ranks have different values")
    try:
        dcp.save({"w": torch.ones(4), "n": rank}, storage_writer=Writer(root + "/error"))
    except dcp.api.CheckpointException as error:
        assert "n: " in str(error), error
    else:
        raise AssertionError("no error")


class MarkTest(unittest.TestCase):
    def test_tensors_of_every_dtype_have_marks_and_equal_ones_have_equal_ones(self):
        for dtype in forms.DTYPES:
            for numel in (0, 1, 5):
                a = torch.zeros(numel, dtype=torch.uint8).to(torch.float32).to(dtype)
                self.assertEqual(replicas.mark_of(a), replicas.mark_of(a.clone()), dtype)
        self.assertEqual(replicas.mark_of(torch.tensor(2.5)).shown, "2.5")
        self.assertEqual(replicas.mark_of(torch.zeros(2, 3)).shown, "float32 of [2, 3]")

    def test_a_difference_in_form_or_contents_is_seen_and_of_a_large_tensor_in_the_first_and_last_bytes(self):
        a = torch.zeros(6)
        for other in (torch.zeros(2, 3), torch.zeros(6, dtype=torch.int32), torch.tensor([0, 0, 0, 0, 0, 1.0])):
            self.assertNotEqual(replicas.mark_of(a), replicas.mark_of(other))
        large = torch.zeros(10_000_000)
        for at in (0, 9_999_999):
            other = large.clone()
            other[at] = 1
            self.assertNotEqual(replicas.mark_of(large), replicas.mark_of(other))


class WarningTest(unittest.TestCase):
    def differences(self, count, ranks):
        return [
            replicas.Found([replicas.Difference(f"v{i}", rank, "1", 0, "0") for i in range(count)][:8], count)
            for rank in range(1, ranks)
        ]

    def test_many_differences_are_a_few_lines(self):
        self.assertIsNone(replicas.warning([]))
        self.assertIsNone(replicas.warning([None, replicas.Found([], 0)]))
        text = replicas.warning(self.differences(2, 4))
        line = "v0: 0 is saved, of rank 0; rank 1 has 1, rank 2 has 1, rank 3 has 1"
        self.assertIn(f'such as "v0.rank1":\n  {line}\n', text)
        self.assertEqual(text.count("\n"), 2)
        text = replicas.warning(self.differences(100, 1000))
        self.assertEqual(text.count("\n"), 9)
        self.assertIn("rank 8 has 1, and 991 more ranks differ\n", text)
        self.assertTrue(text.endswith("\n  and others"))

    def test_values_that_are_equal_though_their_pickles_differ_are_no_difference(self):
        def saved(value):
            return {("v", None): replicas.pickle_of_value(value).getvalue()}

        for a, b in (({"x", "y", "z"}, {"z", "y", "x"}), (collections.Counter("ab"), collections.Counter("ab"))):
            self.assertEqual(replicas.differences(1, saved(a), [saved(b)]).count, 0)
        text = "ab"
        same_text = "".join(["a", "b"])  # an object of its own, which the pickle does not share
        self.assertEqual(replicas.differences(1, saved([text, text]), [saved([text, same_text])]).count, 0)
        self.assertEqual(replicas.differences(1, saved(1), [saved(1.0)]).first[0].has, "1")
        self.assertEqual(replicas.differences(1, saved(1), [{}]).count, 0)


class RanksTest(Case):
    def test_equal_values_are_no_warning(self):
        for world in (2, 4):
            with self.subTest(world):
                models.run_ranks(world, equal_ranks, f"{self.root}/{world}")

    def test_a_value_that_differs_is_a_warning_on_rank_0_with_its_name_ranks_and_values(self):
        for world in (2, 3):
            with self.subTest(world):
                models.run_ranks(world, differing_ranks, f"{self.root}/{world}")

    def test_values_under_names_of_their_own_are_no_warning(self):
        models.run_ranks(2, own_names_ranks, self.root)
        with fsdp_checkpoint.open(self.root + "/own") as checkpoint:
            self.assertIn("model/rng.1", checkpoint)

    def test_a_program_can_make_it_an_error(self):
        models.run_ranks(2, error_ranks, self.root)


if __name__ == "__main__":
    unittest.main()

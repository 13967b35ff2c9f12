# SPDX-License-Identifier: Apache-2.0
"""Loads of a part, loads into a part, state dicts that one rank has whole, and states that are lists."""

import os
import sys
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

import fsdp_checkpoint
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
from cases import Case, same  # noqa: E402


class PartTest(Case):
    def setUp(self):
        super().setUp()
        self.saved, self.optimizer = models.trained(None, 1)
        dcp.save(models.state_of(self.saved, self.optimizer), storage_writer=Writer(self.path()))
        self.larger = models.Net()
        self.larger.head = nn.Linear(7, 2)

    def test_a_value_that_is_not_there_is_an_error_or_stays_with_allow_partial_load(self):
        wanted = {"model": self.larger.state_dict(), "other": 5, "values": {"step": 0}}
        head = self.larger.head.weight.detach().clone()
        with self.assertRaisesRegex((CheckpointException, RuntimeError), "model.head.weight|other"):
            dcp.load(wanted, storage_reader=Reader(self.path()))
        planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(wanted, storage_reader=Reader(self.path()), planner=planner)
        self.assertTrue(same(wanted["model"]["head.weight"], head))
        self.assertEqual((wanted["other"], wanted["values"]["step"]), (5, 12))
        for name, tensor in self.saved.state_dict().items():
            self.assertTrue(same(wanted["model"][name], tensor), name)

    def test_a_part_of_the_checkpoint_is_loaded_into_another_model_without_strict(self):
        names = [name for name in self.saved.state_dict() if "norm" not in name]
        wanted = {"model": {name: torch.zeros_like(self.saved.state_dict()[name]) for name in names}}
        dcp.load(wanted, storage_reader=Reader(self.path()))
        norm = self.larger.norm.weight.detach().clone()
        options = StateDictOptions(strict=False)
        result = set_model_state_dict(self.larger, wanted["model"], options=options)
        self.assertIn("head.weight", result.missing_keys)
        self.assertTrue(same(self.larger.norm.weight, norm))
        self.assertTrue(same(self.larger.a.weight, self.saved.a.weight))

    def test_values_and_tensors_of_torchs_own_files_come_back_under_dcps_names(self):
        inner = {"lr": 1e-3, "note": "a", "no": None}
        values = {"epoch": 3, "betas": (0.9, 0.99), "rng": torch.arange(5), "inner": inner}
        state = {"model": self.saved.state_dict(), "step": 12, "mean": torch.ones(2), "values": values}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.root + "/dcp"))
        torch.save(state, self.root + "/file.pt")
        fsdp_checkpoint.convert(self.root + "/dcp", self.root + "/ours")
        for name in ("dcp", "file.pt", "ours"):
            empty = {"epoch": 0, "betas": 0, "rng": torch.zeros(5).long(), "inner": {"lr": 0.0, "note": "", "no": 1}}
            wanted = {"step": 0, "mean": torch.zeros(2), "values": empty}
            dcp.load(wanted, storage_reader=Reader(f"{self.root}/{name}"))
            self.assertEqual(repr(wanted), repr({key: state[key] for key in wanted}), name)

    def test_the_state_of_chained_schedulers_comes_from_torchs_own_files(self):
        def schedulers(optimizer):
            scheduler = torch.optim.lr_scheduler
            steps = scheduler.StepLR(optimizer, step_size=2)
            return scheduler.ChainedScheduler([steps, scheduler.ExponentialLR(optimizer, gamma=0.9)])

        saved = schedulers(self.optimizer)
        for _ in range(3):
            self.optimizer.step()
            saved.step()
        mixed = [torch.ones(2), 3, {"a": [{"b": 1}, []]}]
        state = {"model": self.saved.state_dict(), "scheduler": saved.state_dict(), "mixed": mixed}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.root + "/dcp"))
        torch.save(state, self.root + "/file.pt")
        fsdp_checkpoint.convert(self.root + "/dcp", self.root + "/ours")
        for name in ("dcp", "file.pt", "ours"):
            again = schedulers(models.trained(None, 2)[1])
            wanted = {"scheduler": again.state_dict(), "mixed": [torch.zeros(2), 0, {"a": [{"b": 0}, 5]}]}
            dcp.load(wanted, storage_reader=Reader(f"{self.root}/{name}"))
            self.assertEqual(repr(wanted), repr({key: state[key] for key in wanted}), name)

    def test_a_size_that_differs_is_an_error_that_names_the_tensor(self):
        with self.assertRaisesRegex((CheckpointException, ValueError), "model.a.weight"):
            dcp.load({"model": {"a.weight": torch.zeros(3, 3)}}, storage_reader=Reader(self.path()))

    def test_the_history_of_lbfgs_is_kept_whole(self):
        model, optimizer, closure = lbfgs(1)
        for _ in range(3):
            optimizer.step(closure)
        state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
        dcp.save(state, storage_writer=Writer(self.root + "/dcp"))
        got, wanted = fsdp_checkpoint.load(self.root + "/dcp")["optim"]["state"]["0"], state["optim"]["state"][0]
        self.assertEqual(sorted(got), sorted(wanted))
        for name in wanted:
            pairs = zip(*(torch.utils._pytree.tree_leaves(x) for x in (got[name], wanted[name])))
            self.assertTrue(all(same(a, b) if torch.is_tensor(b) else a == b for a, b in pairs), name)
        fsdp_checkpoint.save(self.root + "/save", state)
        state = fsdp_checkpoint.load(self.root + "/save")
        other, its, other_closure = lbfgs(2)
        other.load_state_dict(state["model"])
        its.load_state_dict(state["optim"])
        optimizer.step(closure)
        its.step(other_closure)
        self.assertTrue(same(other.weight, model.weight))


def lbfgs(seed):
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=3)
    x = torch.arange(12.0).reshape(4, 3)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).square().sum()
        loss.backward()
        return loss

    return model, optimizer, closure


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
BROADCAST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def gathered_ranks(rank, root):
    model, optimizer = models.trained("fsdp2", 1)
    parameters, state = get_state_dict(model, optimizer, options=WHOLE)  # whole on rank 0, {} on the others
    if rank == 0:
        dcp.save({"model": parameters, "optim": state}, storage_writer=Writer(root + "/alone"), no_dist=True)
        fsdp_checkpoint.save(root + "/save", {"model": parameters, "optim": state})
    dcp.save({"model": parameters, "optim": state}, storage_writer=Writer(root + "/together"))
    dcp.save(models.state_of(model, optimizer), storage_writer=Writer(root + "/sharded"))


def broadcast_ranks(rank, paths):
    for path in paths:
        load_and_broadcast(rank, path)


def load_and_broadcast(rank, path):
    model, optimizer = models.trained("fsdp2", 2)
    state = {"model": {}, "optim": {}}
    if rank == 0:
        plain, its = models.trained(None, 3)
        state = dict(zip(("model", "optim"), get_state_dict(plain, its)))
        dcp.load(state, storage_reader=Reader(path), no_dist=True)
    set_model_state_dict(model, state["model"], options=BROADCAST)  # set_state_dict would leave out a rank with {}
    set_optimizer_state_dict(model, optimizer, state["optim"], options=BROADCAST)
    dist.barrier()
    dcp.save(models.state_of(model, optimizer), storage_writer=Writer(path + "-again"))


class WholeTest(Case):
    def tensors(self, path):
        with fsdp_checkpoint.open(path) as checkpoint:
            return {name: checkpoint.torch(name) for name in checkpoint if name.startswith(("model/", "optim/state/"))}

    def check(self, name):
        wanted, got = self.tensors(self.root + "/sharded"), self.tensors(f"{self.root}/{name}")
        self.assertEqual(sorted(got), sorted(wanted), name)
        for key, tensor in wanted.items():
            self.assertTrue(same(got[key], tensor), f"{name}: {key}")

    def test_a_state_that_rank_0_has_whole_is_saved_by_it_or_by_all_and_broadcast_after_a_load(self):
        models.run_ranks(2, gathered_ranks, self.root)
        names = ("alone", "save", "together")
        models.run_ranks(2, broadcast_ranks, [f"{self.root}/{name}" for name in names])
        for name in names:
            self.check(name)
            self.check(name + "-again")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""storage(): what DCP would save and load by a path, and by a FileSystemWriter and Reader made there, is ours. The real
frameworks are in tests/frameworks."""

import os
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import fsdp_checkpoint
import fsdp_checkpoint.torch as fct
import models
from cases import Case, same
from fsdp_checkpoint.frameworks import storage

STOCK = {name: getattr(dcp, name) for name in ("save", "async_save", "load", "FileSystemWriter", "FileSystemReader")}


def state(value=1.0):
    return {"model": {"w": torch.full((6, 2), value)}, "note": "kept"}


def is_ours(path):
    return os.path.exists(os.path.join(path, "manifest.json")) and not os.path.exists(os.path.join(path, ".metadata"))


def loaded(path):
    got = state(0.0)
    with storage():
        dcp.load(got, checkpoint_id=path)
    return got


def ranks_save_as_accelerate_does(rank, root):
    model, optimizer = models.trained("fsdp2", seed=1)
    wanted = models.whole(models.state_of(model, optimizer))[0]
    path = os.path.join(root, "step-7", "pytorch_model_fsdp_0")
    for _ in range(2):  # the second replaces the first
        os.makedirs(path, exist_ok=True)
        with storage():
            dcp.save(models.state_of(model, optimizer), storage_writer=dcp.FileSystemWriter(path))
    assert is_ours(path)
    other = models.state_of(*models.trained("fsdp2", seed=2))
    with storage():
        dcp.load(other, storage_reader=dcp.FileSystemReader(path), planner=dcp.DefaultLoadPlanner())
    for name, tensor in models.whole(other)[0].items():
        assert same(tensor, wanted[name]), name


def ranks_save_behind_the_block(rank, root, kind):
    group = dist.new_group(backend="gloo")
    for step in (1, 2):
        with storage():
            saving = dcp.async_save(
                state(float(step)),
                checkpoint_id=os.path.join(root, f"step-{step}"),
                process_group=group,
                async_checkpointer_type=kind,
            )
        saving.result()


def ranks_save_in_a_process(rank, root, kind):
    group = dist.new_group(backend="gloo")
    writer = fct.Writer(os.path.join(root, "step-3"), process_group=group, parity=1, step=5)
    dcp.async_save(state(2.0), storage_writer=writer, process_group=group, async_checkpointer_type=kind).result()


class StorageTest(Case):
    def test_deleting_is_left_to_the_framework(self):
        with self.assertRaisesRegex(ValueError, "keep_last: the framework deletes"), storage(keep_last=2):
            pass
        with storage(attributes={"lr": 0.1}):
            dcp.save(state(1.0), checkpoint_id=self.path())
        self.assertEqual(fct.Reader(self.path()).attributes, {"lr": 0.1})

    def test_a_writer_saves_in_a_process_of_its_own(self):
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        models.run_ranks(2, ranks_save_in_a_process, self.root, AsyncCheckpointerType.PROCESS)
        self.assertEqual([step.step for step in fsdp_checkpoint.steps(self.root)], [5])
        self.assertIn("parity-00000-of-00001.bin", os.listdir(f"{self.root}/step-3"))

    def assert_all_stock(self):
        self.assertEqual({name: getattr(dcp, name) for name in STOCK}, STOCK)

    def test_a_path_is_ours_in_the_block_and_dcps_outside(self):
        with storage():
            dcp.save(state(), checkpoint_id=f"{self.root}/step-1")
        self.assert_all_stock()
        dcp.save(state(), checkpoint_id=f"{self.root}/stock")
        self.assertTrue(is_ours(f"{self.root}/step-1"))
        self.assertTrue(os.path.exists(f"{self.root}/stock/.metadata"))
        got = loaded(f"{self.root}/step-1")
        self.assertTrue(same(got["model"]["w"], state()["model"]["w"]))
        self.assertEqual(got["note"], "kept")

    def test_a_checkpoint_of_dcp_is_loaded_in_the_block(self):
        dcp.save(state(3.0), checkpoint_id=f"{self.root}/stock")
        self.assertTrue(same(loaded(f"{self.root}/stock")["model"]["w"], state(3.0)["model"]["w"]))
        with storage():
            got = state(0.0)
            dcp.load(got, storage_reader=dcp.FileSystemReader(f"{self.root}/stock"))
        self.assertTrue(same(got["model"]["w"], state(3.0)["model"]["w"]))

    def test_storage_that_the_caller_names_is_not_replaced(self):
        with storage():
            dcp.save(state(), storage_writer=STOCK["FileSystemWriter"](f"{self.root}/stock"))
        self.assertTrue(os.path.exists(f"{self.root}/stock/.metadata"))

    def test_a_directory_that_a_framework_made_makes_room(self):
        path = f"{self.root}/optimizer_1"
        os.makedirs(path)
        with storage():
            dcp.save(state(), storage_writer=dcp.FileSystemWriter(path, single_file_per_rank=True, thread_count=2))
        self.assertTrue(is_ours(path))

    def test_a_directory_with_other_files_is_refused_and_left(self):
        path = f"{self.root}/step-1"
        dcp.save(state(), checkpoint_id=path)
        before = sorted(os.listdir(path))
        with storage(), self.assertRaisesRegex(CheckpointException, "is not a checkpoint of this project"):
            dcp.save(state(), checkpoint_id=path)
        self.assertEqual(sorted(os.listdir(path)), before)
        self.assert_all_stock()

    def test_an_existing_checkpoint_is_replaced_unless_overwrite_is_false(self):
        path = f"{self.root}/last.ckpt"
        for value in (1.0, 2.0):
            with storage():
                dcp.save(state(value), checkpoint_id=path)
        self.assertEqual(loaded(path)["model"]["w"][0, 0].item(), 2.0)
        with storage(), self.assertRaisesRegex(CheckpointException, "not to be overwritten"):
            dcp.save(state(), storage_writer=dcp.FileSystemWriter(path, overwrite=False))
        with storage(overwrite=False), self.assertRaisesRegex(CheckpointException, "not to be overwritten"):
            dcp.save(state(), checkpoint_id=path)

    def test_arguments_of_writer_are_of_the_innermost_block(self):
        with storage(parity=1):
            with storage():
                dcp.save(state(), checkpoint_id=f"{self.root}/step-1")
            dcp.save(state(), checkpoint_id=f"{self.root}/step-2")
        for step in (1, 2):
            parity = [name for name in os.listdir(f"{self.root}/step-{step}") if name.startswith("parity-")]
            self.assertEqual(len(parity), step - 1, parity)

    def test_a_part_of_accelerates_checkpoint_has_the_step_of_its_directory(self):
        parts = {"checkpoint-500/pytorch_model_fsdp_0": 500, "step-000007/optimizer_0": 7, "x/optimizer_3": 0}
        for name, step in {**parts, "step-9": 9}.items():
            with storage():
                dcp.save(state(), storage_writer=dcp.FileSystemWriter(f"{self.root}/{name}"))
            with fsdp_checkpoint.open(f"{self.root}/{name}") as checkpoint:
                self.assertEqual(checkpoint.step, step, name)

    def test_what_would_be_lost_is_refused(self):
        with storage():
            for call in (
                lambda: dcp.save(state(), checkpoint_id="s3://bucket/step-1"),
                lambda: dcp.load(state(), checkpoint_id="s3://bucket/step-1"),
                lambda: dcp.FileSystemWriter("gs://bucket/step-1"),
            ):
                with self.assertRaisesRegex(ValueError, "is a URL"):
                    call()
            with self.assertRaisesRegex(ValueError, "_extensions"):
                dcp.FileSystemWriter(f"{self.root}/step-1", _extensions=[object()])
        self.assertEqual(os.listdir(self.root), [])

    def test_ranks_save_and_load_as_accelerate_does(self):
        models.run_ranks(2, ranks_save_as_accelerate_does, self.root)

    def test_a_save_in_the_background_is_ours_after_the_block(self):
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        for kind in (AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS):
            root = os.path.join(self.root, kind.value)
            os.makedirs(root)
            models.run_ranks(2, ranks_save_behind_the_block, root, kind)
            self.assertEqual([step.step for step in fsdp_checkpoint.steps(root)], [1, 2], kind)
            self.assertEqual(loaded(f"{root}/step-2")["model"]["w"][0, 0].item(), 2.0)


if __name__ == "__main__":
    unittest.main()

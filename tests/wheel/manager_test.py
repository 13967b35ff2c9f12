# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: what it saves, keeps and restores, on one rank and on several."""

import os
import shutil
import tempfile
import unittest
from math import inf, nan

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

import fsdp_checkpoint
import models
from cases import Case
from fsdp_checkpoint.torch import CheckpointManager


def state(value):
    return {"model": {"w": torch.full((8,), float(value))}, "step": value}


def ranks_save_and_restore(rank, root, is_async):
    with CheckpointManager(root, keep_last=2, best="loss", async_=is_async) as manager:
        for step, loss in ((1, 5.0), (2, 1.0), (3, 4.0), (4, 3.0), (5, 2.0)):
            assert manager.save(step, state(step), metrics={"loss": loss})
        manager.wait_until_finished()
        dist.barrier()
        assert manager.all_steps() == [2, 4, 5], manager.all_steps()
        got = state(0)
        assert manager.restore(got) == 5
        assert got["model"]["w"].tolist() == [5] * 8 and got["step"] == 5
        assert manager.restore(got, step=manager.best_step()) == 2
        try:
            manager.restore(got, step=3)
        except fsdp_checkpoint.NotFoundError as error:
            assert "it has [2, 4, 5]" in str(error)
        else:
            raise AssertionError("a step that was deleted is found")


class ManagerTest(Case):
    def test_the_newest_the_multiples_and_the_best_stay(self):
        manager = CheckpointManager(self.root, keep_last=2, keep_every=4, best="accuracy", best_mode="max", keep_best=2)
        self.assertIsNone(manager.latest_step())
        self.assertIsNone(manager.best_step())
        for step in range(1, 10):
            self.assertTrue(manager.save(step, state(step), metrics={"accuracy": -abs(step - 3)}))
        self.assertEqual(manager.all_steps(), [3, 4, 8, 9])
        self.assertEqual((manager.best_step(), manager.latest_step()), (3, 9))
        self.assertEqual(manager.metrics(3), {"accuracy": 0})
        again = CheckpointManager(self.root, best="accuracy", best_mode="max")
        self.assertEqual(again.best_step(), 3)

    def test_a_checkpoint_whose_metric_is_nan_is_never_the_best(self):
        for mode, metrics, steps, best in (
            ("min", (nan, 1, nan, 2, nan), [2, 5], 2),
            ("max", (nan, 1, nan, 2, nan), [4, 5], 4),
            ("min", (3, nan, -inf, nan, nan), [3, 5], 3),
            ("max", (3, 3, nan, 3, 1), [4, 5], 4),  # of equal ones the newest
            ("min", (nan, nan), [2], None),
        ):
            root = tempfile.mkdtemp(dir=self.root)
            manager = CheckpointManager(root, keep_last=1, best="val/loss", best_mode=mode)
            for step, value in enumerate(metrics, 1):
                manager.save(step, state(step), metrics={"val/loss": value})
            self.assertEqual((manager.all_steps(), manager.best_step()), (steps, best), (mode, metrics))
            self.assertEqual(CheckpointManager(root, best="val/loss", best_mode=mode).best_step(), best)

    def test_the_metrics_of_a_checkpoint_that_is_replaced_are_read_again(self):
        manager = CheckpointManager(self.root, best="loss", overwrite=True)
        for step, loss in ((1, 1), (2, 2), (1, 9)):
            self.assertEqual(manager.best_step(), {1: None, 2: 1, 9: 1}[loss])
            manager.save(step, state(step), metrics={"loss": loss}, force=True)
        self.assertEqual((manager.best_step(), manager.metrics(1)), (2, {"loss": 9}))

    def test_a_checkpoint_that_cannot_be_read_stays_and_does_not_fail_the_save(self):
        manager = CheckpointManager(self.root, keep_last=1, best="loss")
        manager.save(1, state(1), metrics={"loss": 1})
        with open(self.root + "/step-00000001/manifest.json", "r+b") as file:
            file.seek(200)
            byte = file.read(1)
            file.seek(200)
            file.write(bytes([byte[0] ^ 1]))
        for step in (2, 3, 4):
            manager.save(step, state(step), metrics={"loss": step})
        self.assertEqual((manager.all_steps(), manager.best_step()), ([1, 2, 4], 2))

    def test_a_step_that_is_not_due_is_not_saved(self):
        manager = CheckpointManager(self.root, save_interval=10)
        self.assertEqual([manager.save(step, state(step)) for step in (5, 10, 15, 20)], [False, True, False, True])
        self.assertFalse(manager.should_save(20))
        self.assertTrue(manager.save(25, state(25), force=True))
        self.assertEqual(manager.all_steps(), [10, 20, 25])

    def test_wrong_arguments_are_refused_by_name(self):
        wrong = ({"keep_last": 0}, {"keep_best": 0}, {"keep_every": -1}, {"save_interval": 0}, {"best_mode": "least"},
                 {"step": 5}, {"parities": 1}, {"attributes": {"a": nan}})  # fmt: skip
        for arguments in wrong:
            with self.assertRaisesRegex((TypeError, ValueError), next(iter(arguments))):
                CheckpointManager(self.root, **arguments)
        for step in (-1, 2**63, 1.0, "1"):
            with self.assertRaisesRegex((OverflowError, TypeError, ValueError), "step"):
                CheckpointManager(self.root).save(step, state(1))
        fsdp_checkpoint.save(self.root + "/step-1", state(1))
        with self.assertRaisesRegex(fsdp_checkpoint.NotFoundError, "is a checkpoint, expected a directory"):
            CheckpointManager(self.root + "/step-1").restore(state(0))
        shutil.rmtree(self.root + "/step-1")
        manager = CheckpointManager(self.root, best="loss")
        with self.assertRaisesRegex(ValueError, "metrics lack 'loss'"):
            manager.save(1, state(1), metrics={"accuracy": 1})
        with self.assertRaisesRegex(ValueError, "'metrics'"):
            manager.save(1, {**state(1), "metrics": 1}, metrics={"loss": 1})
        self.assertEqual(os.listdir(self.root), [])

    def test_an_asynchronous_save_that_fails_is_raised_by_the_next_call(self):
        manager = CheckpointManager(self.root, async_=True)
        with open(self.root + "/step-00000001", "w"):
            pass
        manager.save(1, state(1), force=True)
        with self.assertRaisesRegex(CheckpointException, "exists"):
            manager.wait_until_finished()
        manager.wait_until_finished()
        self.assertTrue(manager.save(2, state(2)))
        manager.close()
        self.assertEqual(manager.all_steps()[-1], 2)

    def test_ranks_save_together_and_one_deletes(self):
        for is_async in (False, True):
            models.run_ranks(2, ranks_save_and_restore, os.path.join(self.root, str(is_async)), is_async)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The Python interface without torch.distributed: tensors by rows, dtypes, pickling, and directories of checkpoints."""

import fcntl
import importlib.metadata
import os
import pathlib
import pickle
import shutil
import unittest
from unittest import mock

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, Dataset

import fsdp_checkpoint
from cases import Case
from fsdp_checkpoint.torch import CheckpointManager, Reader, Writer


class Rows(Dataset):
    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def __len__(self):
        return 5

    def __getitem__(self, row):
        return float(self.checkpoint["model/w"][row])


class StoredTensorTest(Case):
    def setUp(self):
        super().setUp()
        self.values = torch.arange(60.0).reshape(10, 6)
        state = {"w": self.values, "s": torch.tensor(3.0), "e": torch.zeros(0, 4), "h": torch.ones(3, dtype=torch.bfloat16)}
        dcp.save(state, storage_writer=Writer(self.path()))
        self.checkpoint = fsdp_checkpoint.open(self.path())
        self.addCleanup(self.checkpoint.close)
        self.tensor = self.checkpoint["model/w"]

    def test_every_key_gives_what_numpy_gives(self):
        array = self.values.numpy()
        keys = [0, -1, slice(2, 5), slice(None), slice(8, 2), slice(-3, None), slice(1, 9, 3), slice(None, None, -1)]
        keys += [..., None, (slice(2, 4), 1), (3, slice(1, 4)), (..., 2), (-2, -1), [1, 5], array[:, 0] > 12, ()]
        keys += [numpy.int64(4), (slice(2, 4), [0, 2]), (slice(2, 6, 2), slice(None, None, -1))]
        for key in keys:
            got = self.tensor[key]
            numpy.testing.assert_array_equal(got, array[key], str(key))
            self.assertEqual(numpy.shape(got), numpy.shape(array[key]), str(key))
        for key in (10, -11, (0, 6)):
            with self.assertRaises(IndexError):
                self.tensor[key]

    def test_a_slice_reads_only_its_rows(self):
        read, elements = self.checkpoint.read_into, []
        self.checkpoint.read_into = lambda requests: (elements.extend(r.end - r.begin for r in requests), read(requests))
        self.assertEqual(self.tensor[4:7].shape, (3, 6))
        self.assertEqual(self.tensor[2, 3], 15)
        self.assertEqual(self.tensor[5:5].shape, (0, 6))
        self.assertEqual(elements, [18, 6])

    def test_a_slice_with_a_step_reads_its_rows_and_little_else(self):
        rows = torch.arange(4096.0).reshape(16, 256) + torch.arange(64).reshape(64, 1, 1)  # 16 KiB a row
        fsdp_checkpoint.save(self.path(2), {"model": {"rows": rows}})
        with fsdp_checkpoint.open(self.path(2)) as checkpoint:
            read, elements = checkpoint.read_into, []

            def read_into(requests):
                elements.append([request.end - request.begin for request in requests])
                read(requests)

            checkpoint.read_into = read_into
            tensor, array = checkpoint["model/rows"], rows.numpy()
            for key, wanted in (
                (slice(None, None, 8), [[4096] * 8]),  # far from each other: one request each, all in one call
                (slice(60, 3, -20), [[4096] * 3]),
                (slice(3, 9, 2), [[5 * 4096]]),  # near: with those between them, and without those after the last
                (slice(9, 2, -1), [[7 * 4096]]),
                (slice(9, 2), [[]]),
                ((slice(0, 64, 32), 3, slice(None, None, -1)), [[4096] * 2]),
            ):
                elements.clear()
                numpy.testing.assert_array_equal(tensor[key], array[key], str(key))
                self.assertEqual(elements, wanted if wanted != [[]] else [], key)
            with mock.patch("fsdp_checkpoint._stored._BETWEEN_BYTES", 1 << 16):
                elements.clear()
                numpy.testing.assert_array_equal(tensor[1::3], array[1::3])
                self.assertEqual(elements, [[4096]] * 21)

    def test_a_tensor_computes_like_an_array(self):
        array = self.values.numpy()
        numpy.testing.assert_array_equal(self.tensor * 2 + 1, array * 2 + 1)
        numpy.testing.assert_array_equal(numpy.exp(self.tensor), numpy.exp(array))
        self.assertEqual((self.tensor.mean(), self.tensor.sum(), len(self.tensor)), (29.5, 1770, 10))
        self.assertTrue((self.tensor == array).all())
        self.assertEqual([row.tolist() for row in self.tensor], array.tolist())
        self.assertEqual((self.tensor.dtype, self.tensor.shape, self.tensor.ndim), (numpy.float32, (10, 6), 2))
        scalar = self.checkpoint["model/s"]
        self.assertEqual((scalar.item(), float(scalar), int(scalar), bool(scalar)), (3, 3, 3, True))
        self.assertEqual((7 in self.tensor, 60 in self.tensor), (True, False))
        with self.assertRaisesRegex(ValueError, "ambiguous"):
            bool(self.tensor)
        self.assertEqual(self.checkpoint["model/e"][0:0].shape, (0, 4))
        self.assertIn("model/w: float32 [10, 6]", repr(self.tensor))
        with self.assertRaisesRegex(TypeError, "no dimensions"):
            len(self.checkpoint["model/s"])

    def test_a_dtype_is_a_name_or_a_type(self):
        for dtype in ("float64", numpy.float64, numpy.dtype("float64"), float):
            self.assertEqual(self.checkpoint.numpy("model/h", dtype=dtype).dtype, numpy.float64)
        with self.assertRaisesRegex(TypeError, "no dtype 'float33'"):
            self.checkpoint.numpy("model/h", dtype="float33")

    def test_bfloat16_needs_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            with self.assertRaisesRegex(TypeError, "install ml_dtypes"):
                self.checkpoint["model/h"]
        else:
            self.assertEqual(self.checkpoint["model/h"][:].dtype, ml_dtypes.bfloat16)


class DirectoryTest(Case):
    def save(self, *names):
        for number, name in enumerate(names):
            dcp.save({"w": torch.full((5,), float(number))}, storage_writer=Writer(os.path.join(self.root, name)))

    def test_the_steps_of_a_directory_are_listed_by_their_numbers(self):
        self.assertEqual(fsdp_checkpoint.steps(self.root), [])
        self.save("step-9", "step-10", "checkpoint-5")
        shutil.copytree(self.root + "/step-9", self.root + "/copy")
        steps = fsdp_checkpoint.steps(self.root)
        self.assertEqual([s.step for s in steps], [5, 9, 10])
        self.assertEqual(steps[0].path, self.root + "/checkpoint-5")
        self.assertEqual(fsdp_checkpoint.latest(self.root), self.root + "/step-10")

    def test_a_path_is_a_str_bytes_or_a_pathlike(self):
        for number, kind in enumerate((str, os.fsencode, pathlib.Path)):
            root, path = kind(f"{self.root}/{number}"), kind(f"{self.root}/{number}/step-7")
            dcp.save({"w": torch.ones(5)}, storage_writer=Writer(path))
            fsdp_checkpoint.save(kind(f"{self.root}/{number}/step-9"), {"w": torch.ones(5)})
            self.assertEqual([step.path for step in fsdp_checkpoint.steps(root)][0], os.fsdecode(path))
            self.assertEqual(CheckpointManager(root).all_steps(), [7, 9])
            dcp.load({"w": torch.ones(5)}, storage_reader=Reader(root))
            with fsdp_checkpoint.open(path) as checkpoint:
                self.assertEqual(checkpoint.path, os.fsdecode(path))
            self.assertEqual(fsdp_checkpoint.prune(root, keep=[path], dry_run=True), [])
            self.assertEqual(fsdp_checkpoint.inspect(root)["step"], 9)
        for wrong in (None, 7):
            with self.assertRaisesRegex(TypeError, "expected str, bytes or os.PathLike object"):
                Writer(wrong)

    def test_pruning_keeps_what_it_is_told_to_and_a_copy(self):
        self.save("step-1", "step-2", "step-3", "step-4")
        shutil.copytree(self.root + "/step-1", self.root + "/best")
        self.assertEqual(fsdp_checkpoint.prune(self.root, keep_last=2, dry_run=True), ["step-1", "step-2"])
        self.assertEqual(len(fsdp_checkpoint.steps(self.root)), 4)
        self.assertEqual(fsdp_checkpoint.prune(self.root, keep_last=1, keep_every=2), ["step-1", "step-3"])
        self.assertEqual(sorted(os.listdir(self.root)), ["best", "step-2", "step-4"])
        with self.assertRaisesRegex(ValueError, "keep_last is 0"):
            fsdp_checkpoint.prune(self.root, keep_last=0)

    def test_what_pruning_keeps_is_named_by_a_name_or_a_path_or_several(self):
        self.save("step-1", "step-2", "step-3")
        first = fsdp_checkpoint.steps(self.root)[0].path
        for keep in ("step-1", ["step-1"], first, [first], first + "/", pathlib.Path(first), ("no-such-step", first)):
            self.assertEqual(fsdp_checkpoint.prune(self.root, keep=keep, dry_run=True), ["step-2"], keep)

    def test_nothing_is_pruned_if_nothing_verifies(self):
        self.save("step-1", "step-2")
        for step in fsdp_checkpoint.steps(self.root):
            with open(step.path + "/manifest.json", "r+") as file:
                file.truncate(2000)
        with self.assertRaises(fsdp_checkpoint.NotFoundError):
            fsdp_checkpoint.latest(self.root)
        with self.assertRaises(fsdp_checkpoint.DataLossError):
            fsdp_checkpoint.prune(self.root)
        self.assertEqual(len(os.listdir(self.root)), 2)

    def test_a_lost_file_is_rebuilt_from_parity(self):
        path = self.path()
        dcp.save({"w": torch.ones(64)}, storage_writer=Writer(path, parity=1))
        os.remove(path + "/rank-00000-of-00001.h5")
        self.assertEqual(len(fsdp_checkpoint.repair(path, dry_run=True)), 1)
        self.assertFalse(os.path.exists(path + "/rank-00000-of-00001.h5"))
        self.assertIn("rank-00000-of-00001.h5", fsdp_checkpoint.repair(path)[0])
        fsdp_checkpoint.verify(path)
        os.remove(path + "/rank-00000-of-00001.h5")
        os.remove(path + "/parity-00000-of-00001.bin")
        with self.assertRaises(fsdp_checkpoint.DataLossError):
            fsdp_checkpoint.repair(path)

    def test_an_incremental_save_links_what_the_newest_other_checkpoint_has_too(self):
        frozen = torch.arange(100_000.0)

        def save(name, **arguments):
            state = {"frozen": frozen, "step": len(os.listdir(self.root))}
            dcp.save(state, storage_writer=Writer(os.path.join(self.root, name), incremental=True, **arguments))
            fsdp_checkpoint.verify(os.path.join(self.root, name))
            return sorted(file for file in os.listdir(os.path.join(self.root, name)) if ".step-" in file)

        self.assertEqual(save("step-1"), [])
        self.assertEqual(save("step-2"), ["rank-00000-of-00001.step-00000001.h5"])
        self.assertEqual(save("step-3", keep_last=1), ["rank-00000-of-00001.step-00000001.h5"])
        self.assertEqual(os.listdir(self.root), ["step-3"])
        self.assertEqual(save("step-3", overwrite=True), [])
        frozen = frozen + 1
        self.assertEqual(save("step-4"), [])

    def test_a_writer_keeps_the_newest_checkpoints_and_its_own(self):
        for name in ("step-1", "step-2", "step-9"):
            dcp.save({"w": torch.ones(5)}, storage_writer=Writer(os.path.join(self.root, name), keep_last=2))
        self.assertEqual(sorted(os.listdir(self.root)), ["step-2", "step-9"])
        dcp.save({"w": torch.ones(5)}, storage_writer=Writer(os.path.join(self.root, "step-1"), keep_last=1))
        self.assertEqual(sorted(os.listdir(self.root)), ["step-1", "step-9"])
        with self.assertRaisesRegex(ValueError, "keep_last is 0"):
            Writer(self.path(), keep_last=0)

    def test_a_save_leaves_the_deletion_to_the_next_one_while_another_process_deletes(self):
        self.save("step-1", "step-2")
        directory = os.open(self.root, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        dcp.save({"w": torch.ones(5)}, storage_writer=Writer(self.root + "/step-3", keep_last=1))
        self.assertEqual(len(fsdp_checkpoint.steps(self.root)), 3)
        with self.assertRaises(fsdp_checkpoint.CheckpointError):
            fsdp_checkpoint.prune(self.root)
        os.close(directory)
        dcp.save({"w": torch.ones(5)}, storage_writer=Writer(self.root + "/step-4", keep_last=1))
        self.assertEqual(os.listdir(self.root), ["step-4"])

    def test_an_open_checkpoint_is_pickled_by_its_path(self):
        self.save("step-7")
        with fsdp_checkpoint.open(self.root, verify=False) as checkpoint:
            self.assertIn("step-7', hdf5, step 7, 1 tensor", repr(checkpoint))
            again = pickle.loads(pickle.dumps(checkpoint))
        self.assertEqual(again["model/w"].tolist(), [0] * 5)
        again.close()
        self.assertIn("closed", repr(again))

    def test_an_open_checkpoint_equals_itself_only(self):
        self.save("step-7")
        with fsdp_checkpoint.open(self.root) as first, fsdp_checkpoint.open(self.root) as second:
            self.assertEqual(([second, first].index(first), first == second, len({first, second})), (1, False, 2))

    def test_a_worker_of_a_dataloader_reads_from_its_own_copy(self):
        self.save("step-7")
        with fsdp_checkpoint.open(self.root) as checkpoint:
            loader = DataLoader(Rows(checkpoint), batch_size=5, num_workers=1, multiprocessing_context="spawn")
            self.assertEqual([batch.tolist() for batch in loader], [[0] * 5])

    def test_the_package_has_the_version_of_its_distribution(self):
        self.assertEqual(fsdp_checkpoint.__version__, importlib.metadata.version("fsdp_checkpoint"))
        with self.assertRaises(AttributeError):
            fsdp_checkpoint.no_such_name


if __name__ == "__main__":
    unittest.main()

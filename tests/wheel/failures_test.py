# SPDX-License-Identifier: Apache-2.0
"""Every failure of a save, of a save in the background and of a load, on two and four ranks: each rank gets it with its
text, no rank waits for another, and the next save works."""

import contextlib
import faulthandler
import glob
import os
import resource
import signal
import subprocess
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import fsdp_checkpoint
import models
from cases import Case
from fsdp_checkpoint.torch import Reader, Writer

WORLDS = (2, 4)
ROWS = 4096  # a MiB in all
LIMIT = 100_000  # bytes of a file on the rank that may not write more
SAVES = ("save", "thread", "process")


class Luck(Exception):
    pass


class SavePlanner(dcp.DefaultSavePlanner):
    """On rank 1, in the middle of its save: raises, gets ctrl-C, or may write no more than LIMIT bytes of a file."""

    def __init__(self, failure):
        super().__init__()
        self.failure = failure

    def resolve_data(self, item):
        if dist.get_rank() == 1:
            act(self.failure)
        return super().resolve_data(item)


class LoadPlanner(dcp.DefaultLoadPlanner):
    def __init__(self, failure):
        super().__init__()
        self.failure = failure

    def resolve_tensor(self, item):
        if dist.get_rank() == 1:
            act(self.failure)
        return super().resolve_tensor(item)


def act(failure):
    if failure == "raises":
        raise Luck("is out")
    if failure == "ctrl-C":
        os.kill(os.getpid(), signal.SIGINT)
    most = LIMIT if failure == "limit" else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def state(value):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute_tensor(torch.full((ROWS, 64), value), mesh, [Shard(0)])}


def save(kind, path, value, group, failure=""):
    planner, writer = SavePlanner(failure), Writer(path, process_group=group)
    if kind == "save":
        return dcp.save(state(value), storage_writer=writer, planner=planner, process_group=group)
    checkpointer = AsyncCheckpointerType.PROCESS if kind == "process" else AsyncCheckpointerType.THREAD
    future = dcp.async_save(
        state(value), storage_writer=writer, planner=planner, process_group=group, async_checkpointer_type=checkpointer
    )
    try:
        return future.result()
    except KeyboardInterrupt:  # of this rank, which waits; a thread saves
        return future.result()


def expect(call, *texts):
    try:
        call()
    except CheckpointException as error:
        for text in texts:
            assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError("did not fail")


@contextlib.contextmanager
def in_time():
    """Ends a rank that waits forever."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def saving_ranks(rank, root, kinds, failure, texts):
    """The save of each kind fails in a directory of its own, and the next one does not."""
    group = dist.new_group(backend="gloo")
    for kind in kinds:
        with in_time():
            expect(lambda: save(kind, f"{root}/{kind}/step-1", 1.0, group, failure), *texts)
            save(kind, f"{root}/{kind}/step-2", 2.0, group)


def full_ranks(rank, disk):
    group = dist.new_group(backend="gloo")
    for kind in SAVES:
        with in_time():
            expect(lambda: save(kind, disk + "/step-1", 1.0, group), "No space left on device")
            dist.barrier()


def interrupted_thread_ranks(rank, root):
    group = dist.new_group(backend="gloo")
    with in_time():
        save("thread", root + "/step-1", 1.0, group, "ctrl-C")


def late_ranks(rank, root):
    """Ctrl-C on rank 1 while the library writes."""
    fsdp_save = fsdp_checkpoint._library.library.fsdp_save

    def interrupted(*arguments):
        if rank == 1:
            signal.raise_signal(signal.SIGINT)
        return fsdp_save(*arguments)

    with in_time():
        fsdp_checkpoint._library.library.fsdp_save = interrupted
        expect(lambda: save("save", root + "/step-1", 1.0, None), "KeyboardInterrupt")
        fsdp_checkpoint._library.library.fsdp_save = fsdp_save
        dist.barrier()


def loading_ranks(rank, path, failure, texts):
    wanted = state(0.0)
    with in_time():
        expect(lambda: dcp.load(wanted, storage_reader=Reader(path), planner=LoadPlanner(failure)), *texts)
    if failure:
        dcp.load(wanted, storage_reader=Reader(path))
        assert (wanted["w"].to_local() == 1.0).all()
    dist.barrier()


def save_ranks(rank, path):
    save("save", path, 1.0, None)


class SaveTest(Case):
    def check(self, failure, *texts, kinds=SAVES, left=("step-2",)):
        for world in WORLDS:
            root = self.directory(f"{failure}-{world}")
            models.run_ranks(world, saving_ranks, root, kinds, failure, texts)
            for kind in kinds:
                self.assertEqual(sorted(os.listdir(f"{root}/{kind}")), sorted(left), (kind, world))
                self.check_values(f"{root}/{kind}/step-2", 2.0)

    def directory(self, name):
        root = os.path.join(self.root, name)
        os.makedirs(root, exist_ok=True)
        return root

    def check_values(self, path, value):
        fsdp_checkpoint.verify(path)
        with fsdp_checkpoint.open(path) as checkpoint:
            name = next(iter(checkpoint))
            self.assertTrue((checkpoint[name] == value).all(), path)

    def test_a_checkpoint_that_exists_is_named_on_every_rank_and_stays(self):
        paths = [f"{self.root}/exists-{world}/{kind}/step-1" for world in WORLDS for kind in SAVES]
        for path in paths:
            fsdp_checkpoint.save(path, {"w": torch.full((3,), 5.0)})
        self.check("exists", "ExistsError", "step-1", left=("step-1", "step-2"))
        for path in paths:
            self.check_values(path, 5.0)

    def test_a_rank_that_raises_is_named_on_every_rank(self):
        self.check("raises", "Luck", "is out")

    def test_a_file_that_a_rank_may_not_write_is_named_on_every_rank(self):
        self.check("limit", "rank-00001-of-0000", f"limited to {LIMIT}")

    def test_a_full_disk_is_named_on_every_rank(self):
        for world in WORLDS:
            disk = self.directory(f"full-{world}")
            mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk]
            if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
                self.skipTest("must be root, to mount a small disk")
            self.addCleanup(subprocess.run, ["umount", disk], check=True)
            models.run_ranks(world, full_ranks, disk)
            self.assertEqual(os.listdir(disk), [])

    def test_ctrl_c_on_a_rank_is_named_on_every_rank(self):
        self.check("ctrl-C", "KeyboardInterrupt", kinds=("save", "process"))

    def test_ctrl_c_on_a_rank_whose_thread_saves_leaves_the_save_whole(self):
        for world in WORLDS:
            root = self.directory(f"thread-{world}")
            models.run_ranks(world, interrupted_thread_ranks, root)
            self.check_values(root + "/step-1", 1.0)

    def test_ctrl_c_while_the_library_writes_comes_after_the_save(self):
        for world in WORLDS:
            root = self.directory(f"late-{world}")
            models.run_ranks(world, late_ranks, root)
            self.check_values(root + "/step-1", 1.0)


class LoadTest(Case):
    def setUp(self):
        super().setUp()
        self.saved = {world: f"{self.root}/of-{world}/step-1" for world in WORLDS}
        for world, path in self.saved.items():
            models.run_ranks(world, save_ranks, path)

    def check(self, failure, *texts):
        for world, path in self.saved.items():
            with self.subTest(f"{world} ranks"):
                models.run_ranks(world, loading_ranks, path, failure, texts)

    def test_a_rank_that_raises_is_named_on_every_rank(self):
        self.check("raises", "Luck", "is out")

    def test_ctrl_c_on_a_rank_is_named_on_every_rank(self):
        self.check("ctrl-C", "KeyboardInterrupt")

    def test_a_damaged_byte_is_named_on_every_rank(self):
        for path in self.saved.values():
            with open(glob.glob(path + "/rank-00001-of-*.h5")[0], "r+b") as file:
                file.seek(file.read().find(b"\x00\x00\x80\x3f" * 8))
                file.write(b"\x01")
        self.check("", "DataLossError", "rank-00001-of-0000", "bytes ", "w")

    def test_a_missing_rank_file_is_named_on_every_rank(self):
        for path in self.saved.values():
            os.remove(glob.glob(path + "/rank-00001-of-*.h5")[0])
        self.check("", "rank-00001-of-0000")

    def test_a_checkpoint_that_is_not_there_is_named_on_every_rank(self):
        self.saved = {world: path + "0" for world, path in self.saved.items()}
        self.check("", "NotFoundError", "step-10")


if __name__ == "__main__":
    unittest.main(verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""Every form of tensor, compared with PyTorch's FileSystemWriter and FileSystemReader: equal, or refused by name."""

import dataclasses
import os
import random
import sys
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tensors_testutil as forms  # noqa: E402
from cases import Case, same  # noqa: E402

torch.serialization.add_safe_globals([forms.Subclass])


class FormsTest(Case):
    def assert_same(self, state, other, note):
        for (name, a), (_, b) in zip(forms.tensors_of(state), forms.tensors_of(other)):
            self.assertTrue(same(a, b), f"{note}, {name}: {a} and {b}")

    def test_a_tensor_of_any_form_in_any_dict_is_saved_as_torch_saves_it(self):
        for seed in range(60):
            state = forms.random_dict(random.Random(seed))
            dcp.save(state, storage_writer=Writer(self.path(seed)))
            dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{self.root}/torch{seed}"))
            ours = forms.mapped(state, lambda t: torch.zeros(t.shape, dtype=t.dtype))
            theirs = forms.mapped(state, lambda t: torch.ones(t.shape).to(t.dtype))
            dcp.load(ours, storage_reader=Reader(self.path(seed)))
            dcp.load(theirs, storage_reader=dcp.FileSystemReader(f"{self.root}/torch{seed}"))
            self.assert_same(state, ours, f"seed {seed}")
            self.assert_same(theirs, ours, f"seed {seed}")

    def test_a_target_of_any_form_is_loaded_as_torch_loads_it_and_memory_beside_it_is_left(self):
        for seed in range(60):
            generator = random.Random(seed)
            dtype = generator.choice(forms.DTYPES)
            base = forms.memory(generator, 210, dtype)
            saved = forms.memory(generator, 12, dtype).reshape(3, 4)
            dcp.save({"w": saved}, storage_writer=Writer(self.path(seed)))
            dcp.save({"w": saved}, storage_writer=dcp.FileSystemWriter(f"{self.root}/torch{seed}"))
            strides, offset = generator.choice([(4, 1), (1, 3), (8, 2), (1, 50), (13, 3)]), generator.randrange(9)
            is_lazy, is_subclass = generator.random() < 0.6, generator.random() < 0.3
            bases = [base.clone(), base.clone()]
            readers = (Reader(self.path(seed)), dcp.FileSystemReader(f"{self.root}/torch{seed}"))
            for memory, reader in zip(bases, readers):
                target = memory.as_strided((3, 4), strides, offset)
                if is_lazy and dtype in forms.CONJUGATED:
                    target = target.conj()
                elif is_lazy and dtype in forms.NEGATED:
                    target = torch._neg_view(target)
                target = target.as_subclass(forms.Subclass) if is_subclass else target
                dcp.load({"w": target}, storage_reader=reader)
                self.assertTrue(same(target.as_subclass(torch.Tensor), saved), f"seed {seed}: {target} and {saved}")
            self.assertTrue(same(*bases), f"seed {seed}")

    def test_a_tensor_without_values_is_refused_by_its_name_and_no_checkpoint_is_left(self):
        for name, (tensor, reason) in forms.without_values().items():
            with self.subTest(name), self.assertRaisesRegex(CheckpointException, f"Error: layers.w: .*{reason}"):
                dcp.save({"layers": {"w": tensor}}, storage_writer=Writer(self.path()))
            self.assertEqual(os.listdir(self.root), [])

    def test_an_asynchronous_save_has_the_values_of_every_form_or_refuses_it_by_its_name(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        for seed in range(20):
            state = forms.random_dict(random.Random(seed))
            dcp.async_save(state, storage_writer=Writer(self.path(seed))).result()
            ours = forms.mapped(state, lambda t: torch.zeros(t.shape, dtype=t.dtype))
            dcp.load(ours, storage_reader=Reader(self.path(seed)))
            self.assert_same(state, ours, f"seed {seed}")
        for name, (tensor, reason) in forms.without_values().items():
            with self.subTest(name), self.assertRaisesRegex((CheckpointException, ValueError), f"layers.w: .*{reason}"):
                dcp.async_save({"layers": {"w": tensor}}, storage_writer=Writer(self.path(99))).result()
        view = torch.ones(3, dtype=torch.complex64).conj()
        sharded = DTensor.from_local(view, init_device_mesh("cpu", (1,)), [Shard(0)])
        with self.assertRaisesRegex(ValueError, "layers.w: this rank's part is a conjugated"):
            dcp.async_save({"layers": {"w": sharded}}, storage_writer=Writer(self.path(99))).result()
        self.assertFalse(os.path.exists(self.path(99)))

    def test_the_result_of_a_collective_is_saved_when_it_has_come(self):
        dcp.save({"w": AsyncCollectiveTensor(torch.arange(3.0))}, storage_writer=Writer(self.path()))
        loaded = {"w": torch.zeros(3)}
        dcp.load(loaded, storage_reader=Reader(self.path()))
        self.assertEqual(loaded["w"].tolist(), [0, 1, 2])

    def test_a_target_without_memory_is_refused_by_its_name(self):
        dcp.save({"w": torch.ones(1000)}, storage_writer=Writer(self.path()))
        for nbytes in (0, 2000):
            with self.assertRaisesRegex(CheckpointException, f"w: its storage has {nbytes} bytes, .* need 4000"):
                dcp.load({"w": forms.resized(nbytes)}, storage_reader=Reader(self.path()))

    def test_a_wrapper_as_a_target_gets_the_values_where_it_keeps_them(self):
        dcp.save({"w": torch.arange(3.0)}, storage_writer=Writer(self.path()))
        target = forms.Wrapper(torch.zeros(3))
        dcp.load({"w": target}, storage_reader=Reader(self.path()))
        self.assertEqual(target.inner.tolist(), [0, 1, 2])


class Changing(dcp.DefaultSavePlanner):
    """Gives change(tensor) for the planned tensor."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def resolve_data(self, item):
        return self._change(super().resolve_data(item))


class OtherTarget(dcp.DefaultLoadPlanner):
    def resolve_tensor(self, item):
        return super().resolve_tensor(item)[:1]


class PlansTest(Case):
    def test_a_tensor_that_is_not_the_planned_one_is_refused(self):
        changes = {
            "gave float16 of \\[500\\], .* says float32 of \\[500\\]": lambda t: t.half(),
            "gave int32 of \\[500\\], .* says float32 of \\[500\\]": lambda t: t.view(torch.int32),
            "gave float32 of \\[1\\], .* says float32 of \\[500\\]": lambda t: t[:1].clone(),
            "gave float32 of \\[0\\]": lambda t: t[:0],
            "gave float32 of \\[5, 100\\]": lambda t: t.reshape(5, 100),
            "gave a list": lambda t: t.tolist(),
        }
        for reason, change in changes.items():
            state, planner = {"model": {"w": torch.ones(500)}}, Changing(change)
            with self.subTest(reason), self.assertRaisesRegex(CheckpointException, f"model.w: .*{reason}"):
                dcp.save(state, storage_writer=Writer(self.path()), planner=planner)
            self.assertEqual(os.listdir(self.root), [])

    def test_a_target_that_is_not_the_planned_one_is_refused(self):
        dcp.save({"w": torch.ones(500)}, storage_writer=Writer(self.path()))
        with self.assertRaisesRegex(CheckpointException, "w: the planner gave \\[1\\] for \\[500\\]"):
            dcp.load({"w": torch.zeros(500)}, storage_reader=Reader(self.path()), planner=OtherTarget())

    def plan_of(self, value):
        planner = dcp.DefaultSavePlanner()
        planner.set_up_planner({"w": value}, is_coordinator=True)
        return planner.create_local_plan()

    def test_ranks_that_plan_a_name_differently_are_named(self):
        others = {
            "float16 of \\[5\\]": torch.ones(5).half(),
            "float32 of \\[6\\]": torch.ones(6),
            "a value that is no tensor": 5,
        }
        for what, other in others.items():
            plans = [self.plan_of(torch.ones(5)), self.plan_of(torch.ones(5)), self.plan_of(other)]
            reason = f"w: rank 2 of 3 plans {what}, and rank 0 float32 of \\[5\\]"
            with self.subTest(what), self.assertRaisesRegex(ValueError, reason):
                Writer(self.path()).prepare_global_plan(plans)

    def test_an_item_outside_of_its_tensor_is_refused(self):
        item = self.plan_of(torch.ones(5)).items[0]
        for offsets, sizes in (([3], [3]), ([-1], [2]), ([0, 0], [1, 1]), ([2**64], [1])):
            chunk = dataclasses.replace(item.tensor_data.chunk, offsets=tuple(offsets), sizes=tuple(sizes))
            outside = dataclasses.replace(item, tensor_data=dataclasses.replace(item.tensor_data, chunk=chunk))
            with self.assertRaisesRegex(ValueError, "w: the plan has .*, outside of \\[5\\]"):
                Writer(self.path()).prepare_global_plan([SavePlan([outside])])


if __name__ == "__main__":
    unittest.main(verbosity=2)

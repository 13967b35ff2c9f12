# SPDX-License-Identifier: Apache-2.0
"""The installed wheel with PyTorch: run.sh makes the environment."""

import inspect
import json
import os
import pathlib
import subprocess
import sys
import unittest

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import fsdp_checkpoint
import fsdp_checkpoint.torch as fct
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402
from cases import Case, same  # noqa: E402


class PackageTest(unittest.TestCase):
    def test_every_public_name_has_a_docstring_with_an_example(self):
        for module in (fsdp_checkpoint, fct):
            for name in module.__all__:
                thing = getattr(module, name)
                parts = [(name, thing)]
                if inspect.isclass(thing) and not issubclass(thing, (tuple, Exception)):
                    parts += [(f"{name}.{n}", m) for n, m in vars(thing).items() if not n.startswith("_")]
                for label, part in parts:
                    self.assertIn(">>>", inspect.getdoc(part) or "", f"{module.__name__}.{label}")

    def test_the_package_says_that_it_is_typed(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(fsdp_checkpoint.__file__), "py.typed")))

    def test_importing_it_imports_neither_numpy_nor_torch(self):
        code = "import sys, fsdp_checkpoint; assert not {'numpy', 'torch'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_package_is_that_of_the_wheel(self):
        self.assertIn("site-packages", fsdp_checkpoint.__file__)

    def test_no_library_of_the_machine_is_used_but_those_of_c_and_cplusplus(self):
        code = "import fsdp_checkpoint; print(open('/proc/self/maps').read())"
        maps = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        loaded = {
            line.split()[-1]
            for line in maps.splitlines()
            if "libabsl" in line or "libfsdp" in line or "libhdf5" in line
        }
        self.assertTrue(loaded)
        self.assertTrue(all(path.startswith(os.path.dirname(fsdp_checkpoint.__file__)) for path in loaded), loaded)


class OpenTest(Case):
    def test_a_file_of_torch_save_is_read_in_every_bit(self):
        state = {
            "a.b": torch.randn(3, 5),
            "half": torch.randn(7).bfloat16(),
            "n": torch.arange(4),
            "s": torch.tensor(2.5),
        }
        torch.save(state, self.root + "/model.pt")
        with fsdp_checkpoint.open(self.root + "/model.pt") as checkpoint:
            self.assertEqual(set(checkpoint), {"model/" + name for name in state})
            self.assertEqual(checkpoint.format, "torch")
            self.assertIsNone(checkpoint.step)
            for name, tensor in state.items():
                self.assertTrue(same(checkpoint.torch("model/" + name), tensor), name)
                self.assertEqual(checkpoint.info("model/" + name).shape, tuple(tensor.shape))
            numpy.testing.assert_array_equal(checkpoint["model/a.b"], state["a.b"].numpy())
            self.assertEqual(checkpoint["model/s"].shape, ())
            with self.assertRaisesRegex(TypeError, "NumPy has no bfloat16"):
                checkpoint["model/half"]
            numpy.testing.assert_array_equal(checkpoint.numpy("model/half", "float32"), state["half"].float().numpy())
            loaded = checkpoint.state_dict()
            self.assertTrue(all(same(loaded[name], tensor) for name, tensor in state.items()))
        with self.assertRaisesRegex(ValueError, "closed"):
            checkpoint["model/n"]

    def test_a_checkpoint_says_which_path_was_opened_and_what_it_holds(self):
        dcp.save({"w": torch.zeros(4)}, storage_writer=Writer(self.path(7)))
        with fsdp_checkpoint.open(self.root) as checkpoint:
            self.assertEqual(checkpoint.path, self.path(7))
            self.assertRegex(checkpoint.identity(), "^step 7 of save [0-9a-f]{32}, manifest digest [0-9a-f]{32}$")

    def test_a_hugging_face_directory_is_read(self):
        with fsdp_checkpoint.open(os.environ["FSDP_TESTDATA"] + "/hf_sharded") as checkpoint:
            self.assertEqual(checkpoint["model/transformer.wpe.weight"].shape, (64, 48))

    def test_what_is_not_there_or_not_asked_for_rightly_is_an_error_that_says_what(self):
        with self.assertRaisesRegex(fsdp_checkpoint.NotFoundError, "no/such"):
            fsdp_checkpoint.open("no/such")
        with self.assertRaises(FileNotFoundError):
            fsdp_checkpoint.open("no/such")
        torch.save({"a": torch.zeros(2)}, self.root + "/m.pt")
        with fsdp_checkpoint.open(self.root + "/m.pt") as checkpoint:
            with self.assertRaises(KeyError):
                checkpoint["model/b"]
            with self.assertRaises(TypeError):
                checkpoint.numpy("model/a", "float33")
            request = fsdp_checkpoint.ReadRequest("model/a", 0, 3, "float32", checkpoint.numpy("model/a").ctypes.data)
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, "model/a"):
                checkpoint.read_into([request])

    def test_convert_verify_and_diff(self):
        torch.save({"a": torch.arange(6.0)}, self.root + "/m.pt")
        self.assertEqual(
            fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/ours", kind="sharded", world_size=2), []
        )
        fsdp_checkpoint.verify(self.root + "/ours")
        self.assertEqual(fsdp_checkpoint.diff(self.root + "/m.pt", self.root + "/ours"), [])
        torch.save({"a": torch.arange(6.0) + 1}, self.root + "/n.pt")
        self.assertEqual(len(fsdp_checkpoint.diff(self.root + "/n.pt", self.root + "/ours")), 1)
        with self.assertRaises(FileExistsError):
            fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/ours")

    def test_ckpt_is_on_the_path(self):
        torch.save({"a": torch.arange(6.0)}, self.root + "/m.pt")
        done = subprocess.run(["ckpt", "inspect", self.root + "/m.pt"], check=True, capture_output=True, text=True)
        self.assertIn("torch", done.stdout)


class OneProcessTest(Case):
    def test_every_dtype_and_shape_comes_back_in_every_bit(self):
        names = ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16",
                 "int8", "uint8", "bool", "complex64", "complex128"]  # fmt: skip
        state = {n: torch.randint(0, 2, (5, 3)).to(getattr(torch, n)) for n in names}
        state.update(
            scalar=torch.tensor(1.5),
            empty=torch.empty(0, 4),
            view=torch.randn(6, 4).t(),
            nan=torch.tensor([float("nan"), -0.0]),
        )
        dcp.save({"model": state}, storage_writer=Writer(self.path()))
        wanted = {name: torch.full_like(tensor, 1).contiguous() for name, tensor in state.items()}
        dcp.load({"model": wanted}, storage_reader=Reader(self.root))
        for name, tensor in state.items():
            self.assertTrue(same(wanted[name], tensor), name)
        fsdp_checkpoint.verify(self.path())

    def test_values_that_are_no_tensors_come_back_with_their_types(self):
        values = {"step": 7, "lr": 1e-3, "text": "h\u00e9", "none": None, "flag": True,
                  "nested": {"x": [1, [2.0, "y"]]}, "tuple": (1, 2),
                  "big": 2**70, "zero": -0.0, "size": torch.Size([2, 3])}  # fmt: skip
        dcp.save({"w": torch.ones(2), "values": values}, storage_writer=Writer(self.path()))
        wanted = {
            "w": torch.zeros(2),
            "values": {name: type(value)() if value is not None else 0 for name, value in values.items()},
        }
        wanted["values"]["nested"] = {"x": [0, [0, 0]]}
        dcp.load(wanted, storage_reader=Reader(self.path()))
        for name, value in values.items():
            self.assertEqual(repr(wanted["values"][name]), repr(value), name)
            self.assertIs(type(wanted["values"][name]), type(value), name)
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            self.assertEqual(json.loads(checkpoint.texts["extra/values.step"]), 7)
            self.assertIn("model/w", checkpoint)

    def test_a_value_that_would_run_code_is_refused(self):
        marker = self.root + "/ran"
        dcp.save({"w": torch.ones(2), "evil": Evil(marker)}, storage_writer=Writer(self.path()))
        self.assertFalse(os.path.exists(marker))
        with self.assertRaisesRegex(CheckpointException, "trust_pickles"):
            dcp.load({"w": torch.zeros(2), "evil": 0}, storage_reader=Reader(self.path()))
        self.assertFalse(os.path.exists(marker))
        dcp.load({"w": torch.zeros(2), "evil": 0}, storage_reader=Reader(self.path(), trust_pickles=True))
        self.assertTrue(os.path.exists(marker))

    def test_the_file_has_the_tensors_under_their_own_names_for_any_hdf5_program(self):
        model, optimizer = models.trained(None, 1)
        dcp.save(models.state_of(model, optimizer), storage_writer=Writer(self.path()))
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            self.assertTrue(same(checkpoint.torch("model/blocks.1.0.weight"), model.blocks[1][0].weight))
            exp_avg = optimizer.state[model.a.weight]["exp_avg"]
            self.assertTrue(same(checkpoint.torch("optim/state/a.weight/exp_avg"), exp_avg))
        fresh = models.Net()
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            fresh.load_state_dict(checkpoint.state_dict())
        self.assertTrue(all(same(a, b) for a, b in zip(fresh.state_dict().values(), model.state_dict().values())))

    def test_h5py_reads_it_as_any_hdf5_file(self):
        code = "import h5py, sys; print(h5py.File(sys.argv[1] + '/checkpoint.h5')['model/w'][()].tolist())"
        if subprocess.run(["/usr/bin/python3", "-c", "import h5py"], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: /usr/bin/python3 has no h5py")
        dcp.save({"w": torch.arange(4.0)}, storage_writer=Writer(self.path()))
        command = ["/usr/bin/python3", "-c", code, self.path()]
        self.assertEqual(subprocess.run(command, capture_output=True, text=True).stdout, "[0.0, 1.0, 2.0, 3.0]\n")

    def test_a_checkpoint_that_another_program_made_is_loaded(self):
        state = models.Net().state_dict()
        torch.save(state, self.root + "/m.pt")
        fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/ours", kind="sharded", world_size=3)
        for path in ("/m.pt", "/ours"):
            wanted = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
            dcp.load({"model": wanted}, storage_reader=Reader(self.root + path))
            self.assertTrue(all(same(wanted[name], state[name]) for name in state), path)

    def test_a_flipped_bit_is_an_error_that_names_the_tensor(self):
        dcp.save({"w": torch.full((4096,), 1.0)}, storage_writer=Writer(self.path()))
        for name in os.listdir(self.path()):
            with open(os.path.join(self.path(), name), "r+b") as file:
                at = file.read().find(b"\x00\x00\x80\x3f" * 8)
                if at >= 0:
                    file.seek(at)
                    file.write(b"\x01")
        with self.assertRaisesRegex(CheckpointException, "model/w"):
            dcp.load({"w": torch.zeros(4096)}, storage_reader=Reader(self.path()))
        with self.assertRaisesRegex(fsdp_checkpoint.DataLossError, "model/w"):
            fsdp_checkpoint.verify(self.path())

    def test_a_checkpoint_has_the_name_that_a_framework_gives_it(self):
        names = {
            "step-100": 100,
            "checkpoint-500": 500,
            "pytorch_model_fsdp_0": 0,
            "epoch=3-step=700.ckpt": 700,
            "best": 0,
        }
        for name, step in names.items():
            path = pathlib.Path(self.root, name)
            dcp.save({"w": torch.full((3,), float(step))}, storage_writer=Writer(path))
            with fsdp_checkpoint.open(path) as checkpoint:
                self.assertEqual((checkpoint.step, checkpoint["model/w"].tolist()), (step, [step] * 3), name)
        state = {"w": torch.zeros(3)}
        dcp.load(state, storage_reader=Reader(self.root))
        self.assertEqual(state["w"].tolist(), [700] * 3)
        dcp.save(state, storage_writer=Writer(self.root + "/final", step=800))
        dcp.save(state, checkpoint_id=self.root + "/last-900", storage_writer=Writer(self.root + "/x", step=1))
        with fsdp_checkpoint.open(self.root) as checkpoint:
            self.assertEqual(checkpoint.step, 900)

    def test_a_path_without_a_name_and_a_step_that_exists_are_refused(self):
        for path in ("", "/", ".", "..", self.root + "/.."):
            with self.assertRaises(ValueError):
                Writer(path)
        for name in (".hidden", "x" * 201, "manifest.json"):
            with self.assertRaisesRegex(CheckpointException, "cannot be the name"):
                dcp.save({"w": torch.ones(2)}, storage_writer=Writer(os.path.join(self.root, name)))
        with self.assertRaisesRegex(CheckpointException, "is step 5"):
            dcp.save({"w": torch.ones(2)}, storage_writer=Writer(self.path(), step=5))
        dcp.save({"w": torch.ones(2)}, storage_writer=Writer(self.path()))
        with self.assertRaisesRegex(CheckpointException, "exists"):
            dcp.save({"w": torch.zeros(2)}, storage_writer=Writer(self.path()))
        dcp.save({"w": torch.zeros(2)}, storage_writer=Writer(self.path(), overwrite=True))
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            self.assertEqual(checkpoint["model/w"].tolist(), [0, 0])


@unittest.skipUnless(torch.cuda.is_available(), "no GPU, or a PyTorch without CUDA")
class GpuTest(Case):
    def test_a_model_on_a_gpu_is_saved_and_loaded_there_in_every_bit(self):
        torch.manual_seed(1)
        model = models.Net().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in (1, 2):
            model(torch.randn(4, 13, device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()
            parameters, state = get_state_dict(model, optimizer)
            dcp.save({"model": parameters, "optim": state}, storage_writer=Writer(self.path(step)))
        fsdp_checkpoint.verify(self.path(2))
        saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        other = models.Net().cuda()
        its_optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
        parameters, state = get_state_dict(other, its_optimizer)
        dcp.load({"model": parameters, "optim": state}, storage_reader=Reader(self.root))
        set_state_dict(other, its_optimizer, model_state_dict=parameters, optim_state_dict=state)
        for name, tensor in other.state_dict().items():
            self.assertEqual(tensor.device.type, "cuda")
            self.assertTrue(same(tensor, saved[name]), name)
        for mine, its in zip(model.parameters(), other.parameters()):
            for field in ("exp_avg", "exp_avg_sq"):
                self.assertTrue(same(optimizer.state[mine][field], its_optimizer.state[its][field]), field)

    def test_an_asynchronous_save_of_a_gpus_tensors_has_the_state_of_its_call(self):
        state = {f"t{i}": torch.full((1 << 20,), float(i), device="cuda") for i in range(8)}
        saving = dcp.async_save({"model": state}, storage_writer=Writer(self.path()))
        for tensor in state.values():
            tensor.add_(100)
        getattr(saving, "upload_completion", saving).result()
        wanted = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load({"model": wanted}, storage_reader=Reader(self.root))
        for i in range(8):
            self.assertTrue(torch.equal(wanted[f"t{i}"], torch.full((1 << 20,), float(i), device="cuda")), i)

    def test_what_is_loaded_onto_a_gpu_takes_little_host_memory(self):
        state = {f"t{i}": torch.full((1 << 24,), float(i), device="cuda") for i in range(16)}  # 64 MiB each, 1 GiB
        dcp.save({"model": state}, storage_writer=Writer(self.path()))
        wanted = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        with open("/proc/self/clear_refs", "w") as references:
            references.write("5")
        before = resident("VmRSS")
        dcp.load({"model": wanted}, storage_reader=Reader(self.root))
        self.assertLess(resident("VmHWM") - before, 512 << 20)
        for name, tensor in state.items():
            self.assertTrue(torch.equal(wanted[name], tensor), name)


def resident(field):
    """Bytes of this process: VmRSS now, or VmHWM at most."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field + ":"))


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


def save_ranks(rank, kind, path, reference, parity):
    model, optimizer = models.trained(kind, 1)
    state = models.state_of(model, optimizer)
    dcp.save(state, storage_writer=Writer(path, parity=parity))
    tensors, others = models.whole(state)
    if rank == 0:
        torch.save((tensors, others), reference)


def load_ranks(rank, kind, path, reference):
    model, optimizer = models.trained(kind, 2)  # other values, to be replaced
    state = models.state_of(model, optimizer)
    state["values"] = {"step": 0, "lr": 0.0, "note": "", "list": [0, 0, 0], "tuple": ()}
    dcp.load(state, storage_reader=Reader(path))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    tensors, others = models.whole(models.state_of(model, optimizer) | {"values": state["values"]})
    if rank != 0:
        return
    wanted_tensors, wanted_others = torch.load(reference, weights_only=False)
    assert tensors.keys() == wanted_tensors.keys(), tensors.keys() ^ wanted_tensors.keys()
    for name, tensor in wanted_tensors.items():
        assert same(tensors[name].cpu(), tensor.cpu()), (name, tensors[name], tensor)
    for name, value in wanted_others.items():
        assert repr(others[name]) == repr(value), (name, others[name], value)


def async_ranks(rank, path, reference):
    model, optimizer = models.trained("fsdp2", 1)
    state = models.state_of(model, optimizer)
    tensors, others = models.whole(state)
    future = dcp.async_save(state, storage_writer=Writer(path))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # after the copy is made
    future.result()
    if rank == 0:
        torch.save((tensors, others), reference)


def failing_rank(rank, path):
    class Planner(dcp.DefaultSavePlanner):
        def resolve_data(self, item):
            if rank == 1:
                raise OSError("this rank's memory is gone")
            return super().resolve_data(item)

    model, _ = models.trained("fsdp2", 1, steps=0)
    try:
        dcp.save({"model": model.state_dict()}, storage_writer=Writer(path), planner=Planner())
    except CheckpointException as error:
        assert "memory is gone" in str(error), error
        return
    raise AssertionError("saved")


def racing_ranks(rank, root, later):
    """Rank 1 opens the directory a moment later than rank 0, when a newer step has been committed."""

    class LateReader(Reader):
        def read_metadata(self, *arguments, **keywords):
            if rank == 1:
                dist.barrier()
            metadata = super().read_metadata(*arguments, **keywords)
            if rank == 0:
                os.rename(later, root + "/step-00000002")
                dist.barrier()
            return metadata

    wanted = {"model": {"w": distribute_tensor(torch.zeros(8), init_device_mesh("cpu", (2,)), [Shard(0)])}, "n": 0}
    dcp.load(wanted, storage_reader=LateReader(root))
    assert (wanted["model"]["w"].full_tensor() == 1).all() and wanted["n"] == 1, wanted


def ranks_of_other_paths(rank, paths, message):
    wanted = {"model": {"w": torch.zeros(8)}}
    try:
        dcp.load(wanted, storage_reader=Reader(paths[rank]))
    except CheckpointException as error:
        assert message is not None and message in str(error), error
        for path in paths:
            assert path in str(error), (path, error)
        assert (wanted["model"]["w"] == 0).all(), wanted
        return
    assert message is None


class RanksTest(Case):
    def test_ranks_that_find_other_newest_steps_load_the_step_of_rank_0(self):
        later = self.root + "/later"
        for path, value in ((self.path(), 1), (later + "/step-00000002", 2)):
            dcp.save({"model": {"w": torch.full((8,), float(value))}, "n": value}, storage_writer=Writer(path))
        models.run_ranks(2, racing_ranks, self.root, later + "/step-00000002")

    def test_ranks_whose_paths_hold_other_checkpoints_are_refused_with_both(self):
        roots = [self.root + "/a", self.root + "/b"]
        for root, value in zip(roots, (1.0, 2.0)):
            dcp.save({"model": {"w": torch.full((8,), value)}}, storage_writer=Writer(root + "/step-00000001"))
            fsdp_checkpoint.convert(root, root + ".safetensors", model_only=True)
        message = "the checkpoint to load: step 1 of save "
        models.run_ranks(2, ranks_of_other_paths, roots, message)
        models.run_ranks(2, ranks_of_other_paths, [root + "/step-00000001" for root in roots], message)
        message = "the checkpoint to load: 1 file of "
        models.run_ranks(2, ranks_of_other_paths, [root + ".safetensors" for root in roots], message)
        models.run_ranks(2, ranks_of_other_paths, [roots[0], roots[0] + "/step-00000001"], None)

    def round_trip(self, kind, savers, loaders, loading_kind=None, parity=0):
        reference = self.root + "/reference.pt"
        models.run_ranks(savers, save_ranks, kind, self.path(), reference, parity)
        fsdp_checkpoint.verify(self.path())
        models.run_ranks(loaders, load_ranks, loading_kind or kind, self.path(), reference)

    def test_fsdp2_of_four_ranks_is_loaded_on_three(self):
        self.round_trip("fsdp2", 4, 3, parity=1)
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            self.assertEqual(checkpoint.world_size, 4)

    def test_hybrid_sharding_is_loaded_as_fsdp2_on_three_ranks(self):
        self.round_trip("hsdp", 4, 3, "fsdp2")

    def test_fsdp1_of_two_ranks_is_loaded_as_fsdp2_on_three(self):
        self.round_trip("fsdp1", 2, 3, "fsdp2")

    def test_fsdp2_of_three_ranks_is_loaded_as_fsdp1_on_two(self):
        self.round_trip("fsdp2", 3, 2, "fsdp1")

    def test_an_asynchronous_save_has_the_state_of_its_call(self):
        reference = self.root + "/reference.pt"
        models.run_ranks(2, async_ranks, self.path(), reference)
        models.run_ranks(3, load_ranks, "fsdp2", self.path(), reference)

    def test_a_failure_of_one_rank_is_every_ranks_and_leaves_no_checkpoint(self):
        models.run_ranks(2, failing_rank, self.path())
        self.assertFalse(os.path.exists(self.path()))


if __name__ == "__main__":
    unittest.main(verbosity=2)

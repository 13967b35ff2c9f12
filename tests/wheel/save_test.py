# SPDX-License-Identifier: Apache-2.0
"""save and load: a nested dict comes back equal, with its types; what a checkpoint cannot hold is refused by name."""

import collections
import os
import random
import subprocess
import sys
import typing
import unittest

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

import fsdp_checkpoint
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tensors_testutil as forms  # noqa: E402
from cases import Case, same  # noqa: E402
from values_test import VALUES  # noqa: E402


class Pair(typing.NamedTuple):
    a: object
    b: object


def trained():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
    model(torch.ones(5)).sum().backward()
    optimizer.step()
    return model, optimizer


class SaveTest(Case):
    def assert_equal(self, got, wanted, at="state", is_ordered=True):
        self.assertIs(type(got), type(wanted), at)
        if isinstance(wanted, torch.Tensor):
            self.assertTrue(same(got, wanted), at)
        elif isinstance(wanted, numpy.ndarray):
            self.assertEqual((got.dtype, got.shape, got.tobytes()), (wanted.dtype, wanted.shape, wanted.tobytes()), at)
        elif isinstance(wanted, dict):
            order = list if is_ordered else sorted
            self.assertEqual(order(got), order(wanted), at)
            for key in wanted:
                self.assert_equal(got[key], wanted[key], f"{at}.{key}", is_ordered)
        elif isinstance(wanted, (list, tuple)):
            self.assertEqual(len(got), len(wanted), at)
            for number, (a, b) in enumerate(zip(got, wanted)):
                self.assert_equal(a, b, f"{at}.{number}", is_ordered)
        else:
            self.assertEqual(repr(got), repr(wanted), at)

    def check(self, state):
        fsdp_checkpoint.save(self.path(), state, overwrite=True)
        fsdp_checkpoint.verify(self.path())
        got = fsdp_checkpoint.load(self.path())
        self.assert_equal(got, state)
        return got

    def test_arrays_of_every_dtype_and_form_come_back(self):
        names = "float64 float32 float16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 complex128"
        grid = numpy.arange(24).reshape(4, 6)
        state = {name: grid.astype(name) for name in names.split()}
        state.update(view=grid[::2, ::-1], columns=grid.T, scalar=numpy.array(2.5), empty=numpy.zeros((0, 3)))
        self.check({"model": state})
        self.check(state)

    def test_tensors_of_every_form_come_back_as_their_values(self):
        for seed in range(20):
            form = lambda r: forms.lazy(r, forms.strided(r, r.choice(forms.DTYPES)))  # noqa: E731
            self.check(forms.random_dict(random.Random(seed), form))

    def test_nesting_and_values_come_back_with_their_types(self):
        array = numpy.arange(3)
        state = {
            "values": VALUES,
            "lists": [array, [torch.ones(2), None], (array, {"a": array}), collections.OrderedDict(b=array, a=1)],
            "by number": {0: {"m": array}, 7: {"m": torch.zeros(2)}, "x": 1},
            "empty": {"dict": {}, "list": [], "tuple": ()},
            "numbers of numpy": [numpy.float64(0.5), numpy.int64(3)],
            "__python__": {"__python__": array},
            "rng": torch.get_rng_state(),
        }
        self.check(state)
        self.check({})
        self.check({"step": 3})

    def test_a_model_and_its_optimizer_come_back_and_are_a_model_and_an_optimizer(self):
        model, optimizer = trained()
        by_name = dict(zip(("model", "optim"), get_state_dict(model, optimizer)), epoch=3)
        self.check(by_name)
        fsdp_checkpoint.save(self.root + "/run", by_name, step=12)
        with fsdp_checkpoint.open(self.root + "/run") as checkpoint:
            self.assertEqual(checkpoint.step, 12)
            self.assertIn("optim/state/0.weight/exp_avg", checkpoint)
            self.assertIn("optim/param_groups", checkpoint.texts)
            self.assertEqual(sorted(checkpoint.state_dict()), sorted(model.state_dict()))
        for convert in ((), ("dcp",)):
            made = self.root + ("/dcp" if convert else "/m.pt")
            fsdp_checkpoint.convert(self.root + "/run", made, to="dcp" if convert else None)
            with fsdp_checkpoint.open(made) as checkpoint:
                self.assertIn("optim/state/0.weight/exp_avg", checkpoint)
        by_id = {"model": model.state_dict(), "optim": optimizer.state_dict()}
        got = self.check(by_id)
        other = torch.optim.AdamW(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 2)).parameters())
        other.load_state_dict(got["optim"])
        self.assert_equal(other.state_dict()["state"], optimizer.state_dict()["state"])

    def test_shared_tensors_are_stored_once_and_are_shared_again(self):
        weight = torch.ones(1000)
        got = self.check({"model": {"wte": weight, "head": weight, "other": weight.clone()}})
        self.assertIs(got["model"]["wte"], got["model"]["head"])
        self.assertIsNot(got["model"]["wte"], got["model"]["other"])
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            self.assertEqual(checkpoint.aliases, {"model/head": "model/wte"})

    def test_what_one_saves_the_other_loads(self):
        model, optimizer = trained()
        state = dict(zip(("model", "optim"), get_state_dict(model, optimizer)), extra={"step": 3, "pair": (1, 2)})
        fsdp_checkpoint.save(self.path(1), state)
        wanted = torch.utils._pytree.tree_map(lambda x: torch.zeros_like(x) if torch.is_tensor(x) else x, state)
        wanted["extra"] = {"step": 0, "pair": ()}
        dcp.load(wanted, storage_reader=Reader(self.path(1)))
        self.assert_equal(wanted, state)
        dcp.save(state, storage_writer=Writer(self.path(2)))
        state["model"] = dict(state["model"])  # DCP tells a writer no types of dicts
        self.assert_equal(fsdp_checkpoint.load(self.path(2)), state, is_ordered=False)

    def test_other_formats_are_loaded_as_model_optimizer_and_extra_values(self):
        model, optimizer = trained()
        state = {"model": dict(model.state_dict()), "optim": optimizer.state_dict()}
        state.update(epoch=3, rng={"a": [torch.ones(2), 5]})
        torch.save(state, self.root + "/m.pt")
        fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/ours")
        for path in (self.root + "/m.pt", self.root + "/ours"):
            got = fsdp_checkpoint.load(path, framework="torch")
            self.assert_equal({name: got[name] for name in ("epoch", "rng")}, {"epoch": 3, "rng": state["rng"]})
            self.assertTrue(all(same(got["model"][name], state["model"][name]) for name in state["model"]))
            self.assertTrue(same(got["optim"]["state"]["1.bias"]["exp_avg"], state["optim"]["state"][3]["exp_avg"]))
            self.assertEqual(got["optim"]["param_groups"][0]["lr"], torch.tensor(1e-3))
        fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/m.safetensors", model_only=True)
        got = fsdp_checkpoint.load(self.root + "/m.safetensors")
        self.assertEqual(list(got), ["model"])
        self.assertIsInstance(got["model"]["0.weight"], numpy.ndarray)

    def test_the_framework_is_the_callers(self):
        fsdp_checkpoint.save(self.path(), {"a": numpy.arange(3), "b": torch.arange(3)})
        for framework, kind in (("numpy", numpy.ndarray), ("torch", torch.Tensor)):
            got = fsdp_checkpoint.load(self.path(), framework=framework)
            self.assertEqual([type(array) for array in got.values()], [kind, kind])
        with self.assertRaisesRegex(ValueError, "expected 'numpy' or 'torch'"):
            fsdp_checkpoint.load(self.path(), framework="jax")

    def test_what_a_checkpoint_cannot_hold_is_refused_by_its_name(self):
        wrong = {
            "object": (object(), "a object has no form"),
            "numpy of objects": (numpy.array([object()]), "no checkpoint has arrays of object"),
            "numpy of texts": (numpy.array(["x"]), "no checkpoint has arrays of <U1"),
            "big-endian": (numpy.arange(3, dtype=">i4"), "in another order"),
            "masked": (numpy.ma.masked_array([1, 2], [True, False]), "a MaskedArray may be more"),
            "subclass": (torch.ones(2).as_subclass(forms.Subclass), "a Subclass may be more"),
            "named tuple": (Pair(1, 2), "a Pair has no form"),
            **{name: (tensor, ".") for name, (tensor, _) in forms.without_values().items()},
        }
        for name, (value, reason) in wrong.items():
            with self.subTest(name), self.assertRaisesRegex((TypeError, ValueError), f"^x.w: .*{reason}"):
                fsdp_checkpoint.save(self.path(), {"x": {"w": value, "fine": numpy.ones(2)}})
        with self.assertRaisesRegex(ValueError, "a.b is the name of two values"):
            fsdp_checkpoint.save(self.path(), {"a.b": 1, "a": {"b": 2}})
        with self.assertRaisesRegex(TypeError, "x: the key .* is neither"):
            fsdp_checkpoint.save(self.path(), {"x": {(1, 2): numpy.ones(2)}})
        with self.assertRaisesRegex(TypeError, "a list was given"):
            fsdp_checkpoint.save(self.path(), [1])
        self.assertEqual(os.listdir(self.root), [])

    def test_what_is_there_is_replaced_only_if_that_is_asked_for(self):
        fsdp_checkpoint.save(self.root + "/best", {"a": 1})
        with self.assertRaisesRegex(FileExistsError, "overwrite=True replaces it"):
            fsdp_checkpoint.save(self.root + "/best", {"a": 2})
        self.assertEqual(fsdp_checkpoint.load(self.root + "/best"), {"a": 1})
        fsdp_checkpoint.save(self.root + "/best", {"a": 2}, overwrite=True)
        self.assertEqual(fsdp_checkpoint.load(self.root + "/best"), {"a": 2})
        self.assertEqual(os.listdir(self.root), ["best"])

    def test_numpy_is_enough(self):
        code = (
            "import sys, importlib.abc\n"
            "class NoTorch(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'torch': raise ImportError(name)\n"
            "sys.meta_path.insert(0, NoTorch())\n"
            "import numpy, fsdp_checkpoint\n"
            "state = {'model': {'w': numpy.arange(6.0).reshape(2, 3)}, 'step': 3, 'pair': (1, 2)}\n"
            "fsdp_checkpoint.save(sys.argv[1], state)\n"
            "got = fsdp_checkpoint.load(sys.argv[1])\n"
            "assert got['step'] == 3 and got['pair'] == (1, 2) and (got['model']['w'] == state['model']['w']).all()\n"
            "assert 'torch' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code, self.path()], check=True)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""State dicts as people nest them: the model is a model in the checkpoint, and the optimizer its optimizer."""

import pickle
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

import fsdp_checkpoint
from cases import Case, same
from fsdp_checkpoint._torch_layout import Layout, layout_of
from fsdp_checkpoint.torch import Reader, Writer

MODEL = ["0.weight", "0.bias", "2.weight"]
GROUPS = [("param_groups", 0, "lr"), ("param_groups", 0, "params")]
STATES = [("state", name, "exp_avg") for name in MODEL]
FLAT = [(f"state.{name}.exp_avg",) for name in MODEL] + [(f"param_groups.{name}.lr",) for name in MODEL]


def under(prefix, paths):
    return [prefix + path for path in paths]


class LayoutTest(unittest.TestCase):
    def test_structure_decides(self):
        model = [(name,) for name in MODEL]
        optim = STATES + GROUPS
        for paths, wanted in (
            (under(("model",), model) + under(("optim",), optim), (("model",), ("optim",))),
            (under(("app", "model"), model) + under(("app", "optim"), optim), (("app", "model"), ("app", "optim"))),
            (model + under(("optimizer",), FLAT) + [("train_state", "step")], ((), ("optimizer",))),
            (model + FLAT, ((), ())),
            (under(("net",), model) + under(("opt",), optim) + [("epoch",)], (("net",), ("opt",))),
            (under(("model",), model) + under(("ema",), model) + under(("optim",), optim), (("model",), ("optim",))),
            (under(("gen",), model) + under(("dis",), model), (None, None)),
            (under(("a",), optim) + under(("b",), optim) + under(("model",), model), (("model",), None)),
            (model, ((), None)),
            (under(("state_dict", "model"), model), (("state_dict", "model"), None)),
            (model + [("scheduler", "last")], ((), None)),
        ):
            tensors = [path for path in paths if path[-1] in MODEL or str(path[-1]).endswith("exp_avg")]
            values = [path for path in paths if path not in tensors]
            self.assertEqual(layout_of(tensors, values), Layout(*wanted), paths)


class NestingTest(Case):
    def test_a_model_and_its_optimizer_are_found_under_any_names(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        weights, nested = get_state_dict(model, optimizer)
        _, flat = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        layouts = {
            "tutorial": {"app": {"model": weights, "optim": nested}},
            "torchtitan": {**weights, "optimizer": flat, "train_state": {"step": 3}, "lr_scheduler": {"last_epoch": 3}},
            "flattened beside the model": {**weights, **flat},
            "other names": {"net": weights, "opt": nested, "epoch": 3},
        }
        for name, state in layouts.items():
            path = f"{self.root}/{name}"
            dcp.save(state, storage_writer=Writer(path))
            with fsdp_checkpoint.open(path) as checkpoint:
                got = checkpoint.state_dict()
                self.assertEqual(sorted(got), sorted(weights), name)
                self.assertTrue(all(same(got[key], weights[key]) for key in weights), name)
                self.assertIn("optim/state/0.weight/exp_avg", list(checkpoint), name)
                self.assertIn('"lr": 0.001', checkpoint.texts["optim/param_groups"], name)
                self.assertFalse([key for key in checkpoint if key.startswith("extra/")], name)
            again = torch.utils._pytree.tree_map(lambda x: torch.zeros_like(x) if torch.is_tensor(x) else x, state)
            dcp.load(again, storage_reader=Reader(path))
            pairs = zip(*(torch.utils._pytree.tree_leaves(x) for x in (state, again)))
            self.assertTrue(all(same(a, b) if torch.is_tensor(a) else a == b for a, b in pairs), name)


class MapTest(Case):
    """`layout=`, as `ckpt --map` has it: two models, which structure does not tell apart."""

    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        self.nets = {"generator": torch.nn.Linear(3, 4), "critic": torch.nn.Linear(4, 1)}
        state = {name: net.state_dict() for name, net in self.nets.items()}
        for name, net in self.nets.items():
            optimizer = torch.optim.AdamW(net.parameters())
            net(torch.ones(net.in_features)).sum().backward()
            optimizer.step()
            state["opt_" + name] = optimizer.state_dict()
        self.gan = self.root + "/gan.pt"
        torch.save(state, self.gan)

    def check(self, got, prefix="", name="generator"):
        wanted = self.nets[name].state_dict()
        self.assertEqual(sorted(got), sorted(prefix + key for key in wanted))
        self.assertTrue(all(same(got[prefix + key], wanted[key]) for key in wanted))

    def test_a_layout_says_which_branch_is_the_model(self):
        roles = {"critic": "model", "opt_critic": "optim"}
        for layout in (roles, [f"{branch}={role}" for branch, role in roles.items()]):
            with fsdp_checkpoint.open(self.gan, layout=layout) as checkpoint:
                self.check(checkpoint.state_dict(), name="critic")
                self.assertIn("optim/state/weight/exp_avg", checkpoint)
                self.assertIn("critic", " ".join(checkpoint.notes))
        with fsdp_checkpoint.open(self.gan, layout="generator=model.g") as checkpoint:
            self.check(checkpoint.state_dict(), "g.")
            with pickle.loads(pickle.dumps(checkpoint)) as again:
                self.check(again.state_dict(), "g.")

    def test_reader_and_convert_take_a_layout(self):
        wanted = {"model": {name: torch.zeros_like(t) for name, t in self.nets["generator"].state_dict().items()}}
        dcp.load(wanted, storage_reader=Reader(self.gan, layout={"generator": "model"}))
        self.check(wanted["model"])
        made = self.root + "/g.safetensors"
        fsdp_checkpoint.convert(self.gan, made, layout={"generator": "model"}, model_only=True)
        with fsdp_checkpoint.open(made) as checkpoint:
            self.check(checkpoint.state_dict())

    def test_verify_and_diff_take_a_layout(self):
        made = self.root + "/g.safetensors"
        fsdp_checkpoint.convert(self.gan, made, layout={"generator": "model"}, model_only=True)
        fsdp_checkpoint.verify(self.gan, layout={"generator": "model"})
        self.assertEqual(fsdp_checkpoint.diff(self.gan, made, layout={"generator": "model"}, model_only=True), [])
        self.assertEqual(fsdp_checkpoint.diff(made, self.gan, layout="generator=model", model_only=True), [])
        self.assertTrue(fsdp_checkpoint.diff(self.gan, made, layout={"critic": "model"}, model_only=True))
        self.assertTrue(fsdp_checkpoint.diff(self.gan, made, layout={"generator": "model"}))

    def test_a_layout_that_cannot_be_is_refused_by_its_name(self):
        wrong = {
            "generator": 'layout: "generator", expected FROM=ROLE',
            "generator=weights": 'layout: "generator=weights", expected',
            "netG=model": 'layout has "netG"',
        }
        for layout, message in wrong.items():
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, message):
                fsdp_checkpoint.open(self.gan, layout=layout)
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, message):
                fsdp_checkpoint.convert(self.gan, self.root + "/never", layout=layout)
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, message):
                fsdp_checkpoint.verify(self.gan, layout=layout)
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, message):
                fsdp_checkpoint.diff(self.gan, self.gan, layout=layout)
        fsdp_checkpoint.convert(self.gan, self.root + "/x.safetensors", layout={"critic": "model"}, model_only=True)
        with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, "layout is for torch files and DCP directories"):
            fsdp_checkpoint.open(self.root + "/x.safetensors", layout={"critic": "model"})
        with self.assertRaisesRegex(ValueError, "has a line break"):
            fsdp_checkpoint.open(self.gan, layout={"a\nb": "model"})
        with self.assertRaisesRegex(TypeError, "layout: 5 is not a str"):
            fsdp_checkpoint.open(self.gan, layout=[5])

    def test_what_exists_is_refused_with_the_argument_that_replaces_it(self):
        made = self.root + "/made.pt"
        fsdp_checkpoint.convert(self.gan, made, layout="generator=model")
        with self.assertRaisesRegex(FileExistsError, "exists; overwrite=True replaces it"):
            fsdp_checkpoint.convert(self.gan, made, layout="generator=model")
        fsdp_checkpoint.convert(self.gan, made, layout="generator=model", overwrite=True)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The whole optimizer crosses: Writer, Reader, ckpt's conversions, torch.load and torch's own DCP, each to each. After
a load the next step gives the weights that the program which saved gets, in every bit."""

import copy
import inspect
import itertools
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import fsdp_checkpoint
from cases import Case, same
from fsdp_checkpoint.torch import Reader, Writer


def optimizers():
    """Name to a function that makes the optimizer of some groups; every class of torch.optim that DCP can save."""
    made = {
        "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1),
        "Adam amsgrad": lambda groups: torch.optim.Adam(groups, amsgrad=True),
        "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
        "SGD momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    }
    for name in ("Adagrad", "RMSprop", "NAdam", "RAdam", "Adadelta", "ASGD", "Rprop", "Adamax", "Adafactor"):
        if hasattr(torch.optim, name):
            made[name] = getattr(torch.optim, name)
    if hasattr(torch.optim, "Muon"):
        made["Muon"] = lambda groups: torch.optim.Muon(
            [{"params": [p], "weight_decay": 0.1 * i} for i, p in enumerate(groups[0]["params"])]  # of two dimensions
        )
    if "capturable" in inspect.signature(torch.optim.AdamW).parameters:
        made["AdamW with lr as a tensor"] = lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(0.01))
    return made


class Trained:
    """A model and its optimizer, of two groups with other options; the last layer is frozen, and with `unused` one
    parameter never has a gradient, so that it has no state."""

    def __init__(self, make, seed, unused=False):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 2))
        self.model[3].requires_grad_(False)
        if unused:
            self.model.unused = nn.Parameter(torch.ones(2))
        weights = [p for p in self.model.parameters() if p.requires_grad and p.dim() == 2]
        others = [p for p in self.model.parameters() if p.requires_grad and p.dim() != 2]
        self.optimizer = make([{"params": weights}, {"params": others, "weight_decay": 0.0}])

    def step(self, seed):
        torch.manual_seed(seed)
        # A forward of another input each step; `unused` takes no part.
        self.model(torch.randn(4, 5)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self, **options):
        model, optim = get_state_dict(self.model, self.optimizer, options=StateDictOptions(**options))
        return {"model": model, "optim": optim}

    def take(self, state, **options):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
            options=StateDictOptions(**options),
        )


class OptimizerTest(Case):
    def trained(self, make, **arguments):
        trained = Trained(make, seed=1, **arguments)
        for seed in range(3):
            trained.step(seed)
        return trained

    def check_continues(self, saved, make, load, label, strict=True, **options):
        """`load` fills a state; a program that takes it continues as `saved` does."""
        wanted, other = copy.deepcopy(saved), Trained(make, seed=2, unused=hasattr(saved.model, "unused"))
        other.step(9)  # its state is there, and wrong
        state = other.state(**options)
        other.take(load(state), strict=strict, **options)
        for seed in (5, 6):
            wanted.step(seed)
            other.step(seed)
        for (name, a), (_, b) in zip(wanted.model.named_parameters(), other.model.named_parameters()):
            self.assertTrue(same(a, b), f"{label}: {name} after the next steps")

    @staticmethod
    def loaded(reader):
        def load(state):
            dcp.load(state, storage_reader=reader)
            return state

        return load

    def test_every_optimizer_continues_from_what_writer_saved(self):
        for name, make in optimizers().items():
            saved = self.trained(make)
            path = f"{self.root}/{name}"
            dcp.save(saved.state(), storage_writer=Writer(path))
            self.check_continues(saved, make, self.loaded(Reader(path)), name)

    def test_every_optimizer_goes_from_writer_to_torch(self):
        for name, make in optimizers().items():
            saved = self.trained(make)
            path = f"{self.root}/{name}"
            dcp.save(saved.state(), storage_writer=Writer(path))
            fsdp_checkpoint.convert(path, path + ".pt")
            fsdp_checkpoint.convert(path, path + " dcp", to="dcp")
            loaded = torch.load(path + ".pt", weights_only=True)
            self.assertEqual(sorted(loaded), ["model", "optim"], name)
            self.check_continues(saved, make, lambda _: loaded, name + ", .pt")
            self.check_continues(saved, make, self.loaded(dcp.FileSystemReader(path + " dcp")), name + ", DCP")

    def test_every_optimizer_comes_from_torch_by_reader(self):
        for name, make in optimizers().items():
            saved = self.trained(make)
            path = f"{self.root}/{name}"
            dcp.save(saved.state(), storage_writer=dcp.FileSystemWriter(path + " dcp"))
            torch.save(saved.state(), path + ".pt")
            fsdp_checkpoint.convert(path + " dcp", path + " ours")
            for source in (" dcp", ".pt", " ours"):
                self.check_continues(saved, make, self.loaded(Reader(path + source)), name + source)

    def test_a_flattened_state_dict_is_the_same_checkpoint(self):
        make = optimizers()["AdamW"]
        saved = self.trained(make)
        flat = {"flatten_optimizer_state_dict": True}
        dcp.save(saved.state(), storage_writer=Writer(self.root + "/nested"))
        dcp.save(saved.state(**flat), storage_writer=Writer(self.root + "/flat"))
        fsdp_checkpoint.convert(self.root + "/flat", self.root + "/converted")
        for source, options in itertools.product(("/nested", "/flat", "/converted"), ({}, flat)):
            reader = Reader(self.root + source, **options)
            self.check_continues(saved, make, self.loaded(reader), f"{source} {options}", **options)

    def test_an_optimizer_under_another_name_is_flattened_there(self):
        make, flat = optimizers()["AdamW"], {"flatten_optimizer_state_dict": True}
        saved = self.trained(make)
        state = saved.state()
        dcp.save({"model": state["model"], "optimizer": state["optim"]}, storage_writer=Writer(self.path()))

        def load(state):
            wanted = {"model": state["model"], "optimizer": state["optim"]}
            dcp.load(wanted, storage_reader=Reader(self.path(), **flat))
            return {"model": wanted["model"], "optim": wanted["optimizer"]}

        self.check_continues(saved, make, load, "optimizer", **flat)

    def test_a_parameter_without_state_has_none_afterwards(self):
        make = optimizers()["AdamW"]
        saved = self.trained(make, unused=True)
        dcp.save(saved.state(), storage_writer=Writer(self.path()))
        self.check_continues(saved, make, self.loaded(Reader(self.path())), "unused", strict=False)

    def test_state_that_is_no_tensor_or_nested_goes_to_torch_in_its_place(self):
        # As SparseAdam, which keeps its step as a number, Shampoo and 8-bit optimizers.
        w = {"step": 3, "exp_avg": torch.ones(2), "kind": "a/b", "GG": [torch.zeros(2), torch.ones(1)]}
        w["quant"] = {"a.b": torch.tensor(1.5), "absmax": torch.full((2,), 0.5)}
        groups = [{"lr": 0.1, "betas": (0.9, 0.99), "params": ["w"]}]
        state = {"model": {"w": torch.ones(2)}, "optim": {"state": {"w": w}, "param_groups": groups}}
        dcp.save(state, storage_writer=Writer(self.root + "/dcp.save"))
        fsdp_checkpoint.save(self.root + "/save", state)
        for name in ("dcp.save", "save"):
            path = f"{self.root}/{name}"
            fsdp_checkpoint.convert(path, path + ".pt")
            loaded = torch.load(path + ".pt", weights_only=True)
            self.assertEqual(sorted(loaded), ["model", "optim"], name)
            got = loaded["optim"]["state"]["w"]
            self.assertEqual(sorted(got), sorted(w), name)
            self.assertEqual(repr({key: got[key] for key in w}), repr(w), name)
            self.assertEqual(repr(fsdp_checkpoint.load(path)["optim"]["state"]["w"]["step"]), "3", name)
        wanted = copy.deepcopy(state)
        wanted["optim"]["state"]["w"].update(step=0, kind="")
        wanted["optim"]["state"]["w"]["GG"][1].zero_()
        dcp.load(wanted, storage_reader=Reader(self.root + "/dcp.save"))
        self.assertEqual(repr(wanted), repr(state))

    def test_a_number_in_the_state_becomes_what_the_state_dict_to_load_has(self):
        names = ("Writer", ".pt", "dcp", "ours", "again.pt")
        for saved, wanted in itertools.product((3, 2.5, torch.tensor(3.0)), (0, 0.0, torch.tensor(7.0))):
            root = f"{self.root}/{type(saved).__name__}{saved}{type(wanted).__name__}"
            groups = [{"lr": 0.1, "params": ["w"]}]
            state = {"model": {"w": torch.ones(2)}}
            state["optim"] = {"state": {"w": {"step": saved, "m": torch.ones(2)}}, "param_groups": groups}
            dcp.save(state, storage_writer=Writer(root + "Writer"))
            torch.save(state, root + ".pt")
            dcp.save(state, storage_writer=dcp.FileSystemWriter(root + "dcp"))
            fsdp_checkpoint.convert(root + ".pt", root + "ours")
            fsdp_checkpoint.convert(root + "Writer", root + "again.pt")
            for name in names:
                other = copy.deepcopy(state)
                place = other["optim"]["state"]["w"]
                place["step"] = given = copy.deepcopy(wanted)
                dcp.load(other, storage_reader=Reader(root + name))
                label = f"{name}: {saved!r} for {wanted!r}: {place['step']!r}"
                self.assertEqual(float(place["step"]), float(saved), label)
                if isinstance(wanted, torch.Tensor):
                    self.assertIs(place["step"], given, label)
                elif saved != 2.5:
                    self.assertIs(type(place["step"]), type(wanted), label)

    def test_sparse_adam_continues_from_files_of_torch(self):
        def trained(seed, steps):
            torch.manual_seed(seed)
            model = nn.Embedding(7, 3, sparse=True)
            optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
            for step in range(steps):
                train(model, optimizer, step)
            return model, optimizer

        def train(model, optimizer, step):
            optimizer.zero_grad()
            model(torch.tensor([step, 3, 5])).square().sum().backward()
            optimizer.step()

        def by_name(model, optimizer):
            optim = optimizer.state_dict()
            groups = [{**group, "params": ["weight"]} for group in optim["param_groups"]]
            state = {"weight": optim["state"][0]}
            return {"model": model.state_dict(), "optim": {"state": state, "param_groups": groups}}

        model, optimizer = trained(1, 3)
        self.assertIs(type(optimizer.state_dict()["state"][0]["step"]), int)
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, self.root + "/m.pt")
        dcp.save(by_name(model, optimizer), storage_writer=dcp.FileSystemWriter(self.root + "/dcp"))
        dcp.save(by_name(model, optimizer), storage_writer=Writer(self.root + "/writer"))
        fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/ours")
        for source in ("m.pt", "dcp", "writer", "ours"):
            other, others = trained(2, 1)
            state = by_name(other, others)
            dcp.load(state, storage_reader=Reader(f"{self.root}/{source}"))
            state["optim"]["state"] = {0: state["optim"]["state"]["weight"]}
            state["optim"]["param_groups"][0]["params"] = [0]
            other.load_state_dict(state["model"])
            others.load_state_dict(state["optim"])
            self.assertIs(type(others.state_dict()["state"][0]["step"]), int, source)
            wanted, optimizers_of_wanted = copy.deepcopy((model, optimizer))
            for step in (4, 5):
                train(wanted, optimizers_of_wanted, step)
                train(other, others, step)
            self.assertTrue(same(wanted.weight, other.weight), source)

    def test_hyperparameters_of_every_form_cross_each_way(self):
        group = {
            "params": ["w"],
            "lr": torch.tensor(0.1, dtype=torch.float64),
            "betas": (torch.tensor(0.9), 0.95),
            "etas": (0.5, 1.2),
            "scale": torch.arange(6.0).reshape(2, 3),
            "half": torch.tensor(1.5, dtype=torch.bfloat16),
            "key": (torch.tensor(3), (2,)),
            "list": [torch.tensor(1.0), torch.tensor(2.0)],
            "nested": {"a": 1, "b": {"c": (1, 2), "t": torch.ones(2)}},
            "inf": float("inf"),
            "none": None,
        }
        optim = {"state": {"w": {"m": torch.ones(2)}}, "param_groups": [group, {"params": ["v"], "lr": 1.0}]}
        state = {"model": {"w": torch.ones(2), "v": torch.ones(2)}, "optim": optim}
        dcp.save(state, storage_writer=Writer(self.root + "/writer"))
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.root + "/dcp"))
        torch.save(state, self.root + "/file.pt")
        fsdp_checkpoint.save(self.root + "/save", state)
        for source in ("writer", "dcp", "file.pt", "save"):
            fsdp_checkpoint.convert(f"{self.root}/{source}", f"{self.root}/{source}.pt")
            fsdp_checkpoint.convert(f"{self.root}/{source}", f"{self.root}/{source}.dcp", to="dcp")
            for name in (source, source + ".pt", source + ".dcp"):
                path = f"{self.root}/{name}"
                got = [fsdp_checkpoint.load(path, framework="torch")]
                readers = [Reader(path), *([dcp.FileSystemReader(path)] if name.endswith("dcp") else [])]
                for reader in readers:
                    got.append(copy.deepcopy(state))
                    for value in torch.utils._pytree.tree_leaves(got[-1]):
                        if torch.is_tensor(value):
                            value.zero_()
                    got[-1]["optim"]["param_groups"][0].update(betas=0, etas=0, key=0, inf=0, none=0)
                    got[-1]["optim"]["param_groups"][0]["nested"]["a"] = 0
                    dcp.load(got[-1], storage_reader=reader)
                if name.endswith(".pt"):
                    got.append(torch.load(path, weights_only=True))
                for loaded in got:
                    for wanted, found in zip(optim["param_groups"], loaded["optim"]["param_groups"]):
                        self.assertEqual(repr({key: found[key] for key in wanted}), repr(wanted), name)

    def test_the_text_has_lists_where_train_gpt_reads_numbers(self):
        group = {"params": ["w"], "betas": (0.9, 0.95), "eps": (None, 1e-3), "ns_coefficients": (1.0, 2.0, 3.0)}
        group["x"] = (1,)
        state = {"model": {"w": torch.ones(2)}, "optim": {"state": {}, "param_groups": [group]}}
        dcp.save(state, storage_writer=Writer(self.path()))
        with fsdp_checkpoint.open(self.path()) as checkpoint:
            text = checkpoint.texts["optim/param_groups"]
        self.assertIn('"betas": [0.9, 0.95], "eps": [null, 0.001], "ns_coefficients": [1.0, 2.0, 3.0], "x": {', text)
        self.assertEqual(fsdp_checkpoint.load(self.path())["optim"]["param_groups"], [group])

    def test_two_optimizers_come_from_torchs_own_files_under_their_names(self):
        def optim(parameter, lr):
            state = {parameter: {"step": torch.tensor(3.0), "m": torch.full((2,), lr)}}
            return {"state": state, "param_groups": [{"params": [parameter], "lr": lr, "betas": (lr, 0.5)}]}

        model = {"w": torch.ones(2), "a.b": torch.ones(2)}
        state = {"model": model, "muon": optim("w", 0.1), "adamw": optim("a.b", 0.2)}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(self.root + "/dcp"))
        torch.save(state, self.root + "/file.pt")
        dcp.save(state, storage_writer=Writer(self.root + "/writer"))
        fsdp_checkpoint.convert(self.root + "/dcp", self.root + "/ours")
        flat = {"adamw": {"state.a.b.m": torch.zeros(2), "param_groups.a.b.lr": 0.0}}
        for source in ("dcp", "file.pt", "writer", "ours"):
            wanted = {"model": model, "muon": optim("w", 0.0), "adamw": optim("a.b", 0.0)}
            dcp.load(wanted, storage_reader=Reader(f"{self.root}/{source}"))
            self.assertEqual(repr(wanted), repr(state), source)
            if source != "writer":
                dcp.load(flat, storage_reader=Reader(f"{self.root}/{source}", flatten_optimizer_state_dict=True))
                self.assertEqual(flat["adamw"]["param_groups.a.b.lr"], 0.2)
                self.assertTrue((flat["adamw"]["state.a.b.m"] == 0.2).all())

    def test_other_branches_of_the_program_are_dicts_and_lists_in_torchs_files(self):
        def plain(value):
            if isinstance(value, dict):
                return {key: plain(member) for key, member in value.items()}
            if isinstance(value, (list, tuple)):
                return [plain(item) for item in value]
            return value.tolist() if isinstance(value, torch.Tensor) else value

        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        first = torch.optim.AdamW(model[0].parameters())
        second = torch.optim.SGD(model[1].parameters(), momentum=0.9)
        schedules = [torch.optim.lr_scheduler.ConstantLR(first), torch.optim.lr_scheduler.StepLR(first, 2)]
        scheduler = torch.optim.lr_scheduler.SequentialLR(first, schedules, [1])
        model(torch.ones(1, 3)).sum().backward()
        for step in (first, second, scheduler):
            step.step()
        weights, state = get_state_dict(model, first)
        rng = {"cpu": torch.get_rng_state(), "list": [torch.ones(2), 3]}
        saved = {"model": weights, "optim": state, "second": get_state_dict(model, second)[1], "rng": rng,
                 "scheduler": scheduler.state_dict()}
        dcp.save(saved, storage_writer=Writer(self.root + "/ours"))
        fsdp_checkpoint.convert(self.root + "/ours", self.root + "/ours.pt")
        loaded = torch.load(self.root + "/ours.pt", weights_only=True)
        self.assertEqual(plain(loaded), plain(saved))

    def test_hyperparameters_keep_their_types(self):
        saved = self.trained(optimizers()["AdamW"])
        dcp.save(saved.state(), storage_writer=Writer(self.path()))
        state = Trained(optimizers()["AdamW"], seed=2).state()
        dcp.load(state, storage_reader=Reader(self.path()))
        for group, wanted in zip(state["optim"]["param_groups"], saved.state()["optim"]["param_groups"]):
            self.assertEqual(group, wanted)
            self.assertIs(type(group["betas"]), tuple)

    def test_values_of_each_kind_come_back_equal_and_of_the_same_type(self):
        values = {
            "tuple": (1, (2.5, "x")),
            "text": "plain",
            "number as text": "17",
            "special": [float("inf"), -0.0, 0.0],
            "bytes": b"\x00\xff",
            "set": {1, 2},
            "dtype": torch.bfloat16,
            "big": [2**63, -(2**63), 2**64 - 1, 2**80],
            "none": None,
        }
        dcp.save({"w": torch.ones(2), **values}, storage_writer=Writer(self.path()))
        state = {"w": torch.zeros(2), **{name: 0 for name in values}}
        dcp.load(state, storage_reader=Reader(self.path()))
        for name, value in values.items():
            self.assertEqual((repr(state[name]), type(state[name])), (repr(value), type(value)), name)


if __name__ == "__main__":
    unittest.main()

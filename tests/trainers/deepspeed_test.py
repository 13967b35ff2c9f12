# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed on CPUs: its checkpoints are read, and an engine loads ours and trains on."""

import json
import os
import unittest

import torch

import trainers

_RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "deepspeed_rank.py")

# Sizes that neither ranks nor DeepSpeed's alignment divide.
SIZES = {"vocabulary": 23, "dim": 10, "hidden": 7, "layers": 2, "tied": True}


class DeepSpeedTest(trainers.TrainerCase):
    def engine(self, action, root, world, **case):
        case = {**SIZES, "dtype": "float32", "seed": 1, "groups": 2, **case, "root": root}
        case.update(live=self.path("live.pt"), losses=self.path("losses.json"))
        trainers.ranks(_RANK, world, action, json.dumps(case))
        with open(case["losses"], encoding="utf-8") as file:
            return torch.load(case["live"], weights_only=True), json.load(file)

    def check_is_read(self, root, live, world):
        summary = self.inspect(root)
        self.assertEqual((summary["format"], summary["step"], summary["world_size"]), ("deepspeed", 3, world))
        read = self.read(root)
        model = {name: read["model"][name] for name in live["fp32"]}
        self.assert_all_same(model, live["fp32"])
        for state in live.keys() - {"fp32"}:
            found = {name: value[state] for name, value in read["optim"]["state"].items()}
            self.assert_all_same(found, live[state])
        self.assertEqual(read["consumed_samples"], 42)

    def check_goes_on(self, root, losses, world, stage, **case):
        """An engine loads the universal checkpoint `root` and has the same next losses."""
        loaded, found = self.engine("load", root, world, stage=stage, seed=99, **case)
        for expected, loss in zip(losses, found):
            self.assertAlmostEqual(loss, expected, delta=1e-6 * abs(expected))
        return loaded

    def test_a_fresh_checkpoint_of_each_stage_is_read_and_goes_on_in_another(self):
        for stage, world, other_stage, other_world in [(1, 4, 2, 2), (2, 2, 1, 4), (2, 1, 3, 2), (3, 2, 1, 1)]:
            with self.subTest(stage=stage, world=world, other_stage=other_stage, other_world=other_world):
                root = self.path(f"zero{stage}_{world}")
                universal = self.path(f"universal{stage}_{world}")
                # ZeRO 3 loads the options of the first group for all.
                groups = 1 if other_stage == 3 else 2
                live, losses = self.engine("save", root, world, stage=stage, groups=groups)
                self.check_is_read(root, live, world)
                trainers.ckpt("convert", root, universal, "--to=deepspeed")
                self.check_is_read(universal, live, world)
                loaded = self.check_goes_on(universal, losses, other_world, other_stage, groups=groups, note="fresh")
                for state, tensors in live.items():
                    self.assert_all_same(loaded[state], tensors)

    def test_low_precision_and_its_float32_copies(self):
        """Of bfloat16: DeepSpeed has no float16 on CPUs."""
        for case in [
            {"stage": 1, "dtype": "bfloat16", "grad_accum_dtype": "fp32"},
            {"stage": 2, "dtype": "bfloat16"},
            {"stage": 3, "dtype": "bfloat16", "groups": 1},
        ]:
            with self.subTest(**case):
                name = "_".join(map(str, case.values()))
                root, universal = self.path(name), self.path(name + "_universal")
                live, losses = self.engine("save", root, 2, **case)
                self.check_is_read(root, live, 2)
                trainers.ckpt("convert", root, universal, "--to=deepspeed")
                loaded = self.check_goes_on(universal, losses, 2, **case)
                for state, tensors in live.items():
                    self.assert_all_same(loaded[state], tensors)

    def test_the_state_of_an_elastic_checkpoint(self):
        for stage, world in [(1, 3), (2, 2)]:
            with self.subTest(stage=stage, world=world):
                root = self.path(f"elastic{stage}")
                live, _ = self.engine("save", root, world, stage=stage, elastic=True)
                self.check_is_read(root, live, world)

    def test_a_checkpoint_of_pytorch_goes_on_in_deepspeed(self):
        """As PyTorch alone goes on."""
        import deepspeed_rank

        torch.manual_seed(5)
        model = deepspeed_rank.Net(*SIZES.values())
        optimizer = torch.optim.AdamW(deepspeed_rank.groups_of(model), lr=1e-2, betas=(0.9, 0.95))
        losses = []
        for step in range(deepspeed_rank.STEPS + deepspeed_rank.MORE):
            if step == deepspeed_rank.STEPS:
                names = {p: n for n, p in model.named_parameters()}
                state = optimizer.state_dict()
                for group, own in zip(state["param_groups"], optimizer.param_groups):
                    group["param_names"] = [names[p] for p in own["params"]]
                saved = {"model": model.state_dict(), "optimizer": state, "global_step": step}
                torch.save(saved, self.path("torch.pt"))
            loss = model(deepspeed_rank.tokens_of(step, SIZES)).square().mean()
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        universal = self.path("universal")
        trainers.ckpt("convert", self.path("torch.pt"), universal, "--to=deepspeed")
        # A scheduler that PyTorch did not have would begin at a learning rate of 0.
        for stage, world in [(1, 1), (2, 2)]:
            with self.subTest(stage=stage, world=world):
                self.check_goes_on(universal, losses[deepspeed_rank.STEPS :], world, stage, scheduler=False)


if __name__ == "__main__":
    unittest.main()

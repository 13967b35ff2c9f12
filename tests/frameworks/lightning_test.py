# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer and Fabric are killed, continue and are converted as docs/frameworks.md says."""

import importlib.util
import os
import unittest

import fsdp_checkpoint
from runs import FrameworkCase, small_model

HAS_LIGHTNING = any(map(importlib.util.find_spec, ("lightning", "pytorch_lightning")))


@unittest.skipUnless(HAS_LIGHTNING, "neither lightning nor pytorch_lightning is installed")
class LightningTest(FrameworkCase):
    section = "Lightning"

    def test_a_killed_run_continues_on_other_ranks(self):
        killed, _ = self.run_page()
        self.assert_same_weights("model.safetensors", small_model("layers."))
        root = os.path.join(killed, "checkpoints")
        names = [os.path.basename(step.path) for step in fsdp_checkpoint.steps(root)]
        self.assertEqual(names, [f"epoch=0-step={step}.ckpt" for step in (3, 6, 9, 12)])
        # Nothing but our files, so that they can be pruned.
        fsdp_checkpoint.prune(root, keep_last=1)
        self.assertEqual(os.listdir(root), [names[-1]])


@unittest.skipUnless(HAS_LIGHTNING, "neither lightning nor lightning_fabric is installed")
class FabricTest(FrameworkCase):
    section = "Fabric"

    def test_a_killed_run_continues_on_other_ranks(self):
        killed, _ = self.run_page()
        self.assert_same_weights("model.safetensors", small_model())
        steps = fsdp_checkpoint.steps(os.path.join(killed, "checkpoints"))
        self.assertEqual([step.step for step in steps], [3, 6, 9, 12])

    @unittest.skipIf(importlib.util.find_spec("lightning") is None, "lightning is not installed")
    def test_all_that_fabric_takes_comes_back(self):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fabric_states.py")
        status, output, _ = self.launch(f"torchrun --nproc_per_node=2 {program} states", "states")
        self.assertEqual(status, 0, output)
        self.assertIn("everything is there", output)

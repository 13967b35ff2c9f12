# SPDX-License-Identifier: Apache-2.0
"""Accelerate with FSDP2 is killed, continues and is converted as docs/frameworks.md says."""

import importlib.util
import os
import unittest

import fsdp_checkpoint
from runs import FrameworkCase, small_model


@unittest.skipIf(importlib.util.find_spec("accelerate") is None, "accelerate is not installed")
class AccelerateTest(FrameworkCase):
    section = "Accelerate"

    def test_a_killed_run_continues_on_other_ranks(self):
        killed, _ = self.run_page()
        self.assert_same_weights("model.safetensors", small_model())
        for part in ("pytorch_model_fsdp_0", "optimizer_0"):
            path = os.path.join(killed, "checkpoints", "step-000012", part)
            with fsdp_checkpoint.open(path) as checkpoint:
                self.assertEqual((checkpoint.step, checkpoint.world_size), (12, 4), path)

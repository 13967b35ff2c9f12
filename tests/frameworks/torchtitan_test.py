# SPDX-License-Identifier: Apache-2.0
"""torchtitan's checkpointer is killed, continues and is converted as docs/frameworks.md says."""

import importlib.util
import os
import unittest

import fsdp_checkpoint
from runs import FrameworkCase, small_model


@unittest.skipIf(importlib.util.find_spec("torchtitan") is None, "torchtitan is not installed")
class TorchtitanTest(FrameworkCase):
    section = "torchtitan"

    def test_a_killed_run_continues_on_other_ranks(self):
        killed, _ = self.run_page()
        self.assert_same_weights("model.safetensors", small_model())
        steps = fsdp_checkpoint.steps(os.path.join(killed, "outputs", "checkpoint"))
        self.assertEqual([os.path.basename(step.path) for step in steps], ["step-3", "step-6", "step-9", "step-12"])

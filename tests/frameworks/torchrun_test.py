# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own under torchrun is killed, continues and is converted as docs/frameworks.md says."""

import os

import fsdp_checkpoint
from runs import FrameworkCase, small_model


class TorchrunTest(FrameworkCase):
    section = "torchrun"

    def test_a_killed_run_continues_on_other_ranks(self):
        killed, _ = self.run_page()
        self.assert_same_weights("model.safetensors", small_model())
        root = os.path.join(killed, "checkpoints")
        self.assertEqual([step.step for step in fsdp_checkpoint.steps(root)], [9, 12])
        fsdp_checkpoint.verify(fsdp_checkpoint.latest(root))

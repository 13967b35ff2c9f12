# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with FSDP2 is killed, continues and is converted as docs/frameworks.md says."""

import importlib.util
import os
import unittest

from runs import FrameworkCase


@unittest.skipIf(importlib.util.find_spec("transformers") is None, "transformers is not installed")
class TrainerTest(FrameworkCase):
    section = "Trainer"
    # As of `accelerate launch --use_fsdp --fsdp_version=2`.
    environment = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    }

    def test_a_killed_run_continues_on_other_ranks(self):
        killed, never_stopped = self.run_page()
        import torch
        from transformers import AutoModelForCausalLM

        tokens = torch.arange(16).reshape(1, 16)
        with torch.no_grad():
            a, b = (
                AutoModelForCausalLM.from_pretrained(os.path.join(path, "model"))(tokens).logits
                for path in (killed, never_stopped)
            )
        self.assertLess((a - b).abs().max().item(), 1e-2)
        self.assertGreater(a.abs().max().item(), 0.5)  # trained: at first it is nearly uniform

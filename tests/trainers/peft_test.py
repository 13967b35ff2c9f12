# SPDX-License-Identifier: Apache-2.0
"""PEFT: its adapters are merged as it merges them."""

import unittest

import safetensors.torch
import torch
import transformers
from peft import LoraConfig, get_peft_model

import trainers


class PeftTest(trainers.TrainerCase):
    def merged(self, name, **options):
        """What PEFT and `ckpt merge` make of a fresh adapter with values of chance."""
        torch.manual_seed(7)
        config = transformers.LlamaConfig(
            vocab_size=19,
            hidden_size=12,
            intermediate_size=20,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=False,
        )
        model = transformers.LlamaForCausalLM(config)
        base, adapter, out = self.path("base"), self.path(name), self.path(name + "_merged")
        model.save_pretrained(base)
        peft = get_peft_model(model, LoraConfig(**options))
        for parameter in peft.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.1)
        peft.save_pretrained(adapter)
        expected = peft.merge_and_unload().state_dict()
        self.assertIn("adapter", trainers.ckpt("inspect", adapter))
        trainers.ckpt("merge", base, adapter, out)
        return safetensors.torch.load_file(out + "/model.safetensors"), expected

    def test_kinds_of_lora(self):
        for name, options in {
            "plain": {"r": 3, "target_modules": ["q_proj", "down_proj"]},
            "rslora": {"r": 4, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
            "patterns": {
                "r": 2,
                "target_modules": ["q_proj", "v_proj", "up_proj"],
                "rank_pattern": {"v_proj": 5},
                "alpha_pattern": {"layers.1.mlp.up_proj": 9},
            },
            "saved": {"r": 2, "target_modules": ["o_proj"], "modules_to_save": ["lm_head"]},
        }.items():
            with self.subTest(name=name):
                found, expected = self.merged(name, **options)
                self.assertEqual(sorted(found), sorted(expected))
                for key, tensor in expected.items():
                    torch.testing.assert_close(found[key], tensor, rtol=1e-6, atol=1e-7, msg=key)


if __name__ == "__main__":
    unittest.main()

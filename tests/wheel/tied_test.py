# SPDX-License-Identifier: Apache-2.0
"""Tied names of Hugging Face directories are there, under each of their names."""

import json
import os
import unittest

import torch
import torch.distributed.checkpoint as dcp

import fsdp_checkpoint
from cases import Case, same
from fsdp_checkpoint.torch import Reader

HEAD = "lm_head.weight"


class TiedTest(Case):
    def model(self, config, *embeddings, head=False):
        """A directory with these tensors and config.json, and its state dict."""
        directory = f"{self.root}/{len(os.listdir(self.root))}"
        os.mkdir(directory)
        state = {name: torch.randn(7, 3) for name in embeddings}
        state["transformer.wpe.weight"] = torch.randn(5, 3)
        if head:
            state[HEAD] = torch.randn(7, 3)
        torch.save(state, directory + ".pt")
        fsdp_checkpoint.convert(directory + ".pt", directory + "/model.safetensors")
        with open(directory + "/config.json", "w") as file:
            file.write(config if isinstance(config, str) else json.dumps(config))
        return directory, state

    def test_a_tied_head_is_its_embedding(self):
        for config, embedding in (
            ({"architectures": ["GPT2LMHeadModel"]}, "transformer.wte.weight"),
            ({"architectures": ["GPT2LMHeadModel"], "tie_word_embeddings": True}, "transformer.wte.weight"),
            ({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}, "model.embed_tokens.weight"),
            ({"tie_word_embeddings": True}, "model.decoder.embed_tokens.weight"),
            ({"architectures": ["XForConditionalGeneration"], "text_config": {"tie_word_embeddings": True}},
             "language_model.model.embed_tokens.weight"),
        ):  # fmt: skip
            directory, state = self.model(config, embedding)
            with fsdp_checkpoint.open(directory) as checkpoint:
                got = checkpoint.state_dict()
                self.assertEqual(sorted(got), sorted([*state, HEAD]))
                self.assertIs(got[HEAD], got[embedding])
                self.assertTrue(same(got[HEAD], state[embedding]))
                self.assertEqual(checkpoint.aliases, {"model/" + HEAD: "model/" + embedding})
                self.assertEqual(checkpoint["model/" + HEAD].shape, (7, 3))
                self.assertIn(f"{HEAD}, which is in no file, is {embedding}: ", checkpoint.notes[-1])
            wanted = {"model": {name: torch.zeros(7, 3) for name in (HEAD, embedding)}}
            dcp.load(wanted, storage_reader=Reader(directory))
            self.assertTrue(same(wanted["model"][HEAD], state[embedding]))

    def test_the_names_that_save_model_of_safetensors_leaves_out_are_there(self):
        with open(self.root + "/shared.safetensors", "wb") as file:
            header = json.dumps(
                {
                    "__metadata__": {"format": "pt", HEAD: "wte.weight"},
                    "wte.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                }
            ).encode()
            file.write(len(header).to_bytes(8, "little") + header + torch.tensor([1.0, 2.0]).numpy().tobytes())
        with fsdp_checkpoint.open(self.root + "/shared.safetensors") as checkpoint:
            self.assertEqual(checkpoint.aliases, {"model/" + HEAD: "model/wte.weight"})
            self.assertEqual(checkpoint.state_dict()[HEAD].tolist(), [1, 2])

    def test_a_head_of_its_own_or_of_no_model_is_not_made_up(self):
        for config, embeddings, head in (
            ({"architectures": ["XForCausalLM"], "tie_word_embeddings": False}, ["model.embed_tokens.weight"], False),
            ({"architectures": ["XForCausalLM"], "tie_word_embeddings": True}, ["model.embed_tokens.weight"], True),
            ({"architectures": ["GPT2Model"], "tie_word_embeddings": True}, ["h.wte.weight"], False),
            ({"architectures": ["BertModel"]}, ["embeddings.word_embeddings.weight"], False),
            ({}, ["model.embed_tokens.weight"], False),
            ({"tie_word_embeddings": True}, [], False),
        ):
            directory, state = self.model(config, *embeddings, head=head)
            with fsdp_checkpoint.open(directory) as checkpoint:
                self.assertEqual(sorted(checkpoint.state_dict()), sorted(state), config)
                self.assertEqual((checkpoint.aliases, checkpoint.notes), ({}, []), config)

    def test_what_cannot_be_told_is_a_note(self):
        for config, embeddings, note in (
            ('{"tie_word', ["model.embed_tokens.weight"], "config.json is not read, so tied names are not known"),
            ([], ["model.embed_tokens.weight"], "config.json is not read, so tied names are not known"),
            ({"tie_word_embeddings": True}, ["a.embed_tokens.weight", "b.wte.weight"], "it may be any of a.embed_tok"),
        ):
            directory, state = self.model(config, *embeddings)
            with fsdp_checkpoint.open(directory) as checkpoint:
                self.assertEqual(sorted(checkpoint.state_dict()), sorted(state))
                self.assertIn(note, checkpoint.notes[-1])


if __name__ == "__main__":
    unittest.main()

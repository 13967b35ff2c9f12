# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with FSDP2, as `accelerate launch` configures it: saves every third step, continues from its
newest checkpoint.

    accelerate launch --use_fsdp --fsdp_version=2 --num_processes=2 examples/python/with_trainer.py output 20
"""

import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from fsdp_checkpoint.frameworks import storage

BATCH = 4  # the examples of one step, of all ranks together

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=32,
    tie_word_embeddings=False,
)


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step}: loss {float(logs['loss']):.8g}", flush=True)


def examples(count):
    tokens = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens.cumsum(1) % 64]


def main(output_dir, steps):
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    args = TrainingArguments(
        output_dir=output_dir,
        max_steps=steps,
        per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", 1)),
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=3,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=examples(16 * BATCH), callbacks=[Losses()])
    last = get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None
    with storage():
        trainer.train(resume_from_checkpoint=last)
    if trainer.is_world_process_zero():
        CONFIG.save_pretrained(output_dir)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

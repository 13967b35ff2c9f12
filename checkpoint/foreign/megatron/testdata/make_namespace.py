#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes namespace.pt, a rank's file with the args of Megatron-LM: python make_namespace.py (torch 2.11)."""
import argparse
import pathlib

import torch

args = argparse.Namespace(
    tensor_model_parallel_size=4, pipeline_model_parallel_size=2, expert_model_parallel_size=1,
    params_dtype=torch.bfloat16, lr=1e-4, save="out", data_path=None)
torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 12, "model": {"w": torch.ones(2)}},
           pathlib.Path(__file__).resolve().parent / "namespace.pt")

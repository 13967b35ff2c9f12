# SPDX-License-Identifier: Apache-2.0
"""What the tests of the wheel share: a directory for checkpoints, and the comparison of tensors in every bit."""

import os
import shutil
import tempfile
import unittest

import torch

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # of the ranks, which inherit it


def bits(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return tensor.flatten().view(torch.uint8) if tensor.numel() else torch.empty(0)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


class Case(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def path(self, step=1):
        return os.path.join(self.root, f"step-{step:08}")

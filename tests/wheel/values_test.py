# SPDX-License-Identifier: Apache-2.0
"""Values that are not tensors come back equal and of the same types: as texts, through Writer, Reader and ckpt."""

import collections
import math
import os
import sys
import unittest

import numpy
import torch
import torch.distributed.checkpoint as dcp

import fsdp_checkpoint
from fsdp_checkpoint._values import same, text_of, value_of_text
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cases import Case  # noqa: E402

# torch.load with weights_only takes all of these, and DCP takes each for one value: it divides dicts, also in lists.
VALUES = {
    "none": None,
    "list": [1, 2.5, None, True, "x"],
    "numbers": [1e15, 1e16, 1e-5, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 0.0],
    "special": [math.inf, -math.inf, math.nan],
    "integers": [2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**200],
    "tuple": (1, (2.5, "x"), ()),
    "pairs": ({30: 1, (1, 2): [None, True]}, {"__python__": "tuple", "items": []}, {}),
    "ordered": (collections.OrderedDict(b=1, a=2),),
    "counter": (collections.Counter({30: 2, 60: 1}),),
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "complex": 1.5 - 2j,
    "set": {1, 2},
    "size": torch.Size([2, 3]),
    "device": torch.device("cpu"),
    "dtype": torch.bfloat16,
    "texts": ["17", "1.50", "[1, 2]", "nul", "NaN", "", "h\u00e9", "a\nb", '"', "\x00"],
}
OTHERS = [
    frozenset({1, 2}),
    "\ud800",
    ["\ud800"],
    "a\0b",
    numpy.float64(0.5),
    numpy.bool_(True),
    (numpy.int64(3), numpy.float32(1.5)),
    {"state": numpy.arange(624, dtype="uint32"), "pos": 624},
    numpy.array(7),
    torch.strided,
]
STRINGS = ["1", "1.0", "1.50", "1E5", "-0", "[1]", "[1, 2]", "[1,2]", " 1", "1 ", "null", "nan", "NaN", "Infinity",
           "[NaN]", '"x"', '"1"', '"\\"1\\""', '{"a":1}', '{"a": 1}', '{"__python__":"tuple","items":[]}',
           '{"__python__":"of another release"}', "1" * 30, "1e999", "[" * 300 + "]" * 300, "[" * 5000]  # fmt: skip


class TextTest(unittest.TestCase):
    def test_the_text_of_a_value_is_that_value_again(self):
        for value in [*VALUES.values(), *OTHERS, *VALUES["texts"], *STRINGS]:
            text = text_of(value)
            self.assertIsNotNone(text, value)
            self.assertNotIn("\0", text)
            self.assertTrue(same(value_of_text(text), value), f"{value!r}: {text}")

    def test_a_value_without_a_text_has_none(self):
        class Number(int):
            pass

        nothing = (torch.ones(1), object(), range(3), Number(3), {"a": object()}, numpy.ones(3), numpy.datetime64("NaT"))
        for value in nothing:
            self.assertIsNone(text_of(value), value)

    def test_a_text_of_a_later_release_is_refused_where_it_is_inside_a_value(self):
        with self.assertRaisesRegex(ValueError, "no value that this release of fsdp_checkpoint reads"):
            value_of_text('{"__python__":"call","name":"torch.nn.Linear","items":[]}')


class ProgramsTest(Case):
    def check(self, got, label):
        for name, value in VALUES.items():
            self.assertTrue(same(got[name], value), f"{label}, {name}: {got[name]!r} and {value!r}")

    def test_what_writer_saves_is_loaded_by_reader_and_after_a_conversion_by_torch(self):
        state = {"model": {"w": torch.ones(2)}, **VALUES}
        dcp.save(state, storage_writer=Writer(self.path()))
        loaded = {"model": {"w": torch.zeros(2)}, **{name: 0 for name in VALUES}}
        dcp.load(loaded, storage_reader=Reader(self.path()))
        self.check(loaded, "Reader")
        fsdp_checkpoint.convert(self.path(), self.root + "/m.pt")
        self.check(torch.load(self.root + "/m.pt", weights_only=True), ".pt")
        fsdp_checkpoint.convert(self.path(), self.root + "/dcp", to="dcp")
        loaded = {name: 0 for name in VALUES}
        dcp.load(loaded, storage_reader=dcp.FileSystemReader(self.root + "/dcp"))
        self.check(loaded, "DCP")

    def test_the_texts_of_a_file_of_torch_are_its_values(self):
        torch.save({"model": {"w": torch.ones(2)}, **VALUES}, self.root + "/m.pt")
        fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/ours")
        for path in (self.root + "/m.pt", self.root + "/ours"):
            with fsdp_checkpoint.open(path) as checkpoint:
                self.check({name: value_of_text(checkpoint.texts["extra/" + name]) for name in VALUES}, path)


if __name__ == "__main__":
    unittest.main()

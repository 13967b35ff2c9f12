# SPDX-License-Identifier: Apache-2.0
"""Names, paths and integers reach the library as they are, or are refused."""

import ctypes
import os
import sys
import unittest

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import fsdp_checkpoint
from fsdp_checkpoint import _arguments, _library
from fsdp_checkpoint.torch import Reader, Writer

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cases import Case  # noqa: E402

INTEGERS = {ctypes.c_int32: 32, ctypes.c_int64: 64}
TEXTS = (ctypes.c_char_p, _arguments.PathText)


def structs(of=_arguments.Struct):
    return of.__subclasses__()


class LibraryTest(unittest.TestCase):
    """Every function and struct, so that one that is added is tested too."""

    def functions(self):
        for name, arguments in _library._CHECKED.items():
            kinds = {**dict.fromkeys(INTEGERS, 0), **dict.fromkeys(TEXTS, "x")}
            yield getattr(_library.library, name), name, arguments, [kinds.get(kind) for kind in arguments]

    def test_an_integer_that_c_would_cut_is_refused_by_every_function(self):
        for function, name, kinds, values in self.functions():
            for at, kind in enumerate(kinds):
                for bits in [INTEGERS[kind]] if kind in INTEGERS else []:
                    for number in (1 << bits, 1 << (bits - 1), -(1 << (bits - 1)) - 1):
                        with self.subTest(name), self.assertRaisesRegex(OverflowError, f"{number} is not an integer"):
                            function(*values[:at], number, *values[at + 1 :])

    def test_an_integer_that_c_would_cut_is_refused_by_every_struct(self):
        for struct in structs():
            for name, kind in struct._fields_:
                limit = 1 << INTEGERS.get(kind, 65) - 1
                made = struct()
                if kind in INTEGERS:
                    for fitting in (limit - 1, -limit, numpy.int8(-3)):
                        setattr(made, name, fitting)
                        self.assertEqual(getattr(made, name), fitting)
                if kind in INTEGERS or kind in (ctypes.c_void_p, ctypes.c_size_t):
                    for number in (limit, -limit - 1):
                        with self.subTest(f"{struct}.{name}"), self.assertRaisesRegex(OverflowError, name):
                            setattr(made, name, number)
                        with self.assertRaisesRegex(OverflowError, name):
                            struct(**{name: number})
        self.assertGreater(len(structs()), 5)
        with self.assertRaisesRegex(TypeError, "parity: 1.5 is not an integer"):
            _library.SaveOptions(parity=1.5)

    def test_a_text_with_a_nul_or_an_unpaired_surrogate_is_refused_by_every_function(self):
        for function, name, kinds, values in self.functions():
            for at, kind in enumerate(kinds):
                for wrong in ("a\0b", b"a\0b", "a\ud800") if kind in TEXTS else ():
                    with self.subTest(name), self.assertRaisesRegex(ValueError, "NUL|unpaired surrogate"):
                        function(*values[:at], wrong, *values[at + 1 :])

    def test_an_array_of_integers_is_refused_if_one_would_be_cut(self):
        self.assertEqual(list(_arguments.int64_array("w", [3, 2**63 - 1])), [3, 2**63 - 1])
        with self.assertRaisesRegex(OverflowError, "w: 9223372036854775808"):
            _arguments.int64_array("w", [3, 2**63])


class NamesTest(Case):
    def test_a_name_that_no_checkpoint_can_have_is_refused_and_no_checkpoint_is_left(self):
        for wrong, reason in (("a\0b", "has a NUL"), ("\0", "has a NUL"), ("a\ud800", "unpaired surrogate")):
            for state in (
                {wrong: torch.ones(2)},
                {"model": {wrong: torch.ones(2)}},
                {"optim": {"state": {"w": {wrong: torch.ones(2)}}}},
                {"optim": {"state": {wrong: {"step": torch.ones(2)}}}},
                {wrong: 5},
                {"w": torch.ones(2), "values": {wrong: {1, 2}}},
            ):
                refused = self.assertRaisesRegex(CheckpointException, f"ValueError: name .*{reason}")
                with self.subTest(repr(state)), refused:
                    dcp.save(state, storage_writer=Writer(self.path()))
                self.assertEqual(os.listdir(self.root), [])

    def test_a_path_that_c_would_cut_is_refused_by_everything_that_takes_one(self):
        torch.save({"a": torch.ones(2)}, self.root + "/m.pt")
        good, calls = self.root + "/m.pt", fsdp_checkpoint
        for wrong in (good + "\0.evil", os.fsencode(good) + b"\0", good + "\ud800"):
            for name, call in {
                "open": lambda: calls.open(wrong),
                "verify": lambda: calls.verify(wrong),
                "diff": lambda: calls.diff(good, wrong),
                "convert from": lambda: calls.convert(wrong, self.root + "/n.pt"),
                "convert to": lambda: calls.convert(good, wrong),
                "Writer": lambda: Writer(wrong),
                "Reader": lambda: Reader(wrong),
            }.items():
                with self.subTest(f"{name} {wrong!r}"), self.assertRaisesRegex(ValueError, "NUL|unpaired surrogate"):
                    call()
        with self.assertRaisesRegex(ValueError, "to 'hdf5.*has a NUL"):
            calls.convert(good, self.root + "/n", to="hdf5\0")
        for wrong in (self.root + "/r\0q/step-00000001", self.path() + "\0"):
            self.assertFalse(Writer.validate_checkpoint_id(wrong))
            with self.assertRaisesRegex(ValueError, "has a NUL"):
                Writer(self.path()).reset(wrong)
            with self.assertRaisesRegex(ValueError, "has a NUL"):
                Reader(self.path()).reset(wrong)
        self.assertEqual(os.listdir(self.root), ["m.pt"])

    def test_a_path_of_bytes_that_are_not_utf8_is_taken_as_open_takes_it(self):
        path = os.fsdecode(os.fsencode(self.root) + b"/\xff.pt")
        torch.save({"a": torch.ones(2)}, path)
        with fsdp_checkpoint.open(path) as checkpoint:
            self.assertEqual(checkpoint["model/a"].tolist(), [1, 1])


class IntegersTest(Case):
    def test_an_integer_that_c_would_cut_is_refused_by_everything_that_takes_one(self):
        torch.save({"a": torch.arange(8.0)}, self.root + "/m.pt")
        out = numpy.zeros(8, numpy.float32)
        with fsdp_checkpoint.open(self.root + "/m.pt") as checkpoint:

            def read(begin=0, end=5, out=out.ctypes.data, threads=0):
                checkpoint.read_into([fsdp_checkpoint.ReadRequest("model/a", begin, end, "float32", out)], threads)

            for place, call in {
                "parity": lambda: Writer(self.path(), parity=2**40),
                "io_threads": lambda: Writer(self.path(), io_threads=2**32 + 2),
                "threads": lambda: fsdp_checkpoint.verify(self.root + "/m.pt", threads=2**32),
                "world_size": lambda: fsdp_checkpoint.convert(self.root + "/m.pt", self.root + "/n", world_size=2**32),
                "begin": lambda: read(begin=2**64),
                "end": lambda: read(end=2**64 + 5),
                "out": lambda: read(out=2**64 + out.ctypes.data),
                "fsdp_reader_read": lambda: read(threads=2**32),
            }.items():
                with self.subTest(place), self.assertRaisesRegex(OverflowError, f"^{place}: "):
                    call()
            self.assertFalse(out.any())
            read(numpy.int64(0), numpy.int32(8))
            self.assertEqual(out.tolist(), [0, 1, 2, 3, 4, 5, 6, 7])


if __name__ == "__main__":
    unittest.main(verbosity=2)

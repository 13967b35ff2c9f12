# SPDX-License-Identifier: Apache-2.0
"""inspect: the report of ckpt inspect --json, from the package's own ckpt."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from unittest import mock

import numpy
import torch

import fsdp_checkpoint
from cases import Case
from fsdp_checkpoint import _program

OWN = """
import sys
sys.path.insert(0, sys.argv[1])
from fsdp_checkpoint import _program
print(_program.own())
"""
STATE = {"model": {"w": numpy.ones((4, 3), "float32")}, "step": 3}


class InspectTest(Case):
    def test_it_is_the_report_of_ckpt(self):
        fsdp_checkpoint.save(self.path(), STATE, attributes={"lr": 0.1})
        torch.save({"g": {"w": torch.ones(2)}}, self.root + "/m.pt")
        program = os.path.join(sysconfig.get_path("scripts"), "ckpt")
        for path, words, options in (
            (self.path(), [], {}),
            (self.path(), ["--tensors"], {"tensors": True}),
            (self.root, [], {}),
            (self.root + "/m.pt", ["--map=g=model"], {"layout": {"g": "model"}}),
        ):
            report = fsdp_checkpoint.inspect(path, **options)
            wanted = subprocess.run([program, "inspect", path, "--json", *words], capture_output=True, check=True)
            self.assertEqual(dict(report), json.loads(wanted.stdout))
            self.assertEqual("tensors" in report, "tensors" in options)
        self.assertEqual(report["model"]["tensors"], 1)

    def test_its_repr_is_one_line(self):
        fsdp_checkpoint.save(self.path(), STATE)
        found = fsdp_checkpoint.inspect(self.root)
        self.assertEqual(
            repr(found), f"<fsdp_checkpoint.Inspection '{self.path()}', hdf5, step 1, 1 tensor, {found['bytes']} B>"
        )
        self.assertIn("None", repr(fsdp_checkpoint.Inspection()))

    def test_a_checkpoint_without_a_file_is_reported_with_its_problem(self):
        fsdp_checkpoint.convert(self.saved(), self.root + "/sharded", kind="sharded", world_size=2)
        os.remove(self.root + "/sharded/rank-00001-of-00002.h5")
        report = fsdp_checkpoint.inspect(self.root + "/sharded")
        self.assertIn("rank-00001-of-00002.h5", report["problem"])
        self.assertIn("sharded of 2 ranks", repr(report))
        self.assertIn(report["problem"], repr(report))

    def saved(self):
        fsdp_checkpoint.save(self.path(), STATE)
        return self.path()

    def test_what_cannot_be_read_is_an_exception(self):
        with self.assertRaises(FileNotFoundError):
            fsdp_checkpoint.inspect(self.root + "/nothing")
        with open(self.root + "/text", "w") as file:
            file.write("hello")
        shutil.copytree(self.saved(), self.root + "/runs/cut")
        os.truncate(self.root + "/runs/cut/manifest.json", 100)
        with open(self.root + "/empty.pt", "w"):
            pass
        os.mkdir(self.root + "/directory")
        for name in ("text", "runs/cut", "empty.pt", "directory", "/dev/null"):
            path = os.path.join(self.root, name)
            with self.assertRaises(fsdp_checkpoint.CheckpointError) as opened:
                fsdp_checkpoint.open(path)
            with self.assertRaises(type(opened.exception)) as inspected:
                fsdp_checkpoint.inspect(path)
            self.assertEqual(inspected.exception.code, opened.exception.code, path)
            self.assertEqual(str(inspected.exception), str(opened.exception), path)
        with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, "^layout: "):
            fsdp_checkpoint.inspect(self.path(), layout="no role")
        with self.assertRaisesRegex(ValueError, "has a NUL"):
            fsdp_checkpoint.inspect("a\0b")

    def test_a_name_that_looks_like_a_flag_is_a_path(self):
        with self.assertRaisesRegex(FileNotFoundError, "./--help"):
            fsdp_checkpoint.inspect("--help")

    def test_the_ckpt_of_another_scheme_of_pip_is_found(self):
        # As pip install --user or --prefix records it, and where --target puts it, with a record that is wrong there.
        package = os.path.dirname(fsdp_checkpoint.__file__)
        for recorded, directory in (("../../../scripts/ckpt", "scripts"), ("../../bin/ckpt", "lib/python/site/bin")):
            prefix = tempfile.mkdtemp(dir=self.root)
            site, path = f"{prefix}/lib/python/site", f"{prefix}/{directory}/ckpt"
            os.makedirs(site + "/fsdp_checkpoint-0.0.1.dist-info")
            os.symlink(package, site + "/fsdp_checkpoint")
            for name, text in (("METADATA", "Metadata-Version: 2.1\nName: fsdp-checkpoint\nVersion: 0.0.1\n"),
                               ("RECORD", f"{recorded},,\n")):
                with open(f"{site}/fsdp_checkpoint-0.0.1.dist-info/{name}", "w") as file:
                    file.write(text)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(_program.own()[0], path)
            command = [sys.executable, "-I", "-c", OWN, site]
            self.assertIn(repr(path), subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def test_without_any_ckpt_the_error_says_so(self):
        with mock.patch.dict(os.environ, PATH=self.root), mock.patch("fsdp_checkpoint._program.own", return_value=[]):
            with self.assertRaisesRegex(fsdp_checkpoint.CheckpointError, "no program ckpt") as caught:
                fsdp_checkpoint.inspect(self.root)
            self.assertEqual(caught.exception.code, "unimplemented")


if __name__ == "__main__":
    unittest.main()

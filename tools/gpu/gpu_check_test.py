#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All of gpu_check.py, on the CPU and the emulator: the programs built with this test form a bundle, and every part
must run in it. Without PyTorch its side is skipped, and reported as skipped; test it with

  TEST_TMPDIR=/tmp VENV/bin/python tools/gpu/gpu_check_test.py
"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = {
    "train/train_gpt": "train_gpt",
    "optim/cuda_optimizer_extras_emulated_test": "cuda_optimizer_extras_test",
    "optim/benchmark/cuda_kernels_benchmark_emulated": "cuda_kernels_benchmark",
    "tests/gpu_staging_benchmark_emulated": "gpu_staging_benchmark",
}
HAS_TORCH = importlib.util.find_spec("torch") is not None


def lay_bundle(folder):
    """In the runfiles of this test, or in a source tree in which Bazel has built them."""
    (folder / "bin").mkdir(parents=True)
    root = pathlib.Path.cwd() if pathlib.Path("tools/gpu/gpu_check.py").exists() else pathlib.Path(__file__).parents[2]
    for path, name in PROGRAMS.items():
        built = root / path if (root / path).exists() else root / "bazel-bin" / path
        (folder / "bin" / name).symlink_to(built.resolve())
    for script in (root / "tools/gpu").glob("gpu_*.py"):
        if not script.name.endswith("_test.py"):
            shutil.copy(script, folder / script.name)


class GpuCheckTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
        lay_bundle(cls.folder / "bundle")

    def check(self, *flags):
        """(exit status, the report, the output) of a run of gpu_check.py."""
        out = self.folder / "out"
        ran = subprocess.run([sys.executable, self.folder / "bundle/gpu_check.py", f"--out={out}", *flags],
                             capture_output=True, text=True, timeout=280, check=False)
        report = out / "report.json"
        return ran.returncode, json.loads(report.read_text()) if report.exists() else None, ran.stdout + ran.stderr

    def test_every_part_runs_without_a_gpu(self):
        status, report, output = self.check("--part=all", "--device=cpu", "--tiny", "--budget=270")
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual({row["part"] for row in report["rows"]}, set(report["parts"]), output)
        ours = ["cuda_optimizer_extras_test", "losses against the CPU's", "head, ours", "kernels, ours",
                "staging and loads", "gpt2-124m, 8 rows: ours", "gpt2-124m, 64 rows: ours, graph",
                "llama-3.2-1b, 4 rows: ours, graph"]
        for name in ours:
            self.assertEqual(rows[name]["status"], 0, output)
        for name in (name for name in rows if "torch" in name):
            self.assertEqual(rows[name]["status"], 0, output)
            self.assertEqual("skipped" in rows[name], not HAS_TORCH, output)
        for count in (8, 32, 64):
            kinds = {name.split("torch, ")[1] for name in rows if name.startswith(f"gpt2-124m, {count} rows: torch")}
            self.assertEqual(kinds, {"compiled", "padded", "whole", "reduce-overhead"}, count)
        if not HAS_TORCH:
            print("SKIPPED: PyTorch's side of gpu_check.py; this python3 has no torch")
        self.assertEqual(status, 3, output)  # compute-sanitizer needs a GPU
        self.assertRegex(output, r"\nGoals\n(met|MISSED) ")
        self.assertLess(len(output.split("\n{'gpu'")[-1]), 12000)

    def check_with(self, program, script, *flags):
        """The same, with a shell script in place of a program."""
        replaced = self.folder / "bundle/bin" / program
        built = os.readlink(replaced)
        replaced.unlink()
        replaced.write_text(f"#!/bin/sh\n{script}\n")
        replaced.chmod(0o755)
        try:
            return self.check(*flags, "--device=cpu", "--tiny")
        finally:
            replaced.unlink()
            replaced.symlink_to(built)

    def test_a_program_that_fails_stops_no_other(self):
        status, report, output = self.check_with("cuda_kernels_benchmark", "echo the last words\nexit 7",
                                                 "--part=kernels,checkpoints", "--budget=60")
        self.assertEqual(status, 1, output)
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual(rows["kernels, ours"]["output"], ["exit status 7", "the last words"])
        self.assertEqual(rows["staging and loads"]["status"], 0, output)
        self.assertIn("FAILED (1): kernels, ours", output)

    def test_a_program_that_hangs_leaves_the_next_part_its_time(self):
        status, report, output = self.check_with("cuda_optimizer_extras_test", "sleep 600",
                                                 "--part=changed,checkpoints", "--budget=60")
        self.assertEqual(status, 1, output)
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual(rows["cuda_optimizer_extras_test"]["status"], 124, output)
        self.assertEqual(rows["cuda_graph_test"]["reason"], "not in the bundle")
        self.assertEqual(rows["staging and loads"]["status"], 0, output)
        self.assertIn("TIMED OUT: cuda_optimizer_extras_test", output)

    def test_a_train_gpt_that_trains_nothing_leaves_the_other_parts_and_the_tables(self):
        status, report, output = self.check_with("train_gpt", "exit 0", "--part=losses,train,again,checkpoints",
                                                 "--budget=120")
        self.assertEqual(status, 1, output)
        rows = {row["name"]: row for row in report["rows"]}
        self.assertEqual(rows["losses against the CPU's"]["status"], 1, output)
        self.assertEqual(rows["gpt2-124m, 8 rows: ours"]["status"], 1, output)
        self.assertEqual(rows["staging and loads"]["status"], 0, output)
        self.assertRegex(output, r"\nGoals\n(met|MISSED) ")

    def test_what_the_budget_has_no_room_for_is_named(self):
        status, report, output = self.check("--part=checkpoints", "--device=cpu", "--tiny", "--budget=5")
        self.assertEqual(status, 3, output)
        self.assertEqual([row["status"] for row in report["rows"]], ["not reached"])
        self.assertIn("not reached: staging and loads", output)

    def test_a_machine_without_a_gpu_is_said_to_be_one(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("there may be a GPU here")
        status, _, output = self.check("--part=kernels", "--budget=60")
        self.assertEqual(status, 3, output)
        self.assertIn("SKIPPED: no GPU on this machine", output)

    def test_an_unknown_part_is_refused(self):
        status, _, output = self.check("--part=kernels,speed")
        self.assertEqual(status, 2)
        self.assertIn("no part speed; there are ceilings", re.sub(r"\s+", " ", output))


if __name__ == "__main__":
    unittest.main()

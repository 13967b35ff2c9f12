#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ratios and verdicts of gpu_goals.py, on results whose ratios are known."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path.cwd() / "tools/gpu"))
import gpu_goals  # noqa: E402: the path comes first


def run(rate, gib=1.0):
    return dict(tokens_per_second=[rate - 1, rate, rate + 1], peak_bytes=int(gib * 2**30))


def kernel(microseconds, **more):
    return dict(microseconds=microseconds, dtype="bfloat16", **more)


class GpuGoalsTest(unittest.TestCase):
    def goals(self, gpu="NVIDIA H100", **results):
        made = gpu_goals.goals_of({**dict(training={}, kernels={}, copies=[]), **results}, gpu)
        return {what: (measured, met) for what, measured, _, met in made}

    def test_nothing_measured_makes_no_line(self):
        self.assertEqual(self.goals(), {})

    def test_ours_is_compared_with_the_best_of_torch(self):
        runs = {"ours": [run(110)], "ours, graph": [run(120)], "torch, compiled": [run(50)], "torch, whole": [run(100)]}
        goals = self.goals(training={"gpt2-124m 8": runs})
        self.assertEqual(goals["gpt2-124m 8 rows, ours, graph / torch, whole"], (1.2, True))
        self.assertAlmostEqual(goals["gpt2-124m 8 rows, eager / graph"][0], 110 / 120)
        goals = self.goals(training={"gpt2-124m 64": {"ours": [run(104)], "torch, whole": [run(100)]}})
        self.assertEqual(goals["gpt2-124m 64 rows, ours / torch, whole"], (1.04, False))

    def test_the_median_of_the_rounds_counts(self):
        runs = {"ours": [run(100), run(130), run(110)], "torch, whole": [run(100)]}
        goals = self.goals(training={"llama-3.2-1b 4": runs})
        self.assertEqual(goals["llama-3.2-1b 4 rows, ours / torch, whole"], (1.1, True))

    def test_peaks_are_compared_with_compiled_fully_shard(self):
        runs = {"ours, graph": [run(1, gib=6)], "torch, compiled": [run(1, gib=5)]}
        self.assertEqual(self.goals(training={"gpt2-124m 8": runs})["gpt2-124m 8 rows, peak / compiled torch's"],
                         (1.2, False))

    def test_the_goal_of_mfu_is_the_cards(self):
        runs = {"gpt2-124m 8": {"ours": [run(0.36 * 989e12 / 855e6)]}}
        self.assertTrue(self.goals("NVIDIA H100", training=runs)["gpt2-124m 8 rows, MFU"][1])
        self.assertFalse(self.goals("NVIDIA H200", training=runs)["gpt2-124m 8 rows, MFU"][1])

    def test_the_worst_shape_of_attention_counts(self):
        kernels = {"attention online, b8, bfloat16": {"ours": kernel(100), "own": kernel(200)},
                   "attention, b8, bfloat16": {"torch": kernel(98)},
                   "attention online, b4, bfloat16": {"ours": kernel(100)},
                   "attention, b4, bfloat16": {"torch": kernel(90)}}
        goals = self.goals(kernels=kernels)
        self.assertEqual(goals["attention online, as chosen, of torch's (b4)"], (0.9, False))
        self.assertEqual(goals["attention online, without cuDNN, of torch's (b8)"], (0.49, False))

    def test_the_head_is_compared_with_the_blocks_by_rates(self):
        kernels = {"head, gpt2 8192x768x50257 stride 50304, bfloat16": {"ours": kernel(100, tflop_per_s=450)},
                   "head, gpt2 8192x768x50257, bfloat16": {"ours": kernel(100, tflop_per_s=1)},
                   "product, gpt2 up 8192x768x3072, bfloat16": {"ours": kernel(50, tflop_per_s=400)},
                   "product, gpt2 down 8192x3072x768, bfloat16": {"ours": kernel(50, tflop_per_s=600)}}
        self.assertEqual(self.goals(kernels=kernels)["head's products of the blocks'"], (0.9, True))

    def test_kernels_below_their_goal_are_named_worst_first(self):
        kernels = {f"{name}, gpt2, bfloat16": {"ours": kernel(1, kernel=name, of_copy=share)}
                   for name, share in (("add", 0.95), ("gelu", 0.89), ("layer norm", 0.86), ("embedding", 0.5))}
        goals = self.goals(kernels=kernels)
        self.assertEqual(goals["least of 2 elementwise kernels of a copy; below: 1: gelu, gpt2 0.89"], (0.89, False))
        self.assertEqual(goals["least of 2 other kernels of a copy; below: 1: embedding, gpt2 0.50"], (0.5, False))

    def test_the_best_number_of_threads_counts_for_loads(self):
        copies = [dict(copy="checkpoint load, 4 threads", of_copy=0.26), dict(copy="checkpoint load, 16 threads",
                                                                             of_copy=0.75)]
        self.assertEqual(self.goals(copies=copies), {"checkpoint load, 16 threads, of one copy": (0.75, True)})

    def test_lines_say_met_or_missed(self):
        copies = [dict(copy="checkpoint staging", of_copy=0.96), dict(copy="checkpoint load", of_copy=0.6)]
        lines = gpu_goals.goal_lines(dict(training={}, kernels={}, copies=copies), "NVIDIA H100")
        self.assertEqual([line.split()[0] for line in lines], ["met", "MISSED"])


if __name__ == "__main__":
    unittest.main()

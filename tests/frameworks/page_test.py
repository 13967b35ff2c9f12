#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/frameworks.md shows code of the examples that its commands start, at most ten lines of each."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import page  # noqa: E402  (a link in a test's runfiles, whose folder lacks it)


def stripped(lines):
    return [line.strip() for line in lines if line.strip()]


class PageTest(unittest.TestCase):
    def test_the_page_quotes_its_examples(self):
        for section in page.sections():
            source = stripped(page.example(section).read_text().splitlines())
            shown = page.blocks(section, "python")
            self.assertTrue(shown, f"{section} shows no code")
            for block in shown:
                lines = stripped(block)
                places = range(len(source) - len(lines) + 1)
                self.assertTrue(
                    any(source[at : at + len(lines)] == lines for at in places),
                    f"{section} shows lines that {page.example(section).name} has not, one after the other: {lines}",
                )
            self.assertLessEqual(sum(map(len, shown)), 10, f"{section}: too much to paste")

    def test_each_section_starts_one_example_twice_and_converts(self):
        for section in page.sections():
            first, second, *more = page.commands(section)
            self.assertRegex(first, r"^torchrun --nproc_per_node=\d with_\w+\.py \w+ 12$")
            self.assertNotEqual(first, second, f"{section} continues on the same number of ranks")
            self.assertEqual(first.split()[2:], second.split()[2:], section)
            self.assertTrue(any(command.startswith("ckpt convert ") for command in more), f"{section}: {more}")

    def test_each_example_has_a_section(self):
        shown = {page.example(section).name for section in page.sections()}
        self.assertEqual(shown, {path.name for path in page.EXAMPLES.glob("with_*.py")})


if __name__ == "__main__":
    unittest.main()

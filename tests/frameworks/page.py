# SPDX-License-Identifier: Apache-2.0
"""docs/frameworks.md: the sections, with their blocks of code."""

import os
import pathlib
import re

ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]
EXAMPLES = ROOT / "examples" / "python"


def sections():
    """The text of each section by its heading."""
    _, *parts = re.split(r"^## (.*)$", (ROOT / "docs" / "frameworks.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2]))


def blocks(section, language):
    """The lines of each block of the section in a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", sections()[section], flags=re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in found]


def commands(section):
    """The commands of the section, one a line."""
    (lines,) = blocks(section, "sh")
    return lines


def example(section):
    """The program that the section's commands start."""
    return EXAMPLES / re.search(r"with_\w+\.py", commands(section)[0]).group()

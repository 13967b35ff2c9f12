# SPDX-License-Identifier: Apache-2.0
"""The version of this release, from MODULE.bazel."""

import re


def of(module):
    """`module`: the path of MODULE.bazel."""
    with open(module, encoding="utf-8") as file:
        return re.search(r'^    version = "([^"]+)"', file.read(), re.MULTILINE).group(1)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""BUILD and .bzl files use nothing that Bazel 8 or 9 removed: rules that are not loaded, and labels that are gone. The
files are read next to the real README.md, which is a link in a test's runfiles.
"""
import ast
import os
import pathlib
import unittest

# The rules built into Bazel 9, without cc_*, java_*, objc_*, proto_*, py_* and sh_*, which became rules of modules.
RULES = {
    "alias", "config_setting", "constraint_setting", "constraint_value", "exports_files", "filegroup", "genrule",
    "licenses", "package", "package_group", "platform", "test_suite", "toolchain", "toolchain_type",
}
NATIVE = {"existing_rules", "genrule", "package_name", "register_toolchains", "repo_name", "repository_name", "toolchain"}
PROVIDERS = {"CcInfo", "CcToolchainInfo", "JavaInfo", "ProtoInfo", "PyInfo", "cc_common", "java_common", "apple_common"}
PREFIXES = ("cc_", "java_", "objc_", "proto_", "py_", "sh_")

# Only for Bazel 4 in WORKSPACE mode.
COMPAT = "third_party/compat.bzl"


def names_loaded(tree):
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            names |= {argument.value for argument in node.args[1:]} | {keyword.arg for keyword in node.keywords}
    return names


def names_defined(tree):
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def faults_of(path, text):
    """Starlark is close enough to Python to be parsed as such."""
    faults = []
    tree = ast.parse(text)
    known = names_loaded(tree) | names_defined(tree)
    is_build = path.endswith("BUILD.bazel")

    def fault(node, what):
        faults.append(f"{path}:{node.lineno}: {what}")

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known:
            name = node.func.id
            if name.startswith(PREFIXES) or (is_build and any(k.arg == "name" for k in node.keywords) and name not in RULES):
                fault(node, f"{name} is not loaded, and Bazel 9 has no such rule")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "native":
            if node.attr not in NATIVE:
                fault(node, f"native.{node.attr}: Bazel 9 may have no such rule; load it")
        elif isinstance(node, ast.Name) and node.id in PROVIDERS and node.id not in known:
            fault(node, f"{node.id} is not loaded from @rules_cc")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            value = node.value
            if value.startswith("@bazel_tools//"):
                fault(node, f"{value}: @bazel_tools loses its labels; use the labels of @rules_cc")
            written = [line.split("(")[0] for line in value.split("\n") if line.startswith(PREFIXES) and "(" in line]
            for rule in written:
                if f'"{rule}"' not in text.replace("\\", ""):
                    fault(node, f"{rule} in a BUILD file that this writes is not loaded there")
    return faults


def tree():
    return pathlib.Path(os.path.realpath("README.md")).parent


class BuildRulesTest(unittest.TestCase):
    def test_no_file_uses_what_bazel_9_lacks(self):
        files = [
            path for pattern in ("BUILD.bazel", "*.bzl") for path in tree().rglob(pattern)
            if not path.relative_to(tree()).parts[0].startswith("bazel-")
        ]
        self.assertGreater(len(files), 60)
        faults = []
        for path in files:
            name = str(path.relative_to(tree()))
            if name != COMPAT:
                faults += faults_of(name, path.read_text())
        self.assertEqual(faults, [])

    def test_a_native_rule_is_named_with_its_line(self):
        text = 'load("//bazel:cc.bzl", "cc_library")\n\ncc_library(name = "a")\n\nsh_test(\n    name = "b",\n)\n'
        self.assertEqual(
            faults_of("a/BUILD.bazel", text),
            ["a/BUILD.bazel:5: sh_test is not loaded, and Bazel 9 has no such rule"],
        )

    def test_an_unknown_rule_of_a_build_file_is_named(self):
        self.assertEqual(len(faults_of("BUILD.bazel", 'android_binary(name = "a")\n')), 1)
        self.assertEqual(faults_of("BUILD.bazel", 'genrule(name = "a")\n'), [])

    def test_native_providers_labels_and_generated_rules_are_named(self):
        self.assertEqual(len(faults_of("a.bzl", "def f():\n    native.cc_library(name = 'a')\n")), 1)
        self.assertEqual(len(faults_of("a.bzl", "def f(target):\n    return target[CcInfo]\n")), 1)
        self.assertEqual(len(faults_of("a.bzl", 'X = "@bazel_tools//tools/cpp:current_cc_toolchain"\n')), 1)
        self.assertEqual(len(faults_of("a.bzl", 'X = """\ncc_library(\n    name = "a",\n)"""\n')), 1)
        self.assertEqual(
            faults_of("a.bzl", 'load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")\nX = [CcInfo]\n'), []
        )


if __name__ == "__main__":
    unittest.main()

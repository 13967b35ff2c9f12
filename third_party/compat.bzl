# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the rule repositories that Bazel 4 in WORKSPACE mode would download.

They re-export the built-in rules of that Bazel under the labels of the real repositories, so that BUILD files are the
same for Bazel 4 offline and for Bazel 7 and later, which use the real ones.
"""

def _rules_cc_impl(ctx):
    ctx.file("BUILD.bazel", "")
    ctx.file("cc/BUILD.bazel", 'cc_toolchain_alias(name = "current_cc_toolchain", visibility = ["//visibility:public"])\n')
    ctx.file("cc/common/BUILD.bazel", "")
    ctx.file("cc/defs.bzl", "\n".join([
        "%s = native.%s" % (rule, rule)
        for rule in ["cc_binary", "cc_import", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"]
    ]) + "\n")

    # A file cannot re-export a builtin under its own name, so there are two.
    ctx.file("cc/common/native.bzl", "NativeCcInfo = CcInfo\nnative_cc_common = cc_common\n")
    ctx.file("cc/common/cc_common.bzl", 'load(":native.bzl", "native_cc_common")\n\ncc_common = native_cc_common\n')
    ctx.file("cc/common/cc_info.bzl", 'load(":native.bzl", "NativeCcInfo")\n\nCcInfo = NativeCcInfo\n')
    ctx.file("cc/find_cc_toolchain.bzl", """\
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", _find = "find_cpp_toolchain")

CC_TOOLCHAIN_TYPE = "@bazel_tools//tools/cpp:toolchain_type"

def find_cpp_toolchain(ctx):
    return _find(ctx)

def use_cc_toolchain():
    return [CC_TOOLCHAIN_TYPE]
""")

rules_cc_compat = repository_rule(implementation = _rules_cc_impl)

_JAVA_RULES = [
    "java_binary",
    "java_import",
    "java_library",
    "java_lite_proto_library",
    "java_package_configuration",
    "java_plugin",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

def _rules_java_impl(ctx):
    ctx.file("BUILD.bazel", "")
    ctx.file("java/BUILD.bazel", "")
    ctx.file("java/defs.bzl", "\n".join(["%s = native.%s" % (rule, rule) for rule in _JAVA_RULES]) + "\n")

rules_java_compat = repository_rule(implementation = _rules_java_impl)

def _remote_coverage_tools_impl(ctx):
    ctx.file("BUILD.bazel", """\
package(default_visibility = ["//visibility:public"])

filegroup(name = "coverage_report_generator")

filegroup(name = "lcov_merger")
""")

remote_coverage_tools_compat = repository_rule(implementation = _remote_coverage_tools_impl)

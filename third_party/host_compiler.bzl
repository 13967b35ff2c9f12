# SPDX-License-Identifier: Apache-2.0
"""host_compiler: @local_compiler//:config.bzl with IS_GCC, which says whether the C++ compiler that $CC names is gcc."""

def _host_compiler_impl(ctx):
    compiler = ctx.os.environ.get("CC", "") or "gcc"
    result = ctx.execute([compiler, "--version"])

    # gcc says so whatever the name by which it was called; clang, also one that is called gcc, does not.
    is_gcc = result.return_code == 0 and "Free Software Foundation" in result.stdout
    ctx.file("BUILD.bazel", "")
    ctx.file("config.bzl", "IS_GCC = %s\n" % is_gcc)

host_compiler = repository_rule(
    implementation = _host_compiler_impl,
    environ = ["CC", "PATH"],
    local = True,
)

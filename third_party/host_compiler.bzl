# SPDX-License-Identifier: Apache-2.0
"""host_compiler: @local_compiler//:config.bzl with the constants by which BUILD files choose.

IS_GCC is true if the C++ compiler that $CC names is gcc and reads precompiled headers: gcc for 64-bit ARM crashes at
its own arm_sve.h after one. ABSEIL_RELEASE is the release of the installed Abseil, such as 20220623, or 0 if Abseil is
not installed or is not a release.
"""

load(":system_libs.bzl", "sysroot")

_ABSEIL_CONFIG = "/usr/include/absl/base/config.h"
_ABSEIL_RELEASE = "#define ABSL_LTS_RELEASE_VERSION "

def _abseil_release(ctx):
    config = sysroot(ctx) + _ABSEIL_CONFIG
    if ctx.path(config).exists:
        for line in ctx.read(config).split("\n"):
            if line.startswith(_ABSEIL_RELEASE):
                return int(line[len(_ABSEIL_RELEASE):])
    return 0

def _host_compiler_impl(ctx):
    compiler = ctx.os.environ.get("CC", "") or "gcc"
    result = ctx.execute([compiler, "--version"])

    # gcc prints this under any name by which it was called; clang, even if it is called gcc, does not.
    is_gcc = result.return_code == 0 and "Free Software Foundation" in result.stdout
    machine = ctx.execute([compiler, "-dumpmachine"])
    is_gcc = is_gcc and not machine.stdout.startswith("aarch64")
    ctx.file("BUILD.bazel", "")
    ctx.file("config.bzl", "IS_GCC = %s\nABSEIL_RELEASE = %d\n" % (is_gcc, _abseil_release(ctx)))

host_compiler = repository_rule(
    implementation = _host_compiler_impl,
    environ = ["CC", "FSDP_SYSROOT", "PATH"],
    local = True,
)

# SPDX-License-Identifier: Apache-2.0
"""fsdp_deps(): every repository that @fsdp needs, unless the caller has declared it already."""

load(":abseil.bzl", "system_abseil")
load(":compat.bzl", "remote_coverage_tools_compat", "rules_cc_compat", "rules_java_compat")
load(":cuda_toolkit.bzl", "cuda_toolkit")
load(":host_compiler.bzl", "host_compiler")
load(":libtorch.bzl", "libtorch")
load(":mpi.bzl", "local_mpi")
load(":system_libs.bzl", "system_hdf5", "system_library")

def _maybe(rule, name, **kwargs):
    if not native.existing_rule(name):
        rule(name = name, **kwargs)

def system_repositories():
    """The installed libraries; for WORKSPACE mode and module mode alike."""
    _maybe(system_abseil, "com_google_absl")
    _maybe(
        system_library,
        "com_google_googletest",
        headers = ["gtest", "gmock"],
        targets = {
            "gtest": ["gtest", "gmock"],
            "gtest_main": ["gmock_main", ":gtest"],
        },
        linkopts = ["-lpthread"],
        debian_package = "libgtest-dev libgmock-dev",
    )
    _maybe(
        system_library,
        "com_github_google_benchmark",
        headers = ["benchmark"],
        targets = {
            "benchmark": ["benchmark"],
            "benchmark_main": ["benchmark_main", ":benchmark"],
        },
        linkopts = ["-lpthread"],
        debian_package = "libbenchmark-dev",
    )
    _maybe(system_hdf5, "system_hdf5")
    _maybe(
        system_library,
        "onednn",
        headers = [
            "dnnl.h",
            "dnnl.hpp",
            "dnnl_config.h",
            "dnnl_debug.h",
            "dnnl_types.h",
            "dnnl_version.h",
            "oneapi",
        ],
        targets = {"onednn": ["dnnl"]},
        debian_package = "libdnnl-dev",
    )
    _maybe(
        system_library,
        "nlohmann_json",
        headers = ["nlohmann"],
        targets = {"json": []},
        debian_package = "nlohmann-json3-dev",
    )
    _maybe(
        system_library,
        "isal",
        headers = [
            "isa-l",
            "isa-l.h",
        ],
        targets = {"isal": ["isal"]},
        debian_package = "libisal-dev",
    )
    _maybe(
        system_library,
        "liburing",
        headers = [
            "liburing",
            "liburing.h",
        ],
        targets = {"liburing": ["uring"]},
        debian_package = "liburing-dev",
    )
    _maybe(
        system_library,
        "ucx",
        headers = [
            "ucm",
            "ucp",
            "ucs",
            "uct",
        ],
        targets = {"ucx_headers": []},
        debian_package = "libucx-dev",
    )
    _maybe(
        system_library,
        "xxhash",
        headers = ["xxhash.h"],
        targets = {"xxhash": ["xxhash"]},
        debian_package = "libxxhash-dev",
    )
    _maybe(
        system_library,
        "highway",
        headers = ["hwy"],
        targets = {"hwy": ["hwy"]},
        debian_package = "libhwy-dev",
    )
    _maybe(
        system_library,
        "zlib",
        headers = [
            "zconf.h",
            "zlib.h",
        ],
        targets = {"zlib": ["z"]},
        debian_package = "zlib1g-dev",
    )
    _maybe(cuda_toolkit, "local_cuda")
    _maybe(host_compiler, "local_compiler")
    _maybe(libtorch, "libtorch")
    _maybe(local_mpi, "local_mpi")

def fsdp_deps():
    """For WORKSPACE files: the installed libraries and the stand-ins for rule repositories."""
    _maybe(rules_cc_compat, "rules_cc")
    _maybe(rules_java_compat, "rules_java")
    _maybe(remote_coverage_tools_compat, "remote_coverage_tools")
    system_repositories()

# SPDX-License-Identifier: Apache-2.0
"""The installed CUDA Toolkit as @local_cuda: headers, static runtime, cuBLASLt, NCCL, and the settings of the nvcc
rules.

Without a toolkit, or with --repo_env=FSDP_CUDA=0, the repository has the same labels as empty libraries, and
CUDA_AVAILABLE in its config.bzl is False: BUILD files choose by that constant.
"""

# The oldest release whose nvcc takes -std=c++20.
_OLDEST_MAJOR = 12

_LIBRARY = """
cc_library(
    name = "{name}",
    srcs = {srcs},
    linkopts = {linkopts},
    linkstatic = True,
    deps = {deps},
)
"""

def _toolkit(ctx):
    """The toolkit's directory, or None."""
    if ctx.os.environ.get("FSDP_CUDA") == "0":
        return None
    wanted = ctx.os.environ.get("CUDA_PATH")
    if wanted:
        if not ctx.path(wanted + "/bin/nvcc").exists:
            fail("CUDA_PATH is %s, but %s/bin/nvcc does not exist" % (wanted, wanted))
        return wanted
    if ctx.path("/usr/local/cuda/bin/nvcc").exists:
        return "/usr/local/cuda"
    nvcc = ctx.which("nvcc")
    return str(nvcc.realpath.dirname.dirname) if nvcc else None

def _version(ctx, toolkit):
    """nvcc's own version line, and the major number in it."""
    result = ctx.execute([toolkit + "/bin/nvcc", "--version"])
    for line in result.stdout.split("\n"):
        if ", release " in line:
            return line, int(line.split(", release ")[1].split(".")[0])
    return "", 0

def _find(ctx, directories, name):
    for directory in directories:
        path = ctx.path(directory + "/" + name)
        if path.exists:
            return path
    return None

def _library(name, srcs = [], linkopts = [], deps = []):
    return _LIBRARY.format(name = name, srcs = repr(srcs), linkopts = repr(linkopts), deps = repr(deps))

def _shared_library(ctx, name, libraries, directories, deps):
    """A cc_library of shared libraries, which the loader searches at run time in the directories that have them now."""
    srcs = []
    linkopts = []
    for library in libraries:
        path = _find(ctx, directories, library)
        if not path:
            return _library(name), False
        ctx.symlink(path, "lib/" + library)
        srcs.append("lib/" + library)
        linkopts = ["-Wl,-rpath," + str(path.dirname)]
    return _library(name, srcs, linkopts, deps), True

def _cuda_toolkit_impl(ctx):
    toolkit = _toolkit(ctx)
    version = ""
    if toolkit:
        version, major = _version(ctx, toolkit)
        headers = ctx.path(toolkit + "/include/cuda_runtime.h").exists
        if major < _OLDEST_MAJOR or not headers:
            # buildifier: disable=print
            print("CUDA targets are skipped: %s has no CUDA Toolkit %d or later with headers" % (toolkit, _OLDEST_MAJOR))
            toolkit = None
    library_dirs = [toolkit + "/lib64", toolkit + "/targets/x86_64-linux/lib", toolkit + "/targets/sbsa-linux/lib"] if toolkit else []
    cudart = _find(ctx, library_dirs, "libcudart_static.a")
    if toolkit and not cudart:
        fail("%s has nvcc but no libcudart_static.a; for a build without CUDA: --config=nocuda" % toolkit)

    build = [
        'load("@rules_cc//cc:defs.bzl", "cc_library")\n',
        'package(default_visibility = ["//visibility:public"])\n',
    ]
    nccl = False
    if toolkit:
        ctx.symlink(toolkit + "/include", "include")
        ctx.symlink(cudart, "lib/libcudart_static.a")

        # CUDA 13 moved nv/target, which cuda_fp16.h includes, to include/cccl.
        build.append("""
cc_library(
    name = "cuda_headers",
    hdrs = glob(
        [
            "include/*.h",
            "include/*.hpp",
            "include/cccl/nv/**",
            "include/cooperative_groups/**",
            "include/crt/**",
            "include/nv/**",
            "include/nvtx3/**",
        ],
        exclude = ["include/nccl.h"],
    ),
    includes = ["include", "include/cccl"],
)
""")
        build.append(_library("cudart", ["lib/libcudart_static.a"], ["-ldl", "-lpthread", "-lrt"], [":cuda_headers"]))
        text, _ = _shared_library(ctx, "cublas_lt", ["libcublasLt.so"], library_dirs, [":cudart"])
        build.append(text)

        # NCCL is part of the toolkit's folder, or installed by libnccl-dev.
        header = _find(ctx, [toolkit + "/include", "/usr/include"], "nccl.h")
        if header:
            text, nccl = _shared_library(
                ctx,
                "nccl",
                ["libnccl.so"],
                library_dirs + ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"],
                [":nccl_headers"],
            )
        if nccl:
            ctx.symlink(header, "nccl/nccl.h")
            build.append("""
cc_library(
    name = "nccl_headers",
    hdrs = ["nccl/nccl.h"],
    includes = ["nccl"],
    deps = [":cudart"],
)
""")
            build.append(text)
    else:
        build += [_library(name) for name in ["cuda_headers", "cudart", "cublas_lt"]]
    if not nccl:
        build += [_library(name) for name in ["nccl_headers", "nccl"]]

    ctx.file("BUILD.bazel", "".join(build))
    ctx.file("config.bzl", "\n".join([
        "CUDA_AVAILABLE = %s" % bool(toolkit),
        "NCCL_AVAILABLE = %s" % nccl,
        "CUDA_PATH = %s" % repr(toolkit or ""),
        "CUDA_VERSION = %s" % repr(version),
        "CUDA_HOST_COMPILER = %s" % repr(ctx.os.environ.get("CUDAHOSTCXX", "")),
    ]) + "\n")

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["CUDAHOSTCXX", "CUDA_PATH", "FSDP_CUDA"],
    local = True,
)

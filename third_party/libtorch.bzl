# SPDX-License-Identifier: Apache-2.0
"""LibTorch, PyTorch's libraries for C++, as @libtorch.

TORCH_PATH names its directory, which has include/ and lib/: the directory of the PyPI wheel (.../site-packages/torch)
or of the official archive (libtorch/). No other directory is searched and nothing installs it, because a torch that is
installed for Python would make every build longer by the minutes that torch/torch.h takes to compile. If TORCH_PATH is
not set, or with --repo_env=FSDP_LIBTORCH=0, the repository has the same label as an empty library, and
LIBTORCH_AVAILABLE in its config.bzl is False: BUILD files choose by that constant. LIBTORCH_CUDA in it is true if the
CUDA part is linked.

A LibTorch for NVIDIA's GPUs is linked with its CUDA part if that loads here, which requires the libraries of its wheel
or of the CUDA Toolkit. --repo_env=FSDP_LIBTORCH_CUDA=0 leaves it out, =1 links it even if it does not load, for a
program that will run on another machine.
"""

# The directories that LibTorch's headers include. The wheel also has headers of libraries that were compiled into it:
# its dnnl.h, of another release than the installed one, would be found instead of that.
_HEADERS = ["ATen", "c10", "caffe2", "fmt", "torch"]

_STORAGE_IMPL = "/include/c10/core/StorageImpl.h"

# Sets the message of an error if memory is used after it was given back. A LibTorch that lacks it ends the process
# instead.
_NEEDED = "release_data_and_set_meta_custom_data_ptr_error_msg_"

# Clears that message. LibTorch 2.11 lacks it.
_CLEARS = "clear_data_ptr_access_error_msg_"

_LIBRARY = """
cc_library(
    name = "libtorch",{attributes}
    visibility = ["//visibility:public"],
)
"""

_INSTALLED = """
    hdrs = glob(["include/**"]),
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = [
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        "-Wl,--no-as-needed",
        "-ltorch_cpu",
        "-lc10",{cuda}
        "-Wl,--as-needed",
    ],"""

# A program does not refer to these; loading them gives LibTorch its GPUs.
_CUDA = """
        "-ltorch_cuda",
        "-lc10_cuda",
        "-Wl,--allow-shlib-undefined","""

def _check(ctx, torch):
    """Fails unless our code can be compiled with this LibTorch."""
    for file in ["include/torch/csrc/api/include/torch/torch.h", "include/c10/core/StorageImpl.h", "lib/libtorch_cpu.so", "lib/libc10.so"]:
        if not ctx.path(torch + "/" + file).exists:
            fail(("TORCH_PATH is %s, but it has no %s; expected the directory of LibTorch: .../site-packages/torch of the " +
                  "PyPI wheel, or libtorch/ of the official archive") % (torch, file))
    if _NEEDED not in ctx.read(torch + _STORAGE_IMPL):
        fail("TORCH_PATH is %s, which is too old: its c10::StorageImpl has no %s; take a newer LibTorch" % (torch, _NEEDED))
    cmake = ctx.path(torch + "/share/cmake/Torch/TorchConfig.cmake")
    if cmake.exists and "_GLIBCXX_USE_CXX11_ABI=0" in ctx.read(cmake):
        fail("TORCH_PATH is %s, which was compiled for libstdc++'s old ABI; take one with _GLIBCXX_USE_CXX11_ABI=1" % torch)

def _has_cuda(ctx, torch):
    """Whether to link LibTorch's CUDA part."""
    library = torch + "/lib/libtorch_cuda.so"
    asked = ctx.os.environ.get("FSDP_LIBTORCH_CUDA", "")
    if asked not in ["", "0", "1"]:
        fail("FSDP_LIBTORCH_CUDA is %s; expected 0, 1 or nothing" % asked)
    if asked == "0":
        return False
    if not ctx.path(library).exists:
        if asked == "1":
            fail("FSDP_LIBTORCH_CUDA is 1, but TORCH_PATH, %s, has no lib/libtorch_cuda.so; take LibTorch for CUDA" % torch)
        return False
    if asked == "1":
        return True
    loads = ctx.execute(["ldd", library])
    return loads.return_code == 0 and "not found" not in loads.stdout

def _libtorch_impl(ctx):
    torch = ctx.os.environ.get("TORCH_PATH", "").rstrip("/")
    if ctx.os.environ.get("FSDP_LIBTORCH") == "0":
        torch = ""
    attributes = ""
    defines = []
    has_cuda = False
    if torch:
        if not torch.startswith("/"):
            fail("TORCH_PATH is %s; expected an absolute path" % torch)
        _check(ctx, torch)
        if _CLEARS not in ctx.read(torch + _STORAGE_IMPL):
            defines = ["FSDP_LIBTORCH_KEEPS_STORAGE_ERRORS"]
        for name in _HEADERS:
            if ctx.path(torch + "/include/" + name).exists:
                ctx.symlink(torch + "/include/" + name, "include/" + name)

        has_cuda = _has_cuda(ctx, torch)

        # Linked by path and not as srcs: libtorch_cpu finds its own dependencies next to its real path.
        attributes = _INSTALLED.format(lib = torch + "/lib", cuda = _CUDA if has_cuda else "")
    ctx.file(
        "BUILD.bazel",
        'load("@rules_cc//cc:defs.bzl", "cc_library")\n' + _LIBRARY.format(attributes = attributes),
    )
    ctx.file("config.bzl", "LIBTORCH_AVAILABLE = %s\nLIBTORCH_CUDA = %s\nSLOT_STORAGE_DEFINES = %r\n" %
                           (bool(torch), has_cuda, defines))

libtorch = repository_rule(
    implementation = _libtorch_impl,
    environ = ["FSDP_LIBTORCH", "FSDP_LIBTORCH_CUDA", "TORCH_PATH"],
    local = True,
)

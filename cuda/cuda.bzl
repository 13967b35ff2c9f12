# SPDX-License-Identifier: Apache-2.0
"""cuda_library, cuda_test and cuda_binary: C++ rules whose sources may be CUDA, compiled by the nvcc of @local_cuda.

Each creates a second target, NAME_emulated (NAME_emulated_test for a test), from the same sources, compiled by the C++
compiler against cuda/emulator, which needs no toolkit and no GPU. One program must not contain both kinds.

Without a toolkit, targets of these rules are incompatible: "//..." skips them, and naming one is an error with the
reason. A target that must exist in either case selects its sources with if_cuda.

--//cuda:archs=sm_80,sm_90 (from another repository --@fsdp//cuda:archs=...) names the GPUs for which code is generated;
later ones run the PTX of the newest architecture that is not limited to one family, as sm_90a is. The default is sm_80.
"""

load("@local_cuda//:config.bzl", "CUDA_AVAILABLE", "CUDA_HOST_COMPILER", "CUDA_PATH", "CUDA_VERSION", "NCCL_AVAILABLE")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cpp_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")
load("//bazel:cc.bzl", "cc_binary", "cc_library", "cc_test")

_CUDART = Label("@local_cuda//:cudart")
_EMULATOR = Label("//cuda/emulator:emulator")
_UNAVAILABLE = [Label("//third_party:unavailable")]

# For target_compatible_with.
CUDA_COMPATIBLE = [] if CUDA_AVAILABLE else _UNAVAILABLE
NCCL_COMPATIBLE = [] if NCCL_AVAILABLE else _UNAVAILABLE

def _with_cuda(compatible_with):
    """`compatible_with` and CUDA, each label once."""
    return CUDA_COMPATIBLE + [label for label in compatible_with if label not in CUDA_COMPATIBLE]

def if_cuda(then, otherwise = []):
    return then if CUDA_AVAILABLE else otherwise

def if_nccl(then, otherwise = []):
    return then if NCCL_AVAILABLE else otherwise

CudaArchs = provider(doc = "GPU architectures.", fields = {"archs": "such as ['sm_80', 'sm_90'], oldest first"})

def _cuda_archs_impl(ctx):
    archs = [arch.strip() for arch in ctx.build_setting_value.split(",") if arch.strip()]
    for arch in archs:
        if not arch.startswith("sm_"):
            fail("%s: want architectures such as sm_80,sm_90, not '%s'" % (ctx.label, ctx.build_setting_value))
    if not archs:
        fail("%s names no architecture" % ctx.label)
    return [CudaArchs(archs = archs)]

cuda_archs = rule(
    implementation = _cuda_archs_impl,
    build_setting = config.string(flag = True),
    doc = "A flag that holds a comma-separated list of GPU architectures.",
)

_OPTIMIZATION = {
    "dbg": ["-O0", "-g"],
    "fastbuild": ["-O1"],
    "opt": ["-O3", "-DNDEBUG"],
}

def _gencode(archs):
    numbers = [arch[len("sm_"):] for arch in archs]
    flags = ["-gencode=arch=compute_%s,code=sm_%s" % (number, number) for number in numbers]

    # No later GPU runs the PTX of an architecture such as sm_90a.
    plain = [number for number in numbers if number.isdigit()]
    return flags + ["-gencode=arch=compute_%s,code=compute_%s" % (number, number) for number in plain[-1:]]

def _nvcc(ctx, form, arch_flags, extension):
    """Compiles each source to `form`, -c or -cubin; returns the outputs, _nvcc/TARGET/SOURCE + extension."""
    toolchain = find_cpp_toolchain(ctx)
    context = ctx.attr.deps_context[CcInfo].compilation_context

    # nvcc finds its own toolkit's headers; a second path to them would only enlarge every sandbox. A precompiled header
    # (bazel/precompiled.bzl) belongs to the C++ compiler.
    headers = [
        header
        for header in context.headers.to_list()
        if "local_cuda/" not in header.path and not header.path.endswith(".gch")
    ]
    includes = [path for path in context.system_includes.to_list() + context.includes.to_list() if "local_cuda" not in path]
    quote_includes = [path for path in context.quote_includes.to_list() if "local_cuda" not in path]

    flags = ["-std=c++20", form, "--expt-relaxed-constexpr", "--threads=0"]
    flags += ["-ccbin", CUDA_HOST_COMPILER or toolchain.compiler_executable]
    flags += ["-Xcompiler=-fPIC,-Wall"]
    flags += _OPTIMIZATION[ctx.var["COMPILATION_MODE"]]
    flags += arch_flags
    flags += ["-D" + define for define in context.defines.to_list()]
    flags += ["-I" + path for path in quote_includes]
    flags += ["-isystem=" + path for path in includes]
    flags += ctx.attr.nvccopts

    outputs = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("_nvcc/%s/%s" % (ctx.label.name, source.basename[:-len(".cu")] + extension))
        ctx.actions.run(
            executable = CUDA_PATH + "/bin/nvcc",
            arguments = flags + [source.path, "-o", output.path],
            inputs = depset([source] + headers, transitive = [toolchain.all_files]),
            outputs = [output],
            # The version makes the action differ for another toolkit in the same place.
            env = {"FSDP_CUDA_VERSION": CUDA_VERSION, "PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s" % source.short_path,
        )
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

def _cuda_objects_impl(ctx):
    # Only position independent code: with both kinds a shared library would get each symbol twice.
    return _nvcc(ctx, "-c", _gencode(ctx.attr._archs[CudaArchs].archs), ".pic.o")

def _cuda_cubins_impl(ctx):
    return _nvcc(ctx, "-cubin", ["-arch=" + ctx.attr.arch], ".cubin")

_NVCC_ATTRS = {
    "srcs": attr.label_list(allow_files = [".cu"]),
    "deps_context": attr.label(providers = [CcInfo]),
    "nvccopts": attr.string_list(),
    "_cc_toolchain": attr.label(default = "@rules_cc//cc:current_cc_toolchain"),
}

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = dict(_NVCC_ATTRS, _archs = attr.label(default = "//cuda:archs")),
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

_cuda_cubins = rule(
    implementation = _cuda_cubins_impl,
    attrs = dict(_NVCC_ATTRS, arch = attr.string()),
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

def cuda_cubins(name, library, srcs, arch = "sm_90", **kwargs):
    """The machine code of a cuda_library's kernels, for a test that reads it; no program links it.

    Args:
      name: the target.
      library: the cuda_library of the same package that has `srcs`; without its nvccopts.
      srcs: .cu files of it.
      arch: the architecture, independent of --//cuda:archs.
      **kwargs: visibility and tags.
    """
    _cuda_cubins(
        name = name,
        srcs = srcs,
        arch = arch,
        deps_context = library + "_cuda_deps",
        target_compatible_with = CUDA_COMPATIBLE,
        **kwargs
    )

def _compile_cuda(name, srcs, hdrs, deps, nvccopts, testonly):
    """Replaces the .cu files among `srcs` by their objects."""
    cuda_srcs = [src for src in srcs if src.endswith(".cu")]
    if not cuda_srcs:
        return srcs

    # Carries the headers and include paths of the library and of `deps` to nvcc.
    cc_library(
        name = name + "_cuda_deps",
        testonly = testonly,
        hdrs = hdrs,
        tags = ["manual"],
        target_compatible_with = CUDA_COMPATIBLE,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    _cuda_objects(
        name = name + "_cuda_objects",
        testonly = testonly,
        srcs = cuda_srcs,
        deps_context = ":" + name + "_cuda_deps",
        nvccopts = nvccopts,
        tags = ["manual"],
        target_compatible_with = CUDA_COMPATIBLE,
        visibility = ["//visibility:private"],
    )
    return [src for src in srcs if not src.endswith(".cu")] + [":" + name + "_cuda_objects"]

_EMULATED_COPTS = [
    # nvcc does the same for explicitly rounded operations, and only for them, on any processor.
    "-ffp-contract=off",
    "-Wno-unknown-pragmas",
    # A GPU traps at a misaligned access, so the emulated code must trap too.
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
]

def emulated(label):
    """The label of the emulated twin of a cuda_library."""
    if ":" not in label:
        fail("write %s with its target's name" % label)
    return label + "_emulated"

def _emulated_srcs(name, srcs):
    """C++ files that include the .cu files among `srcs`."""
    emulated_srcs = []
    for src in srcs:
        if not src.endswith(".cu"):
            emulated_srcs.append(src)
            continue
        wrapper = "%s/%s.cc" % (name, src)
        native.genrule(
            name = "%s_%s" % (name, src.replace(".", "_")),
            outs = [wrapper],
            cmd = "echo '#include <cuda_runtime.h>\n#include \"%s/%s\"' > $@" % (native.package_name(), src),
            tags = ["manual"],
            visibility = ["//visibility:private"],
        )
        emulated_srcs.append(":" + wrapper)
    return emulated_srcs

def _emulated_deps(name, srcs, deps, cuda_deps):
    """The emulated target's deps: among them one that carries the .cu files to the compiler."""
    cc_library(
        name = name + "_sources",
        testonly = True,
        tags = ["manual"],
        textual_hdrs = [src for src in srcs if src.endswith(".cu")],
        visibility = ["//visibility:private"],
    )
    return deps + [emulated(dep) for dep in cuda_deps] + [":" + name + "_sources", _EMULATOR]

def cuda_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        cuda_deps = [],
        toolkit_deps = [],
        nvccopts = [],
        testonly = False,
        target_compatible_with = [],
        **kwargs):
    """A cc_library of .cu, .cc and header files, linked with the static CUDA runtime, and its emulated twin.

    Args:
      name: the library.
      srcs: .cu files are compiled by nvcc, .cc files by the C++ compiler.
      hdrs: as in cc_library.
      deps: as in cc_library.
      cuda_deps: the dependencies that are a cuda_library: the emulated twin depends on their twins.
      toolkit_deps: the toolkit's libraries other than the runtime; the emulator replaces them in the twin.
      nvccopts: more flags for nvcc.
      testonly: as in cc_library. The twin always is.
      target_compatible_with: as in cc_library, in addition to CUDA itself.
      **kwargs: more of cc_library's attributes.
    """
    all_deps = deps + cuda_deps + toolkit_deps + [_CUDART]
    cc_library(
        name = name,
        testonly = testonly,
        srcs = _compile_cuda(name, srcs, hdrs, all_deps, nvccopts, testonly),
        hdrs = hdrs,
        # The static runtime hides its symbols, so a shared library made from this library only would not load.
        linkstatic = True,
        target_compatible_with = _with_cuda(target_compatible_with),
        deps = all_deps,
        **kwargs
    )
    twin = emulated(":" + name)[1:]
    cc_library(
        name = twin,
        testonly = True,
        srcs = _emulated_srcs(twin, srcs),
        hdrs = hdrs,
        copts = _EMULATED_COPTS,
        deps = _emulated_deps(twin, srcs, deps, cuda_deps),
        **kwargs
    )

def cuda_test(name, srcs, deps = [], cuda_deps = [], nvccopts = [], tags = [], target_compatible_with = [], **kwargs):
    """A cc_test of .cu and .cc files, tagged gpu, and its emulated twin.

    The first must skip, with a reason, if there is no GPU; the twin runs everywhere.

    Args:
      name: the test, ending in _test.
      srcs: as in cuda_library.
      deps: as in cuda_library.
      cuda_deps: as in cuda_library.
      nvccopts: as in cuda_library.
      tags: as in cc_test.
      target_compatible_with: as in cc_test, in addition to CUDA itself.
      **kwargs: more of cc_test's attributes.
    """
    all_deps = deps + cuda_deps + [_CUDART]
    kwargs.setdefault("visibility", ["//tools:__subpackages__"])  # for gpu_bundle and its test
    cc_test(
        name = name,
        srcs = _compile_cuda(name, srcs, [], all_deps, nvccopts, True),
        tags = tags + ["gpu"],
        target_compatible_with = _with_cuda(target_compatible_with),
        deps = all_deps,
        **kwargs
    )
    twin = name[:-len("_test")] + "_emulated_test"
    cc_test(
        name = twin,
        srcs = _emulated_srcs(twin, srcs),
        copts = _EMULATED_COPTS,
        tags = tags,
        deps = _emulated_deps(twin, srcs, deps, cuda_deps),
        **kwargs
    )

def cuda_binary(name, srcs, deps = [], cuda_deps = [], testonly = False, target_compatible_with = [], **kwargs):
    """A cc_binary of .cc files, and its emulated twin.

    Args:
      name: the program.
      srcs: as in cc_binary.
      deps: as in cuda_library.
      cuda_deps: as in cuda_library.
      testonly: as in cc_binary. The twin always is.
      target_compatible_with: as in cc_binary, in addition to CUDA itself.
      **kwargs: more of cc_binary's attributes.
    """
    cc_binary(
        name = name,
        testonly = testonly,
        srcs = srcs,
        target_compatible_with = _with_cuda(target_compatible_with),
        deps = deps + cuda_deps + [_CUDART],
        **kwargs
    )
    cc_binary(
        name = name + "_emulated",
        testonly = True,
        srcs = srcs,
        copts = _EMULATED_COPTS,
        deps = deps + [emulated(dep) for dep in cuda_deps] + [_EMULATOR],
        **kwargs
    )

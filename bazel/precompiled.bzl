# SPDX-License-Identifier: Apache-2.0
"""precompiled_header: headers that gcc reads once for all sources of this repository.

For the compiler a source of 185 lines is 130,000 lines, nearly all of them from the same few headers of the standard
library, Abseil and GoogleTest, and reading them is half of its work. After gcc has read fsdp_NAME.h, its state is kept as
fsdp_NAME.h.gch; a compilation that begins with fsdp_NAME.h maps that file instead of reading the headers. gcc checks that
most options equal the file's options, but not -O or -f, and then applies the file's: only targets without their own
options may use it.

No source relies on it: each includes the headers that it uses. A repository that depends on this one compiles our
sources without it (see cc.bzl), and so does a compiler other than gcc.
"""

load("@local_compiler//:config.bzl", "IS_GCC")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cpp_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

_COMPILE = "c++-compile"  # the action whose options gcc compares

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    header = ctx.actions.declare_file("fsdp_%s.h" % ctx.label.name)
    outputs = [header]
    ctx.actions.write(header, "".join(["#include %s\n" % include for include in ctx.attr.includes]))

    # For another compiler no target reads the precompiled file (cc.bzl).
    if IS_GCC:
        outputs.append(_precompile(ctx, toolchain, header))
    own = cc_common.create_compilation_context(
        headers = depset(outputs),
        quote_includes = depset([header.dirname]),
    )
    return [
        DefaultInfo(files = depset(outputs)),
        cc_common.merge_cc_infos(
            direct_cc_infos = [CcInfo(compilation_context = own)],
            cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
        ),
    ]

def _precompile(ctx, toolchain, header):
    precompiled = ctx.actions.declare_file(header.basename + ".gch")
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = precompiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    ctx.actions.run(
        executable = toolchain.compiler_executable,
        # -x comes first, because it decides how the source file that follows is read. With -MD gcc keeps the names of all
        # headers in the result, for -fpch-deps.
        arguments = ["-x", "c++-header", "-MD", "-MF", "/dev/null"] + cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = _COMPILE,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = _COMPILE,
            variables = variables,
        ),
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [precompiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % header.short_path,
    )
    return precompiled

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "includes": attr.string_list(doc = "With quotes or angle brackets, as after #include."),
        "copts": attr.string_list(doc = "The options of the sources that use it."),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@rules_cc//cc:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

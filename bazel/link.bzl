# SPDX-License-Identifier: Apache-2.0
"""cc_static_binary: a program that is one static file, linked from the objects that the ordinary program has.

An installed library may have no archive (libisal.so, libhwy.so): `replaced` names it with the target that stands in for
it. Any other library without an archive is an error with its name, since the linker's message names none of ours.
"""

load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cpp_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _file_of(library):
    """The shared library of a LibraryToLink, by its own name."""
    return library.resolved_symlink_dynamic_library or library.dynamic_library

def linked_archives(label, context, replaced):
    """A linking context with the archives of `context`, without the shared libraries that `replaced` names."""
    inputs = []
    for linker_input in context.linker_inputs.to_list():
        libraries = []
        for library in linker_input.libraries:
            if library.static_library or library.pic_static_library:
                libraries.append(library)
            elif _file_of(library).basename not in replaced:
                fail("%s: %s has no archive (lib*.a) in %s, and nothing in `replaced` stands in for it" %
                     (label, _file_of(library).basename, linker_input.owner))
        inputs.append(cc_common.create_linker_input(
            owner = linker_input.owner,
            libraries = depset(libraries),
            user_link_flags = depset(linker_input.user_link_flags),
            additional_inputs = depset(linker_input.additional_inputs),
        ))
    return cc_common.create_linking_context(linker_inputs = depset(inputs, order = "topological"))

def _cc_static_binary_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )


    # One context, since the order among several is not that of the list. The stand-ins come first: a definition of theirs
    # then also takes the place of one in an archive of the C library.
    merged = cc_common.merge_cc_infos(cc_infos = [target[CcInfo] for target in ctx.attr.replaced.keys() + ctx.attr.deps])
    linked = cc_common.link(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [linked_archives(ctx.label, merged.linking_context, ctx.attr.replaced.values())],
        output_type = "executable",
        user_link_flags = ["-static", "-no-pie"],
    )
    return [DefaultInfo(
        executable = linked.executable,
        files = depset([linked.executable]),
        runfiles = ctx.runfiles(files = [linked.executable]),
    )]

cc_static_binary = rule(
    implementation = _cc_static_binary_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo], doc = "The library with main, and what it needs."),
        "replaced": attr.label_keyed_string_dict(
            providers = [CcInfo],
            doc = "A target -> the shared library that it stands in for, such as libisal.so.",
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    executable = True,
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

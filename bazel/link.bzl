# SPDX-License-Identifier: Apache-2.0
"""Links the objects of ordinary targets: cc_static_binary, a program that is one static file, and cc_shared_file, a
shared library that contains everything but the C library.

An installed library may have no archive (libisal.so, libhwy.so): `replaced` names it with the target that replaces it.
Any other library without an archive is an error with its name, because the linker's message does not name our targets.
"""

load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cpp_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

def _file_of(library):
    """The shared library of a LibraryToLink, by its own name."""
    return library.resolved_symlink_dynamic_library or library.dynamic_library

def linked_archives(label, context, replaced):
    """A linking context with the archives of `context`, without the shared libraries in `replaced`."""
    inputs = []
    for linker_input in context.linker_inputs.to_list():
        libraries = []
        for library in linker_input.libraries:
            if library.static_library or library.pic_static_library:
                libraries.append(library)
            elif _file_of(library).basename not in replaced:
                fail("%s: %s has no archive (lib*.a) in %s, and nothing in `replaced` replaces it" %
                     (label, _file_of(library).basename, linker_input.owner))
        inputs.append(cc_common.create_linker_input(
            owner = linker_input.owner,
            libraries = depset(libraries),
            user_link_flags = depset(linker_input.user_link_flags),
            additional_inputs = depset(linker_input.additional_inputs),
        ))
    return cc_common.create_linking_context(linker_inputs = depset(inputs, order = "topological"))

def _features_of(ctx, toolchain, without = []):
    return cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features + without,
    )

def _merged(ctx):
    """The linking context of replacements and deps.

    A single context, because the order among several is not the order of the list. The replacements come first: their
    definitions then also take precedence over definitions in an archive of the C library.
    """
    targets = ctx.attr.replaced.keys() + ctx.attr.deps
    return cc_common.merge_cc_infos(cc_infos = [target[CcInfo] for target in targets]).linking_context

def _cc_static_binary_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = _features_of(ctx, toolchain)
    linked = cc_common.link(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [linked_archives(ctx.label, _merged(ctx), ctx.attr.replaced.values())],
        output_type = "executable",
        user_link_flags = ["-static", "-no-pie"],
    )
    return [DefaultInfo(
        executable = linked.executable,
        files = depset([linked.executable]),
        runfiles = ctx.runfiles(files = [linked.executable]),
    )]

_ATTRS = {
    "deps": attr.label_list(providers = [CcInfo], doc = "The libraries to link, with alwayslink, and dependencies."),
    "replaced": attr.label_keyed_string_dict(
        providers = [CcInfo],
        doc = "A target -> the shared library that it replaces, such as libisal.so.",
    ),
    "_cc_toolchain": attr.label(default = "@rules_cc//cc:current_cc_toolchain"),
}

cc_static_binary = rule(
    implementation = _cc_static_binary_impl,
    attrs = _ATTRS,
    executable = True,
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

def _renamed(ctx, toolchain, features, archive):
    """A copy of an archive with the symbols of `redefined` renamed."""
    copy = ctx.actions.declare_file("%s_/%s" % (ctx.label.name, archive.basename))
    ctx.actions.run(
        executable = toolchain.objcopy_executable,
        arguments = ["--redefine-sym=%s=%s" % names for names in ctx.attr.redefined.items()] + [archive.path, copy.path],
        inputs = depset([archive], transitive = [toolchain.all_files]),
        outputs = [copy],
        mnemonic = "RenameSymbols",
    )
    return cc_common.create_library_to_link(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        pic_static_library = copy,
    )

def _for_shared_file(ctx, toolchain, features):
    """The linking context, with -lNAME for archives that have a shared form and renamed copies of others."""
    inputs = []
    for linker_input in linked_archives(ctx.label, _merged(ctx), ctx.attr.replaced.values()).linker_inputs.to_list():
        libraries = []
        flags = linker_input.user_link_flags
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if ctx.attr.shared and archive.basename.startswith(ctx.attr.shared):
                flags = flags + ["-l" + archive.basename[len("lib"):-len(".a")]]
            elif archive.basename in ctx.attr.redefined_in:
                libraries.append(_renamed(ctx, toolchain, features, archive))
            else:
                libraries.append(library)
        inputs.append(cc_common.create_linker_input(
            owner = linker_input.owner,
            libraries = depset(libraries),
            user_link_flags = depset(flags),
            additional_inputs = depset(linker_input.additional_inputs),
        ))
    return cc_common.create_linking_context(linker_inputs = depset(inputs, order = "topological"))

def _cc_shared_file_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)

    # gold exports names that the script makes local if a linked library has them too. GNU's first linker does not, but
    # it lacks --start-lib.
    features = _features_of(ctx, toolchain, without = ["supports_start_end_lib"])
    script = ctx.file.version_script
    linked = cc_common.link(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [_for_shared_file(ctx, toolchain, features)],
        output_type = "dynamic_library",
        additional_inputs = [script] + ctx.files.stubs,
        user_link_flags = [file.path for file in ctx.files.stubs] + [
            # The C++ library is included too; the shared one, which every link names last, is then not needed.
            # __cxa_pure_virtual has only weak references, so its object must be requested by name.
            "-Wl,-u,__cxa_pure_virtual",
            "-l:libstdc++.a",
            "-Wl,--as-needed",
            "-fuse-ld=bfd",
            "-Wl,--version-script=" + script.path,
            "-Wl,-soname,lib%s.so" % ctx.label.name,
            "-Wl,-z,defs",
            # RPATH and not RUNPATH: it also applies to the dependencies of the libraries next to this one.
            "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib%s.libs" % ctx.label.name,
        ],
    )
    library = linked.library_to_link.resolved_symlink_dynamic_library or linked.library_to_link.dynamic_library
    return [DefaultInfo(files = depset([library]), runfiles = ctx.runfiles(files = [library]))]

cc_shared_file = rule(
    implementation = _cc_shared_file_impl,
    attrs = dict(
        _ATTRS,
        redefined = attr.string_dict(doc = "A symbol -> its name in copies of the archives in redefined_in."),
        redefined_in = attr.string_list(doc = "Archives whose code cannot reach a symbol of another shared library."),
        shared = attr.string(
            doc = "Instead of archives with this prefix, links their shared forms: the archives' thread-local " +
                  "variables are compiled for programs only.",
        ),
        stubs = attr.label_list(
            allow_files = True,
            doc = "Older shared libraries that replace the libraries of the same names in this link.",
        ),
        version_script = attr.label(allow_single_file = True, mandatory = True),
    ),
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)

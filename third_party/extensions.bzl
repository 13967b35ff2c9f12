# SPDX-License-Identifier: Apache-2.0
"""The dependencies of this module in module mode (Bazel 7 and later): installed, or modules of the consumer's graph.

    system = use_extension("@fsdp//third_party:extensions.bzl", "system_deps")
    system.from_modules(
        abseil = "@abseil-cpp",
        nlohmann_json = "@nlohmann_json//:json",
    )

Without the tag every library is the installed one. A program that links Abseil itself must name its own, or two copies
meet on one link line. The root module decides; if it names no module for a library, the module that another one names
is used, and two that differ are an error.
"""

load(":deps.bzl", "development_repositories", "system_repositories")
load(":module_aliases.bzl", "abseil_aliases", "target_alias")

# Attribute of the tag -> repository here and the target in it.
_LIBRARIES = {
    "hdf5": ("system_hdf5", "hdf5"),
    "highway": ("highway", "hwy"),
    "isal": ("isal", "isal"),
    "liburing": ("liburing", "liburing"),
    "nlohmann_json": ("nlohmann_json", "json"),
    "onednn": ("onednn", "onednn"),
    "xxhash": ("xxhash", "xxhash"),
    "zlib": ("zlib", "zlib"),
    "zstd": ("zstd", "zstd"),
}

_NAMES = ["abseil"] + sorted(_LIBRARIES.keys())

def _wanted(tags, module):
    """Attribute -> label of the tags of one module."""
    wanted = {}
    for tag in tags:
        for name in _NAMES:
            label = getattr(tag, name)
            if label and wanted.setdefault(name, label) != label:
                fail("%s: from_modules names two targets for %s: %s and %s" % (module, name, wanted[name], label))
    return wanted

def _chosen(module_ctx):
    """Attribute -> label, over all modules."""
    chosen = {}
    deciders = {}
    roots = [module for module in module_ctx.modules if module.is_root]
    for module in roots + [module for module in module_ctx.modules if not module.is_root]:
        for name, label in _wanted(module.tags.from_modules, module.name).items():
            decider = deciders.setdefault(name, module)
            if chosen.setdefault(name, label) != label and not decider.is_root:
                fail(("modules %s and %s take %s from different places: %s and %s; " +
                      "name one in from_modules of the root module") % (decider.name, module.name, name, chosen[name], label))
    return chosen

def _system_deps_impl(module_ctx):
    chosen = _chosen(module_ctx)
    if "abseil" in chosen:
        abseil_aliases(name = "com_google_absl", module = chosen["abseil"])
    for name, (repository, target) in _LIBRARIES.items():
        if name in chosen:
            target_alias(name = repository, target = target, actual = str(chosen[name]))
    system_repositories(without = [
        "com_google_absl" if name == "abseil" else _LIBRARIES[name][0]
        for name in chosen
    ])

system_deps = module_extension(
    implementation = _system_deps_impl,
    tag_classes = {
        "from_modules": tag_class(
            attrs = dict(
                {name: attr.label(doc = "The target that replaces @%s//:%s." % place) for name, place in _LIBRARIES.items()},
                abseil = attr.label(doc = "Any label in the module abseil-cpp, such as @abseil-cpp."),
            ),
            doc = "Libraries that come from the module graph instead of the system.",
        ),
    },
)

def _dev_deps_impl(_module_ctx):
    development_repositories()

dev_deps = module_extension(implementation = _dev_deps_impl)

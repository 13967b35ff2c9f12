# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# A registry of files for Bazel 7 in a chroot: module graphs are resolved, and modules are built, without a network. Its
# modules are Debian's sources of them, and for hdf5 and isa-l the overlays of third_party/registry.

# empty_module ROOT NAME VERSION [LEVEL]: a module that the graph names and no build uses.
empty_module() {
  module "$1" "$2" "$3" /registry/empty "module(name = \"$2\", version = \"$3\", compatibility_level = ${4:-0})"
}

# module ROOT NAME VERSION FOLDER TEXT: TEXT is its MODULE.bazel, FOLDER, in the chroot, its sources.
module() {
  local directory=$1/registry/modules/$2/$3
  mkdir -p "$directory"
  echo "$5" >"$directory/MODULE.bazel"
  echo "{\"type\": \"local_path\", \"path\": \"$4\"}" >"$directory/source.json"
}

# make_registry ROOT: the modules that Debian's Bazel itself asks for. It has rules_cc and similar ones as overrides,
# but not these.
make_registry() {
  rm -rf "$1/registry"
  mkdir -p "$1/registry/empty"
  echo '{}' >"$1/registry/bazel_registry.json"
  touch "$1/registry/empty/BUILD.bazel" "$1/registry/empty/WORKSPACE"
  local module
  for module in apple_support@1.23.1 buildozer@7.1.2 protobuf@3.19.6 protobuf@21.7; do
    empty_module "$1" "${module%@*}" "${module#*@}"
  done
  empty_module "$1" zlib 1.3.1.bcr.3 1
}

# unpack ROOT PACKAGE SUITE VERSION: the original source of a Debian package as /modules/PACKAGE in the chroot. Exits
# with 1 if Debian now has another release than VERSION.
unpack() {
  local folder=$1/modules/$2
  [ ! -e "$folder/unpacked" ] || return 0
  echo "deb-src ${MIRROR:-http://deb.debian.org/debian} $3 main" >"$1/etc/apt/sources.list.d/$3-source.list"
  in_chroot "$1" "rm -rf /modules/$2 && mkdir -p /modules/$2/archive && cd /modules/$2/archive && apt-get update -q >/dev/null &&
    version=\$(apt-cache showsrc --only-source $2 | sed -n 's/^Version: //p' | grep -F '$4' | head -n 1) &&
    { [ \"\$version\" ] || { echo '$2: Debian has no $4' >&2; exit 1; }; } &&
    apt-get source -q --tar-only --download-only --only-source $2=\$version >/dev/null &&
    tar -xf *.orig.tar.* --strip-components=1 -C .. && cd .. && rm -rf archive && touch unpacked"
}

# overlaid ROOT PACKAGE MODULE VERSION: a module of third_party/registry on the sources of a Debian package.
overlaid() {
  # shellcheck disable=SC2154  # run.sh sets it
  local entry=$repository/third_party/registry/modules/$3/$4
  cp -rL "$entry/overlay/." "$1/modules/$2/"
  module "$1" "$3" "$4" "/modules/$2" "$(cat "$entry/MODULE.bazel")"
}

# add_modules ROOT: the modules that tests/consumer/modules/MODULE.bazel names.
add_modules() {
  local modules=$1/modules
  unpack "$1" abseil forky 20260526.0
  unpack "$1" highway forky 1.3.0
  unpack "$1" hdf5 trixie 1.14.5
  unpack "$1" libisal forky 2.31.1
  unpack "$1" nlohmann-json3 forky 3.11.3
  unpack "$1" xxhash forky 0.8.3
  unpack "$1" zlib forky 1.3.2

  # These have their own MODULE.bazel and BUILD.bazel.
  module "$1" abseil-cpp 20260526.0 /modules/abseil "$(cat "$modules/abseil/MODULE.bazel")"
  module "$1" highway 1.3.0 /modules/highway "$(cat "$modules/highway/MODULE.bazel")"
  module "$1" zlib 1.3.2 /modules/zlib "$(sed 's/version = "0.0.0"/version = "1.3.2"/' "$modules/zlib/MODULE.bazel")"
  empty_module "$1" googletest 1.15.2 1
  empty_module "$1" googletest 1.17.0.bcr.2 1
  empty_module "$1" zlib 1.3.1.bcr.5 1

  # These do not have MODULE.bazel, or neither file.
  module "$1" nlohmann_json 3.11.3 /modules/nlohmann-json3 'module(name = "nlohmann_json", version = "3.11.3")'
  touch "$modules/nlohmann-json3/MODULE.bazel"
  module "$1" xxhash 0.8.3 /modules/xxhash 'module(name = "xxhash", version = "0.8.3")
bazel_dep(name = "rules_cc", version = "0.1.1")'
  touch "$modules/xxhash/MODULE.bazel"
  cat >"$modules/xxhash/BUILD.bazel" <<'BUILD'
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "xxhash",
    srcs = ["xxhash.c"],
    hdrs = ["xxh3.h", "xxhash.h"],
    includes = ["."],
    visibility = ["//visibility:public"],
)
BUILD

  overlaid "$1" hdf5 hdf5 1.14.5
  overlaid "$1" libisal isa-l 2.31.1

  # The assembler of the registry's nasm is built from source; this one is installed.
  in_chroot "$1" "command -v nasm >/dev/null || apt-get install --yes --no-install-recommends -q nasm >/dev/null
    mkdir -p /modules/nasm && cp /usr/bin/nasm /modules/nasm/nasm && touch /modules/nasm/MODULE.bazel
    echo 'exports_files([\"nasm\"])' >/modules/nasm/BUILD.bazel"
  module "$1" nasm 2.16.03.bcr.1 /modules/nasm 'module(name = "nasm", version = "2.16.03.bcr.1")'

  # Abseil asks for a newer rules_cc than Debian's, for the name of a compiler that is not used here:
  # --override_module=rules_cc=/modules/rules_cc replaces Debian's.
  [ -z "${RULES_CC:-}" ] || return 0
  in_chroot "$1" "rm -rf /modules/rules_cc && cp -r /usr/share/bazel/rules/cc /modules/rules_cc"
  cat >>"$modules/rules_cc/cc/compiler/BUILD" <<'BUILD'

config_setting(
    name = "emscripten",
    flag_values = {"@rules_cc//cc/private/toolchain:compiler": "emscripten"},
)
BUILD
}

# with_rules_cc ROOT RULES_CC BAZEL_FEATURES: the sources of upstream's rules_cc, as /modules/rules_cc in the chroot,
# and of the bazel_features that it needs.
with_rules_cc() {
  local modules=$1/modules asked
  rm -rf "$modules/rules_cc" "$modules/bazel_features" "$modules/protobuf"
  mkdir -p "$modules/protobuf/bazel/common"
  cp -r "$2" "$modules/rules_cc"
  cp -r "$3" "$modules/bazel_features"
  asked=$(sed -n 's/^bazel_dep(name = "bazel_features", version = "\(.*\)")/\1/p' "$2/MODULE.bazel")
  module "$1" bazel_features "$asked" /modules/bazel_features \
    "$(sed "s/version = \"0.0.0\"/version = \"$asked\"/" "$3/MODULE.bazel")"

  # rules_cc loads two files of protobuf, and nothing here uses what they define.
  module "$1" protobuf 27.0 /modules/protobuf 'module(name = "protobuf", version = "27.0")'
  touch "$modules/protobuf/MODULE.bazel"
  echo 'cc_proto_library = None' >"$modules/protobuf/bazel/cc_proto_library.bzl"
  echo 'ProtoInfo = None' >"$modules/protobuf/bazel/common/proto_info.bzl"
  touch "$modules/protobuf/bazel/BUILD.bazel"
  cat >"$modules/protobuf/bazel/common/BUILD.bazel" <<'BUILD'
exports_files(["proto_info.bzl"])

filegroup(
    name = "proto_info_bzl",
    srcs = ["proto_info.bzl"],
    visibility = ["//visibility:public"],
)
BUILD
}

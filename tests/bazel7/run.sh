#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that other repositories can use this one with Bazel 7 in module mode, on the newer libraries of the next Debian:
# in a chroot of Debian forky, whose bazel-bootstrap is 7.7. By hand, as root, with about 6 GB in ROOT; an hour on two
# processors, the first time:
#
#   tests/bazel7/run.sh [consumer|modules|TARGET...]        default: consumer modules
#
#   consumer   tests/consumer, on installed libraries: fsdp, checkpoint, collectives, and ckpt by its rules
#   modules    tests/consumer/modules, which links Abseil itself: on Abseil, HDF5, ISA-L and others of its module graph
#   TARGET     of this repository, such as //base/...: tests them
#
# ROOT is the chroot's directory (kept, so that a second run is quick), MIRROR the Debian mirror. RULES_CC and
# BAZEL_FEATURES are directories with the sources of upstream's rules_cc and bazel_features, which are then used in place
# of Debian's rules_cc 0.0.11.
#
# Debian's Bazel carries rules_cc and its like as overrides but never the registry's metadata, without which no module
# graph can be resolved offline: registry.sh makes a registry of files. With a network and upstream's Bazel this is not
# needed.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/chroot.sh
source "$repository/tests/chroot.sh"
# shellcheck source=tests/bazel7/registry.sh
source "$repository/tests/bazel7/registry.sh"
enter_namespaces "$@"
[ $# != 0 ] || set -- consumer modules

ROOT=${ROOT:-${TMPDIR:-/tmp}/fsdp_bazel7}
make_chroot forky "$ROOT"
# Files of a mirror are signed, so accept them after their date of validity too: a mirror may lag behind.
echo 'Acquire::Check-Valid-Until "false";' >"$ROOT/etc/apt/apt.conf.d/90lagging-mirror"
rm -rf "$ROOT/src"
git clone --quiet "file://$repository" "$ROOT/src"
make_registry "$ROOT"

# Newer compilers and libraries warn of more. Paths are those within ROOT.
flags="--registry=file:///registry --noenable_workspace --disk_cache=/var/cache/fsdp-bazel7 --copt=-Wno-error"
flags="$flags --color=no --curses=no --noshow_progress"
if [ -n "${RULES_CC:-}" ]; then
  with_rules_cc "$ROOT" "$RULES_CC" "${BAZEL_FEATURES:?the sources of the bazel_features that rules_cc asks for}"
  flags="$flags --override_module=rules_cc=/modules/rules_cc"
fi

consumer() {
  in_chroot "$ROOT" "cd /src/tests/consumer && ./run.sh $flags && ../../bazelw shutdown"
}

# The libraries that modules_consumer links, one per line.
libraries() {
  in_chroot "$ROOT" "cd /src/tests/consumer/modules && ../../../bazelw aquery $flags 'mnemonic(CppLink, //:modules_consumer)'" |
    grep -oE "[^ ,']*/lib[^ ,'/]*\\.(a|lo|so)\\b" | sort -u
}

modules() {
  add_modules "$ROOT"
  [ -n "${RULES_CC:-}" ] || flags="$flags --override_module=rules_cc=/modules/rules_cc"
  flags="$flags -c fastbuild"
  local said program=/src/tests/consumer/modules/bazel-bin/modules_consumer
  said=$(in_chroot "$ROOT" "cd /src/tests/consumer/modules && ../../../bazelw run $flags //:modules_consumer")
  [ "$said" = OK ] || { echo "modules: expected OK, but it printed: $said" >&2; exit 1; }

  # There must be one Abseil, the module graph's: in the libraries linked, in the symbols, and in the libraries loaded.
  libraries >"$ROOT/libraries"
  grep -q abseil-cpp "$ROOT/libraries"
  if grep -E 'lib(absl_[^/]*|hdf5[^/]*|isal|hwy|xxhash|z)\.[^/]*$' "$ROOT/libraries" | grep system_deps; then
    echo "modules: an installed library is linked in place of a module" >&2
    exit 1
  fi
  local spaces
  spaces=$(in_chroot "$ROOT" "nm -C $program" | grep -oE 'absl::(lts_[0-9]+|debian[0-9]+)::' | sort -u)
  [ "$(wc -l <<<"$spaces")" = 1 ] || { echo "modules: expected one Abseil, found: $spaces" >&2; exit 1; }
  if in_chroot "$ROOT" "readelf -d $program" | grep NEEDED | grep -E 'absl|hdf5|isal|hwy|xxhash|libz'; then
    echo "modules: the program needs an installed library" >&2
    exit 1
  fi

  # Without the tag two of them meet, which the checks must notice.
  sed -i '/^system.from_modules/,/^)/d' "$ROOT/src/tests/consumer/modules/MODULE.bazel"
  libraries >"$ROOT/libraries"
  if ! grep -q abseil-cpp "$ROOT/libraries" || ! grep -q 'system_deps.*libabsl_' "$ROOT/libraries"; then
    echo "modules: without from_modules there is one Abseil too, so this proves nothing" >&2
    exit 1
  fi
  in_chroot "$ROOT" "cd /src/tests/consumer/modules && ../../../bazelw shutdown"
}

targets=
for what in "$@"; do
  case $what in
    consumer | modules) ;;
    *) targets="$targets $what" ;;
  esac
done
[ -z "$targets" ] || in_chroot "$ROOT" "cd /src && ./bazelw test $flags$targets && ./bazelw shutdown"
for what in "$@"; do
  case $what in
    consumer) consumer ;;
    modules) modules ;;
  esac
done
echo "Bazel 7: passed"

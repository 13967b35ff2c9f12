#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that the same BUILD files work with Bazel 7 in module mode, on the newer libraries of the next Debian: in a chroot
# of Debian forky, whose bazel-bootstrap is 7.7. By hand, as root, with about 3 GB in ROOT:
#
#   tests/bazel7/run.sh [TARGET...]             # default: //base/... //tensor/...
#
# ROOT is the chroot's directory (kept, so that a second run is quick), MIRROR the Debian mirror.
#
# Debian's Bazel carries rules_cc and its like as overrides but never the registry's metadata, without which no module
# graph can be resolved offline; modules that this graph names and no build here uses are stood in for by empty ones, in a
# registry of files. With a network and upstream's Bazel nothing of that is needed.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/chroot.sh
source "$repository/tests/chroot.sh"
enter_namespaces "$@"

ROOT=${ROOT:-${TMPDIR:-/tmp}/fsdp_bazel7}
make_chroot forky "$ROOT"
rm -rf "$ROOT/src"
git clone --quiet "file://$repository" "$ROOT/src"

registry=$ROOT/registry
mkdir -p "$registry/empty"
echo '{}' >"$registry/bazel_registry.json"
touch "$registry/empty/BUILD.bazel" "$registry/empty/WORKSPACE"
for module in apple_support@1.23.1 buildozer@7.1.2 protobuf@3.19.6 protobuf@21.7 zlib@1.3.1.bcr.3; do
  directory=$registry/modules/${module%@*}/${module#*@}
  mkdir -p "$directory"
  echo "module(name = \"${module%@*}\", version = \"${module#*@}\", compatibility_level = 0)" >"$directory/MODULE.bazel"
  echo '{"type": "local_path", "path": "/registry/empty"}' >"$directory/source.json"
done

# Newer compilers and libraries warn of more.
flags="--registry=file:///registry --noenable_workspace --copt=-Wno-error"
if [ $# = 0 ]; then
  set -- //base/... //tensor/...
fi
in_chroot "$ROOT" "cd /src && ./bazelw test $flags $*"
in_chroot "$ROOT" "cd /src && bazel shutdown"
echo "Bazel 7: passed"

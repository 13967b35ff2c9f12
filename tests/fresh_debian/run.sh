#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves the README's promise on an empty machine: in a new minimal Debian 12, a fresh clone of the last commit builds,
# runs the quickstart and passes the tests; ./bazelw installs what is missing. By hand, as root:
#
#   tests/fresh_debian/run.sh [COMMAND...]      # default: the quickstart, then all tests
#
# ROOT is the chroot's directory (a new one under TMPDIR, removed at the end, unless given), MIRROR the Debian mirror.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/chroot.sh
source "$repository/tests/chroot.sh"
enter_namespaces "$@"

if [ -z "${ROOT:-}" ]; then
  ROOT=$(mktemp -d "${TMPDIR:-/tmp}/fresh_debian.XXXXXX")
  trap 'umount "$ROOT/dev/shm" "$ROOT/proc" && rm -rf --one-file-system "$ROOT"' EXIT
fi
make_chroot bookworm "$ROOT"
rm -rf "$ROOT/src"
git clone --quiet "file://$repository" "$ROOT/src"

if [ $# = 0 ]; then
  set -- "./bazelw run //examples:quickstart" "./bazelw test //..."
fi
for command; do
  in_chroot "$ROOT" "cd /src && $command"
done
changes=$(git -C "$ROOT/src" status --porcelain)
[ -z "$changes" ] || { echo "$0: the source tree was changed: $changes" >&2; exit 1; }
in_chroot "$ROOT" "cd /src && bazel shutdown"
echo "fresh Debian: passed"

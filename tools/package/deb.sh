#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gives deb.py what Bazel built; the flags are those of `./bazelw run //tools:deb -- FLAGS`.
set -eu
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
caller_dir=${BUILD_WORKING_DIRECTORY:-$PWD}
runfiles=${RUNFILES_DIR:-$self.runfiles}
for tree in "$runfiles/fsdp" "$runfiles/_main"; do
  if [ -d "$tree" ]; then cd "$tree" && break; fi
done
umask 022
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/package/deb.py "$@" --caller_dir="$caller_dir" --ckpt=tools/ckpt_static \
  --launch=tools/launch_static --license=LICENSE --changelog=CHANGELOG.md --module=MODULE.bazel

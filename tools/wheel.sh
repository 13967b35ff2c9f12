#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gives wheel.py what Bazel built; the flags are those of `./bazelw run //tools:wheel -- FLAGS`.
set -eu
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
caller_dir=${BUILD_WORKING_DIRECTORY:-$PWD}
runfiles=${RUNFILES_DIR:-$self.runfiles}
for tree in "$runfiles/fsdp" "$runfiles/_main"; do
  if [ -d "$tree" ]; then cd "$tree" && break; fi
done
exec python3 tools/wheel.py "$@" --caller_dir="$caller_dir" --library=checkpoint/c_api/libfsdp_checkpoint.so \
  --ckpt=tools/ckpt_static --license=LICENSE --module=MODULE.bazel \
  --package python/fsdp_checkpoint/*.py python/fsdp_checkpoint/py.typed

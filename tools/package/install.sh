#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gives install.py what Bazel built; the flags are those of `./bazelw run //tools:install -- FLAGS`.
set -eu
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
caller_dir=${BUILD_WORKING_DIRECTORY:-$PWD}
runfiles=${RUNFILES_DIR:-$self.runfiles}
for tree in "$runfiles/fsdp" "$runfiles/_main"; do
  if [ -d "$tree" ]; then cd "$tree" && break; fi
done
umask 022
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/package/install.py "$@" --caller_dir="$caller_dir" \
  --cpp_dir=tools/package --library=checkpoint/c_api/libfsdp_checkpoint.so \
  --header=checkpoint/c_api/fsdp_checkpoint.h --ckpt=tools/ckpt_static --launch=tools/launch_static \
  --module=MODULE.bazel

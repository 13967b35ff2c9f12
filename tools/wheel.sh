#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Gives wheel.py what Bazel built; the flags are those of `./bazelw run //tools:wheel -- FLAGS`.
set -eu
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
runfiles=${RUNFILES_DIR:-$self.runfiles}
for tree in "$runfiles/fsdp" "$runfiles/_main"; do
  if [ -d "$tree" ]; then cd "$tree" && break; fi
done
# A folder that the caller names is one of its own.
for argument; do
  shift
  case $argument in
    --output_dir=/*) ;;
    --output_dir=?*) argument=--output_dir=${BUILD_WORKING_DIRECTORY:-$OLDPWD}/${argument#--output_dir=} ;;
  esac
  set -- "$@" "$argument"
done
exec python3 tools/wheel.py "$@" --library=checkpoint/c_api/libfsdp_checkpoint.so --ckpt=tools/ckpt_static \
  --license=LICENSE --module=MODULE.bazel python/fsdp_checkpoint/*.py python/fsdp_checkpoint/py.typed

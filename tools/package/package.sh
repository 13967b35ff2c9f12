#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs deb.py, install.py or wheel.py, depending on the caller, with Bazel's outputs; the flags are those that follow
# `./bazelw run //tools:deb --` and so on.
set -eu
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
caller_dir=${BUILD_WORKING_DIRECTORY:-$PWD}
runfiles=${RUNFILES_DIR:-$self.runfiles}
for tree in "$runfiles/fsdp" "$runfiles/_main"; do
  if [ -d "$tree" ]; then cd "$tree" && break; fi
done
umask 022
export PYTHONDONTWRITEBYTECODE=1
made=$(basename "$self")
set -- python3 "tools/package/$made.py" "$@" --caller_dir="$caller_dir" --ckpt=tools/ckpt_static --module=MODULE.bazel
library=--library=checkpoint/c_api/libfsdp_checkpoint.so
case $made in
  deb) exec "$@" --launch=tools/launch_static --license=LICENSE --changelog=CHANGELOG.md ;;
  install)
    exec "$@" --launch=tools/launch_static "$library" --header=checkpoint/c_api/fsdp_checkpoint.h \
      --cpp_dir=tools/package
    ;;
  wheel)
    exec "$@" --license=LICENSE "$library" --package python/fsdp_checkpoint/*.py python/fsdp_checkpoint/py.typed
    ;;
esac
echo "package.sh: $made: expected to be called as deb, install or wheel" >&2
exit 2

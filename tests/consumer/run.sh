#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds and runs this repository, which depends on fsdp, with the installed Bazel:
#
#   tests/consumer/run.sh [OPTION OF BAZEL...]
#
# ckpt is built from source for the rules of bazel/ckpt.bzl. With RELEASED_CKPT=FILE it is that program, registered as a
# user registers a release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

options=("$@")
if [ -n "${RELEASED_CKPT:-}" ]; then
  install -D "$RELEASED_CKPT" released/ckpt
  options+=(--extra_toolchains=//:released_ckpt)
fi

said=$(../../bazelw run "${options[@]}" //:consumer)
[ "$said" = OK ] || { echo "consumer: expected OK, but it printed: $said" >&2; exit 1; }
../../bazelw test "${options[@]}" //:model_test //:model_in_bfloat16_test

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# fails_with TEXT TARGET: a test that must fail and print TEXT.
fails_with() {
  if ../../bazelw test "${options[@]}" --test_output=all "$2" >"$log" 2>&1; then
    echo "consumer: $2 passes; expected that it fails with: $1" >&2
    return 1
  fi
  grep -q "$1" "$log" || { cat "$log" >&2; return 1; }
}

fails_with "damaged is damaged" //:damaged_test
fails_with "expected one checkpoint" //:two_checkpoints_test
echo "consumer: passed"

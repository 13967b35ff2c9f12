#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The benchmark prints its purpose, and refuses models and flags that it does not have.
set -euo pipefail

fail() { echo "FAILED: $*" >&2 && exit 1; }

benchmark=tests/libtorch/benchmark
"$benchmark" --help | grep -q '^usage: ' || fail "--help"
{ "$benchmark" --no_such_flag=1 2>&1 || true; } | grep -q no_such_flag || fail "--no_such_flag"
{ "$benchmark" --size=1,2,x 2>&1 || true; } | grep -q 'size=1,2,x: expected' || fail "--size"
status=0
"$benchmark" --steps=0 >/dev/null 2>&1 || status=$?
[ "$status" = 2 ] || fail "--steps=0: exit status $status"

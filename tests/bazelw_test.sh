#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# ./bazelw with a program in Bazel's place: what tests write is removed when the command has ended, and its exit status,
# arguments and output are Bazel's. Skipped if /dev/shm is small, since bazelw then leaves files to Bazel.
set -u
bazelw=$PWD/$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bazelw_test: $1" >&2 && exit 1; }

mkdir "$work/bin"
cat >"$work/bin/bazel" <<'BAZEL'
#!/bin/bash
for argument; do
  case $argument in --test_tmpdir=*) mkdir -p "${argument#*=}" && echo data >"${argument#*=}/file" ;; esac
done
echo "$*"
exit 3
BAZEL
chmod +x "$work/bin/bazel"

out=$(PATH=$work/bin:$PATH "$bazelw" test //a:b --keep_going)
status=$?
[ "$status" = 3 ] || fail "the exit status is $status, expected Bazel's, 3: $out"
[[ $out == *"//a:b --keep_going" ]] || fail "the arguments are not passed in their order: $out"
files=$(sed -n 's/.*--test_tmpdir=\([^ ]*\).*/\1/p' <<<"$out")
[ -n "$files" ] || { echo "bazelw_test: SKIPPED: /dev/shm is too small here for bazelw to set --test_tmpdir" && exit 0; }
for _ in $(seq 100); do
  [ -e "$files" ] || break
  sleep 0.1
done
[ ! -e "$files" ] || fail "$files is left 10 seconds after the end"

out=$(PATH=$work/bin:$PATH "$bazelw" build //a:b)
[[ $out != *--test_tmpdir* ]] || fail "a build is given a directory for tests: $out"
echo "bazelw_test: PASSED"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes all files of a release, from the commit that is checked out:
#
#   tools/release.sh DIR [OPTION_OF_BAZEL...]
#
#   fsdp-VERSION.tar.gz                  the sources, of git archive; equal commits give equal bytes
#   ckpt, launch                         static programs
#   ckpt-aarch64, launch-aarch64         the same for 64-bit ARM, if there is a compiler for it
#   Containerfile                        an image of only ckpt
#   fsdp_checkpoint-VERSION-*.whl        the Python package
#   fsdp-tools_VERSION_*.deb             the programs with manual pages and completion
#   SHA256SUMS                           of all these
#
# DIR must be empty or not exist. The working tree must be clean, so that the programs match the sources.
set -euo pipefail

die() {
  echo "release.sh: $*" >&2
  exit "${status:-1}"
}

[ $# -ge 1 ] || status=2 die "usage: tools/release.sh DIR [OPTION_OF_BAZEL...]"
output=$1
options=("${@:2}")
mkdir -p "$output"
output=$(realpath -e "$output")
[ -z "$(ls -A "$output")" ] || die "$output is not empty"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -z "$(git status --porcelain)" ] || die "the working tree has changes: commit or stash them"

version=$(sed -n 's/^    version = "\(.*\)",$/\1/p' MODULE.bazel | head -n 1)
[ -n "$version" ] || die "MODULE.bazel has no version"
grep -q "^## $version\b" CHANGELOG.md || die "CHANGELOG.md has no section \"## $version\""

git archive --format=tar --prefix="fsdp-$version/" HEAD | gzip -9 -n >"$output/fsdp-$version.tar.gz"
./bazelw build "${options[@]}" //tools:ckpt_static //tools:launch_static //tools:wheel //tools:deb
for program in ckpt launch; do install -m 755 "bazel-bin/tools/${program}_static" "$output/$program"; done
# optional COMMAND...: 77 means that it was skipped and has printed the reason.
optional() {
  local result=0
  "$@" || result=$?
  [ "$result" = 0 ] || [ "$result" = 77 ] || die "$1 failed"
  return "$result"
}
if optional tools/static/aarch64.sh "$output" "${options[@]}"; then
  optional tools/static/aarch64_test.sh "$output" "$output/ckpt" || true
fi
install -m 644 tools/package/Containerfile "$output"
bazel-bin/tools/wheel --output_dir="$output" >/dev/null
bazel-bin/tools/deb --output_dir="$output" >/dev/null
(cd "$output" && sha256sum -- * >SHA256SUMS)
echo "fsdp $version in $output:"
cat "$output/SHA256SUMS"

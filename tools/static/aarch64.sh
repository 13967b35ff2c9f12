#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the static programs for 64-bit ARM on a Debian that is not:
#
#   tools/static/aarch64.sh DIR [OPTION_OF_BAZEL...]
#
# DIR/ckpt-aarch64, DIR/launch-aarch64. Needs g++-aarch64-linux-gnu. The libraries, Debian's for arm64, are downloaded
# by apt-get and unpacked into fsdp-aarch64 in the user's cache; the system's own packages are not touched. Exit status
# 77 after a line "SKIPPED: ..." if compiler, apt-get or network are missing.
set -uo pipefail
[ $# -ge 1 ] || { echo "usage: tools/static/aarch64.sh DIR [OPTION_OF_BAZEL...]" >&2 && exit 2; }
output=$(realpath -m "$1")
options=("${@:2}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

skip() {
  echo "SKIPPED: the programs for aarch64: $*" >&2
  exit 77
}

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fsdp-aarch64
# libhwy and libisal have no archive and are not linked (bazel/link.bzl); the build looks for their shared libraries.
packages=(libabsl-dev libaec-dev libcurl4-openssl-dev libhdf5-dev libhwy-dev libisal-dev libssl-dev liburing-dev
  libucx-dev libxxhash-dev libzstd-dev nlohmann-json3-dev zlib1g-dev)

command -v aarch64-linux-gnu-g++ >/dev/null || skip "there is no g++-aarch64-linux-gnu"
if [ ! -e "$cache/root/complete" ]; then
  for wanted in apt-get apt-cache dpkg-deb; do command -v $wanted >/dev/null || skip "there is no $wanted"; done
  rm -rf "$cache/root" "$cache/apt"
  mkdir -p "$cache/root" "$cache"/apt/{debs,state/lists/partial,cache/archives/partial}
  : >"$cache/apt/status"
  # Only the sources and keys of this system.
  apt=(-q -o "APT::Architecture=arm64" -o "APT::Architectures=arm64" -o "APT::Sandbox::User=root"
    -o "Dir::State=$cache/apt/state" -o "Dir::State::status=$cache/apt/status" -o "Dir::Cache=$cache/apt/cache")
  log=$cache/apt/log
  apt-get "${apt[@]}" update >"$log" 2>&1 || skip "apt-get update: $(tail -n 1 "$log")"
  mapfile -t shared < <(apt-cache "${apt[@]}" depends libhwy-dev libisal-dev | sed -n 's/^  Depends: \(lib\(hwy\|isal\).*\)$/\1/p')
  (cd "$cache/apt/debs" && apt-get "${apt[@]}" download "${packages[@]}" "${shared[@]}") >"$log" 2>&1 ||
    skip "apt-get download: $(tail -n 1 "$log")"
  for package in "$cache"/apt/debs/*.deb; do dpkg-deb -x "$package" "$cache/root" || exit 1; done
  touch "$cache/root/complete"
fi

# A separate output base: with this compiler and these libraries Bazel would examine the machine's again.
./bazelw --output_base="$cache/bazel" build --config=aarch64 --repo_env=FSDP_SYSROOT="$cache/root" --symlink_prefix=/ \
  "${options[@]}" //tools:ckpt_static //tools:launch_static || exit 1
bin=$(./bazelw --output_base="$cache/bazel" info --config=aarch64 --repo_env=FSDP_SYSROOT="$cache/root" bazel-bin 2>/dev/null)
mkdir -p "$output"
for program in ckpt launch; do
  command install -m 755 "$bin/tools/${program}_static" "$output/$program-aarch64" || exit 1
done
./bazelw --output_base="$cache/bazel" shutdown

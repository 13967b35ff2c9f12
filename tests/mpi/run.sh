#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Backend "mpi" with each available MPI, and without any: builds with it, and runs //tests/mpi:mpi_test, and as root
# train_gpt on two hosts (tests/hosts/launchers.sh), on which MPI gives the ranks the address of rank 0. By hand:
#
#   tests/mpi/run.sh [NAME...] [-- OPTION_OF_BAZEL...]
#
#   openmpi   Debian's libopenmpi-dev and openmpi-bin
#   mpich     Debian's libmpich-dev and mpich
#   none      a build without MPI: the error for a user who asks for it
#
# Without a NAME: all. Root installs missing packages by apt-get; other users test the installed ones.
#
# A line for each NAME: passed, FAILED with the end of the log, or SKIPPED with the absent program. The last line is "N
# passed, N failed, N skipped"; the exit status is 0 if something passed and nothing failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

names=()
while [ $# != 0 ]; do
  case $1 in
    openmpi | mpich | none) names+=("$1") ;;
    --) shift && break ;;
    *) echo "run.sh: $1: no such test; openmpi, mpich and none are" >&2 && exit 2 ;;
  esac
  shift
done
options=("$@")
[ ${#names[@]} != 0 ] || names=(openmpi mpich none)

log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT

# packages NAME
packages() { case $1 in openmpi) echo libopenmpi-dev openmpi-bin ;; mpich) echo libmpich-dev mpich ;; esac; }

# there NAME: its launcher, and its headers, which are in another package of Debian than the compiler wrapper.
there() {
  command -v "mpiexec.$1" >/dev/null && echo '#include <mpi.h>' | "mpicc.$1" -E -x c - >/dev/null 2>&1
}

# shellcheck disable=SC2046
install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return
  echo "installing $(packages "$1")"
  apt-get update -qq >/dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(packages "$1") </dev/null \
    >/dev/null 2>&1
}

# on_hosts NAME: over the network between two hosts, by this MPI's launcher.
on_hosts() {
  local test=mpirun-mpi
  [ "$1" = openmpi ] || test=hydra-mpi
  ./bazelw build "${options[@]}" --repo_env="MPICC=mpicc.$1" //train:train_gpt //tools:launch >"$log" 2>&1 &&
    TRAIN_GPT=bazel-bin/train/train_gpt LAUNCH=bazel-bin/tools/launch tests/hosts/launchers.sh "$test" >>"$log" 2>&1 &&
    grep -q "^passed $test" "$log"
}

# count NAME COMMAND...: a line, and the end of the log if the command fails.
count() {
  local start=$SECONDS
  if "${@:2}"; then
    echo "passed $1: $((SECONDS - start)) s"
    passed=$((passed + 1))
  else
    echo "FAILED $1 after $((SECONDS - start)) s; the end of its log:"
    tail -n 60 "$log" | sed 's/^/    /'
    failed=$((failed + 1))
  fi
}

# mpi_test OPTION...: without cached results, and with no test skipped if MPI is installed.
mpi_test() {
  ./bazelw test "${options[@]}" "$@" --nocache_test_results --test_output=all //tests/mpi:mpi_test >"$log" 2>&1
}

passed=0
failed=0
skipped=0
with_mpi() { mpi_test --repo_env="MPICC=mpicc.$1" && ! grep -q '\[  SKIPPED \]' "$log"; }
without_mpi() { mpi_test --repo_env=FSDP_MPI=0; }

for name in "${names[@]}"; do
  if [ "$name" = none ]; then
    count none without_mpi
    continue
  fi
  there "$name" || install "$name"
  if ! there "$name"; then
    echo "SKIPPED $name: there is no mpicc.$name (Debian: $(packages "$name")), and apt-get cannot install it"
    skipped=$((skipped + 1))
    continue
  fi
  count "$name" with_mpi "$name"
  if [ "$(id -u)" = 0 ]; then
    count "$name on two hosts" on_hosts "$name"
  else
    echo "SKIPPED $name on two hosts: must be root, to make hosts"
    skipped=$((skipped + 1))
  fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds and tests everything that needs LibTorch, //libtorch, //tests/libtorch and its page, with the LibTorch of
# PyTorch's wheel:
#
#   tests/libtorch/run.sh [--dir=DIR] [--path] [-- OPTION_OF_BAZEL...]
#
#   --dir=DIR  the virtual environment with the wheel, or for it; default: fsdp-libtorch in the user's cache
#   --path     do not test; print the value for TORCH_PATH
#
# With TORCH_PATH set, that LibTorch is used and nothing is installed. Writes only to DIR, up to 2 GB; as root it also
# installs Debian's python3-venv by apt-get if it is missing. The last lines and the exit status are bazel test's; 77 if
# there is no LibTorch and it cannot be installed, because there is no network, no python3 with venv, or no disk space:
# a line has the reason.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

# The release that made testdata/.
torch=torch==2.15.0
# PyPI's libtorch_cpu is linked with small libraries of CUDA, which it needs without a GPU too. It does not load the
# wheel's other requirements, 3 GB of libraries for GPUs. `import torch` does: for_python.py installs what is not here.
cuda='cuda-toolkit[cudart,cufile,cupti]==13.2.2'
seconds=300 # that the wheel may take

dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fsdp-libtorch
path_only=
while [ $# != 0 ]; do
  case $1 in
    --dir=?*) dir=${1#--dir=} ;;
    --path) path_only=1 ;;
    --) shift && break ;;
    -h | --help) sed -n '4,15s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) echo "run.sh: $1: no such flag; --dir=DIR, --path and -- are" >&2 && exit 2 ;;
  esac
  shift
done

skip() {
  echo "SKIPPED: there is no LibTorch here, and it cannot be installed: $1. With TORCH_PATH set, that one is taken" >&2
  exit 77
}

# installed: prints the directory of the LibTorch in DIR, if it is complete.
installed() {
  local path
  [ -e "$dir/complete" ] || return
  for path in "$dir"/lib/python3*/site-packages/torch; do
    [ -d "$path/lib" ] && readlink -f "$path" && return
  done
  return 1
}

# pip ARGUMENT...: installs, or skips with its last line.
pip() { timeout "$seconds" "$dir/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --retries=1 "$@" >"$log" 2>&1; }
last_line() { grep . "$log" | tail -n 1; }

install() {
  if [ -e "$dir" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
    echo "run.sh: --dir=$dir is there and is no virtual environment; name another" >&2
    exit 2
  fi
  echo "installing $torch in $dir" >&2
  if ! python3 -c 'import ensurepip' >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv; } \
      </dev/null >/dev/null 2>&1
  fi
  { rm -rf "$dir" && python3 -m venv "$dir"; } >"$log" 2>&1 ||
    skip "python3 -m venv $dir: $(grep -v '^$' "$log" | head -n 1) (Debian: python3-venv)"
  pip --no-deps "$torch" || skip "pip: $(last_line)"
  [ "$(uname -m)" != x86_64 ] || pip "$cuda" || skip "pip: $(last_line)"
  echo "$cuda" >"$dir/complete"
}

# complete: adds what an earlier release of this script did not install; that is enough for C++.
complete() { [ "$(uname -m)" != x86_64 ] || grep -qxF "$cuda" "$dir/complete" || { pip "$cuda" && echo "$cuda" >"$dir/complete"; }; }

if [ -z "${TORCH_PATH:-}" ]; then
  log=$(mktemp) || exit 2
  trap 'rm -f "$log"' EXIT
  TORCH_PATH=$(installed) || { install && TORCH_PATH=$(installed); } || exit 2
  complete
fi
if [ -n "$path_only" ]; then
  echo "$TORCH_PATH"
  exit
fi
./bazelw test --repo_env=TORCH_PATH="$TORCH_PATH" "$@" //libtorch/... //tests/libtorch/... //tests/pages:libtorch_page_test

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the wheel, installs it into a virtual environment of its own, and tests it there with PyTorch:
#
#   tests/wheel/run.sh [--dir=DIR] [--site_packages=DIR] [--quick] [--benchmark] [-- OPTION_OF_BAZEL...]
#
#   --dir=DIR            the virtual environment; default: fsdp-wheel in the user's cache
#   --site_packages=DIR  take torch and numpy from there, and install neither; without it the torch that
#                        tests/libtorch/run.sh has put into the user's cache is taken, if it is there, and gets the
#                        libraries that it needs for Python
#   --quick              leave out the tests that start many ranks, each of which imports torch for seconds
#   --benchmark          instead, compare Writer and Reader with PyTorch's FileSystemWriter and FileSystemReader
#
# Writes only to DIR, up to 2 GB, and those libraries. The exit status is the tests'; 77 if there is no PyTorch and none
# can be installed, because there is no network, or no python3 with venv: a line has the reason.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fsdp-wheel
site_packages=
program=(-m unittest discover -v -p '*_test.py' -s "$PWD/tests/wheel")
while [ $# != 0 ]; do
  case $1 in
    --dir=?*) dir=${1#--dir=} ;;
    --site_packages=?*) site_packages=${1#--site_packages=} ;;
    --quick) export FSDP_WHEEL_QUICK=1 ;;
    --benchmark) program=("$PWD/tests/wheel/benchmark.py") ;;
    --) shift && break ;;
    -h | --help) sed -n '4,16s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) echo "run.sh: $1: no such flag; --dir=DIR, --site_packages=DIR, --quick, --benchmark and -- are" >&2 && exit 2 ;;
  esac
  shift
done

skip() {
  echo "SKIPPED: there is no PyTorch here, and it cannot be installed: $1. --site_packages=DIR takes one that is there" >&2
  exit 77
}

if [ -e "$dir" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
  echo "run.sh: --dir=$dir is there and is no virtual environment; name another" >&2
  exit 2
fi
./bazelw build "$@" //tools:wheel || exit 1
wheel=$(bazel-bin/tools/wheel --output_dir="$dir.wheels") || exit 1

log=$dir.log
[ -x "$dir/bin/python" ] || python3 -m venv "$dir" >"$log" 2>&1 || skip "$(grep . "$log" | tail -n 1)"
pip() { timeout 600 "$dir/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$@" >"$log" 2>&1; }
if [ -n "$site_packages" ]; then
  echo "$site_packages" >"$(echo "$dir"/lib/python3*/site-packages)/torch_elsewhere.pth"
else
  # After this environment's own packages, which have precedence: the other's pip and setuptools are not wanted.
  for of in "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}"/fsdp-libtorch/lib/python3*/site-packages; do
    [ ! -e "$of/../../../complete" ] || echo "$of" >"$(echo "$dir"/lib/python3*/site-packages)/torch_elsewhere.pth"
  done
  has() { "$dir/bin/python" -c "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))" "$@"; }
  requirements=(numpy filelock fsspec jinja2 networkx sympy typing_extensions setuptools)
  has "${requirements[@]}" || pip "${requirements[@]}" || skip "$(grep . "$log" | tail -n 1)"
  has torch || pip --no-deps torch==2.15.0 || skip "$(grep . "$log" | tail -n 1)"
  timeout 600 "$dir/bin/python" -B tests/libtorch/for_python.py 2>"$log" || skip "$(grep . "$log" | tail -n 1)"
fi
"$dir/bin/python" -c 'import numpy, torch, torch.distributed.checkpoint' 2>"$log" || skip "$(tail -n 1 "$log")"
pip --no-deps --no-index --force-reinstall "$wheel" || { cat "$log" >&2 && exit 1; }

# From another folder, so that the wheel is tested, not the sources in this one.
testdata=$PWD/checkpoint/testdata
cd "$dir" && PATH=$dir/bin:$PATH FSDP_TESTDATA=$testdata exec "$dir/bin/python" "${program[@]}"

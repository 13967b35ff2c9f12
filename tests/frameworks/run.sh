#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the wheel, installs it into a virtual environment with PyTorch and the frameworks of docs/frameworks.md from
# PyPI, and runs the page's code and commands there:
#
#   tests/frameworks/run.sh [--dir=DIR] [--site_packages=DIR] [NAME...] [-- OPTION_OF_BAZEL...]
#
#   NAME                 only these tests: page, torchrun, accelerate, trainer, torchtitan, lightning
#   --dir=DIR            the virtual environment; default: fsdp-frameworks in the user's cache
#   --site_packages=DIR  take torch and numpy from there, and install neither; without it the torch that
#                        tests/libtorch/run.sh has put into the user's cache is taken, if it is there, and gets the
#                        libraries that it needs for Python
#
# Writes only to DIR and DIR.*, up to 2 GB, 2 GB more if PyTorch is installed, and those libraries. The exit status is
# the tests'; 77 if PyTorch or Accelerate is not here and cannot be installed, because there is no network, or no
# python3 with venv: a line has the reason. The test of another framework that cannot be installed is skipped, with a
# line.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}
dir=$cache/fsdp-frameworks
site_packages=
names=()
while [ $# != 0 ]; do
  case $1 in
    --dir=?*) dir=${1#--dir=} ;;
    --site_packages=?*) site_packages=${1#--site_packages=} ;;
    --) shift && break ;;
    -h | --help) sed -n '4,18s/^# \{0,1\}//p' "$0" && exit 0 ;;
    -*) echo "run.sh: $1: no such flag; --dir=DIR, --site_packages=DIR and -- are" >&2 && exit 2 ;;
    *) [ -e "tests/frameworks/$1_test.py" ] || { echo "run.sh: $1: no such test; see --help" >&2 && exit 2; }
      names+=("$1_test") ;;
  esac
  shift
done

skip() {
  echo "SKIPPED: $1. --site_packages=DIR takes a PyTorch that is there" >&2
  exit 77
}

if [ -e "$dir" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
  echo "run.sh: --dir=$dir is there and is no virtual environment; name another" >&2
  exit 2
fi
./bazelw build "$@" //tools:wheel || exit 1
wheel=$(bazel-bin/tools/wheel --output_dir="$dir.wheels") || exit 1

log=$dir.log
[ -x "$dir/bin/python" ] || python3 -m venv "$dir" >"$log" 2>&1 || skip "no venv: $(grep . "$log" | tail -n 1)"
python=$dir/bin/python
given=$site_packages
if [ -z "$site_packages" ]; then
  for of in "$cache"/fsdp-libtorch/lib/python3*/site-packages; do
    [ ! -e "$of/../../../complete" ] || site_packages=$of
  done
fi
# After this environment's own packages, which have precedence.
pth=$(echo "$dir"/lib/python3*/site-packages)/torch_elsewhere.pth
[ -z "$site_packages" ] || echo "$site_packages" >"$pth"
has() { "$python" -c "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))" "$@"; }
pip() { timeout 900 "$dir/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$@" >"$log" 2>&1; }

has numpy filelock fsspec jinja2 networkx sympy typing_extensions setuptools ||
  pip numpy filelock fsspec jinja2 networkx sympy typing_extensions setuptools || skip "$(tail -n 1 "$log")"
if ! "$python" -c 'import torch.distributed.checkpoint' 2>"$log"; then
  [ -z "$given" ] || skip "the PyTorch in $given does not load: $(tail -n 1 "$log")"
  has torch || pip --no-deps torch==2.15.0 || skip "no PyTorch: $(tail -n 1 "$log")"
  timeout 600 "$python" -B tests/libtorch/for_python.py 2>"$log" || skip "no PyTorch: $(tail -n 1 "$log")"
fi
# The frameworks are installed without their requirements, which would bring another PyTorch and programs that no test
# starts.
has accelerate ||
  { pip packaging psutil pyyaml safetensors huggingface_hub && pip --no-deps accelerate; } ||
  skip "no Accelerate: $(tail -n 1 "$log")"
has transformers ||
  { pip tokenizers regex requests tqdm typer && pip --no-deps transformers; } ||
  echo "SKIPPED: no transformers: $(tail -n 1 "$log")" >&2
has lightning ||
  { pip lightning-utilities packaging pyyaml tqdm && pip --no-deps torchmetrics lightning; } ||
  echo "SKIPPED: no Lightning: $(tail -n 1 "$log")" >&2
has torchtitan ||
  { pip einops tensorboard tyro spmd_types && pip --no-deps torchtitan; } ||
  echo "SKIPPED: no torchtitan: $(tail -n 1 "$log")" >&2
pip --no-deps --no-index --force-reinstall "$wheel" || { cat "$log" >&2 && exit 1; }

tests=(discover -v -p '*_test.py' -s "$PWD/tests/frameworks")
[ ${#names[@]} = 0 ] || tests=(-v "${names[@]}")
# From another folder, so that the wheel is tested, not the sources in this one.
folder=$PWD/tests/frameworks
cd "$dir" && PATH=$dir/bin:$PATH PYTHONPATH=$folder exec "$python" -m unittest "${tests[@]}"

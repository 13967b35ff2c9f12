#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the trainers' own libraries from PyPI into a virtual environment and runs `ckpt` against them: fresh
# checkpoints that they make are read with equal bytes, and they load what `ckpt` writes and train on:
#
#   tests/trainers/run.sh CKPT [--dir=DIR] [--site_packages=DIR] [NAME...]
#
#   CKPT                 the program to test
#   NAME                 only these tests: deepspeed, megatron, torch_checkpointing, gguf, orbax, flax, keras, peft,
#                        onnx, safetensors
#   --dir=DIR            the virtual environment; default: fsdp-trainers in the user's cache
#   --site_packages=DIR  take torch and numpy from there, and install neither; without it the torch that
#                        tests/libtorch/run.sh has put into the user's cache is taken, if it loads
#
# Writes only to DIR and DIR.log, up to 2 GB, and 6 GB more if PyTorch is installed. The exit status is the tests'; 77
# if PyTorch is not here and cannot be installed, because there is no network, or no python3 with venv: a line has the
# reason. The tests of a library that cannot be installed are skipped, with a line.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}
dir=$cache/fsdp-trainers
site_packages=
program=
names=()
while [ $# != 0 ]; do
  case $1 in
    --dir=?*) dir=${1#--dir=} ;;
    --site_packages=?*) site_packages=${1#--site_packages=} ;;
    -h | --help) sed -n '4,19s/^# \{0,1\}//p' run.sh && exit 0 ;;
    -*) echo "run.sh: $1: no such flag; --dir=DIR and --site_packages=DIR are" >&2 && exit 2 ;;
    */*) program=$(cd "$OLDPWD" && realpath "$1") || exit 2 ;;
    *) [ -e "$1_test.py" ] || { echo "run.sh: $1: no such test; see --help" >&2 && exit 2; }
      names+=("$1") ;;
  esac
  shift
done
[ -x "$program" ] || { echo "run.sh: give the path of ckpt; see --help" >&2 && exit 2; }
[ ${#names[@]} != 0 ] || names=(deepspeed megatron torch_checkpointing gguf orbax flax keras peft onnx safetensors)
if [ -e "$dir" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
  echo "run.sh: --dir=$dir is there and is no virtual environment; name another" >&2
  exit 2
fi

log=$dir.log
skip() {
  echo "SKIPPED: $1. --site_packages=DIR takes a PyTorch that is there" >&2
  exit 77
}
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
# Nothing of DeepSpeed is compiled here: the tests use PyTorch's optimizers.
pip() {
  DS_BUILD_OPS=0 timeout 900 "$dir/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$@" \
    >"$log" 2>&1
}

has numpy filelock fsspec jinja2 networkx sympy typing_extensions setuptools wheel packaging ||
  pip numpy filelock fsspec jinja2 networkx sympy typing_extensions setuptools wheel packaging ||
  skip "$(tail -n 1 "$log")"
# A PyTorch without all of CUDA's libraries, which is enough for C++ on CPUs, may not load in Python.
if ! "$python" -c 'import torch.distributed.checkpoint' 2>"$log"; then
  [ -z "$given" ] || skip "the PyTorch in $given does not load: $(tail -n 1 "$log")"
  rm -f "$pth"
  pip torch==2.15.0 || skip "no PyTorch: $(tail -n 1 "$log")"
fi

# Libraries are installed without the requirements that would bring another PyTorch, or that no test uses.
install() {
  case $1 in
    deepspeed)
      has deepspeed || { pip einops hjson msgpack ninja psutil py-cpuinfo pydantic tqdm &&
        pip --no-deps --no-build-isolation deepspeed==0.19.8; } ;;
    megatron) has megatron.core psutil || { pip psutil && pip --no-deps megatron-core==0.16.1; } ;;
    torch_checkpointing) has torch_checkpointing safetensors || pip --no-deps torch-checkpointing==0.1.1 safetensors ;;
    flax) has flax optax ml_dtypes || pip flax==0.12.8 optax ;;
    onnx) has onnx || pip onnx==1.23.2 ;;
    safetensors) has safetensors || pip safetensors==0.8.0 ;;
    gguf) has gguf safetensors || pip gguf==0.19.0 safetensors ;;
    orbax)
      has orbax.checkpoint tensorstore jaxlib || { pip tensorstore==0.1.86 jax jaxlib etils aiofiles nest_asyncio \
        absl-py humanize msgpack protobuf psutil pyyaml simplejson uvloop importlib_resources &&
        pip --no-deps orbax-checkpoint==0.12.8; } ;;
    keras) has keras h5py || pip keras==3.15.1 h5py ;;
    peft)
      has peft transformers || { pip safetensors huggingface_hub tokenizers regex requests tqdm typer pyyaml psutil &&
        pip --no-deps transformers==5.24.0 accelerate==1.15.0 peft==0.21.2; } ;;
  esac
}

tests=()
skipped=0
for name in "${names[@]}"; do
  if install "$name"; then
    tests+=("${name}_test")
  else
    echo "SKIPPED: $name: $(tail -n 1 "$log")" >&2
    skipped=$((skipped + 1))
  fi
done
[ ${#tests[@]} != 0 ] || exit 77
CKPT=$program PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 DS_ACCELERATOR=cpu JAX_PLATFORMS=cpu KERAS_BACKEND=torch \
  HF_HUB_OFFLINE=1 "$python" -W ignore -m unittest -v "${tests[@]}"
status=$?
[ "$skipped" = 0 ] || echo "$skipped skipped"
exit $status

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The real TensorBoard (PyPI) reads a run of train_gpt: a run with checkpoints, then one that continues from an earlier
# step than the first had reached. Its event files must give the numbers of --metrics, each step once, since repeated
# steps replace the ones before; and a server must serve the curves.
#
#   ./bazelw build //train:train_gpt && tests/tensorboard/run.sh
#
# Needs python3 with venv, and PyPI for tensorboard (TENSORBOARD=DIR: a virtual environment that has it). Prints
# SKIPPED, with the reason, and exits with 77 if either is missing. Everything is in a temporary directory, which is
# removed.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

train_gpt=${TRAIN_GPT:-$PWD/bazel-bin/train/train_gpt}
[ -x "$train_gpt" ] || { echo "tensorboard: $train_gpt is missing: ./bazelw build //train:train_gpt" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

venv=${TENSORBOARD:-$work/venv}
if [ -z "${TENSORBOARD:-}" ]; then
  { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --retries=1 tensorboard; } >"$work/venv.log" 2>&1 || {
    echo "tensorboard: SKIPPED: tensorboard cannot be installed here: $(tail -1 "$work/venv.log")"
    exit 77
  }
fi

train() {
  "$train_gpt" --nproc=2 --config=gpt2-tiny --batch_size=2 --seq_len=16 --tensorboard="$work/run" \
    --metrics="$work/metrics.jsonl" --checkpoint_dir="$work/checkpoints" --checkpoint_every=4 "$@" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
}
train --steps=10
rm -r "$work/checkpoints/step-00000010" "$work/checkpoints/step-00000008"
train --steps=12
"$venv/bin/python" tests/tensorboard/check.py "$work/run" "$work/metrics.jsonl"

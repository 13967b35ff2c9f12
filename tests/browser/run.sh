#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Every page of HTML that the programs make, in a real browser (check_pages.py): of checkpoints, one of them with hostile
# and long names, of a run with a NaN and a damaged step, of two checkpoints, of training runs, of a simulated job.
#
#   ./bazelw build //tools:{ckpt,report,simulate} //train:train_gpt && tests/browser/run.sh [SCREENSHOTS_DIR]
#
# Needs Chromium: apt-get install chromium-headless-shell. Prints SKIPPED, with the reason, and exits with 77 if there is
# none. Everything else is in a temporary directory, which is removed.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=$PWD/bazel-bin
screenshots=${1:+$(realpath "$1")}
for program in tools/ckpt tools/report tools/simulate train/train_gpt; do
  [ -x "$bin/$program" ] || { echo "browser: $bin/$program is missing: build it first" >&2; exit 1; }
done
chromium=$(command -v chromium-headless-shell || command -v chromium || command -v google-chrome) || {
  echo "browser: SKIPPED: there is no Chromium here: apt-get install chromium-headless-shell"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# train NAME ARGS...: a run with a checkpoint every other step.
train() {
  "$bin/train/train_gpt" --nproc=2 --config=gpt2-tiny --batch_size=2 --seq_len=16 --data=README.md --checkpoint_every=2 \
    --checkpoint_dir="$work/$1/checkpoints" --metrics="$work/$1/metrics.jsonl" "${@:2}" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
}
mkdir "$work/"{lr-1e-3,lr-3e-4}
train lr-1e-3 --steps=12 --lr=1e-3
train lr-1e-3 --steps=14 --lr=1e-3
train lr-3e-4 --steps=12 --lr=3e-4
run=$work/lr-1e-3/checkpoints

cd "$work"
"$bin/tools/ckpt" inspect "$run/step-00000014" --html=checkpoint.html >/dev/null
"$bin/tools/ckpt" convert "$run/step-00000004" hostile.safetensors \
  --rename='transformer.h.0=<script>alert(1)</script><img src\x3Dx onerror\x3Dalert(2)>' \
  --rename='transformer.h.1=a.name.of.many.components.that.is.longer.than.any.phone.is.wide.and_has_no_dots_either' >/dev/null
"$bin/tools/ckpt" inspect hostile.safetensors --html=hostile.html >/dev/null
"$bin/tools/ckpt" diff "$run/step-00000002" hostile.safetensors --html=diff_names.html >/dev/null || [ $? = 1 ]
"$bin/tools/ckpt" diff "$run/step-00000002" "$run/step-00000014" --html=diff.html >/dev/null || [ $? = 1 ]
# A damaged step: the page names it.
dd if=/dev/zero of="$run/step-00000006/rank-00001-of-00002.h5" bs=1 seek=200000 count=5000 conv=notrunc 2>/dev/null
"$bin/tools/ckpt" inspect "$run" --html=run.html >/dev/null
grep -q 'step-00000006</bdi>' run.html && grep -q 'does not verify' run.html
"$bin/tools/report" lr-1e-3/metrics.jsonl --html=report.html >/dev/null
# The same run twice: equal curves.
cp -r lr-3e-4 lr-3e-4-again
"$bin/tools/report" lr-*/metrics.jsonl --html=reports.html >/dev/null
"$bin/tools/simulate" --batch_size=4 --ranks=8,16,32,64 --html=simulate.html >/dev/null
grep -q 'Does not fit' simulate.html
"$bin/tools/simulate" --config=gpt2-124m --html=simulate_one.html >/dev/null

python3 "$OLDPWD/tests/browser/check_pages.py" "$chromium" ./*.html ${screenshots:+--screenshots="$screenshots"}

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the commands of the section on LoRA of docs/wrapping.md in an empty directory, with the programs that Bazel built
# for this test, and checks their results: the loss, the equality that the example reports, and the tensors of the files
# for PEFT.
set -euo pipefail

root=$PWD # of the runfiles
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/lora.XXXXXX")
cd "$work"

fail() { echo "FAILED: $*" >&2 && exit 1; }

ln -s "$root" bazel-bin
printf '#!/bin/sh\n[ "$1" = build ]\n' >bazelw
chmod +x bazelw

sed -n '/^## LoRA$/,/^## /p' "$root/docs/wrapping.md" | sed -n '/^```sh$/,/^```$/p' | grep -v '^```' >commands.sh
[ "$(wc -l <commands.sh)" -ge 4 ] || fail "the section has only these commands: $(cat commands.sh)"
bash -euxo pipefail commands.sh 2>&1 | tee output || fail "a command of the page"

loss() { sed -n "s/^step *$1  loss //p" output; }
awk -v first="$(loss 0)" -v last="$(loss 199)" 'BEGIN { exit !(first > 0 && last > 0 && last < first / 2) }' ||
  fail "the loss went from $(loss 0) to $(loss 199)"
grep -q '^merged: logits up to .* from those of base and adapters$' output || fail "nothing was merged"

names() { bazel-bin/tools/ckpt inspect "$1" --tensors --json | sed -n 's/.*"name": "model\/\([^"]*\)".*/\1/p'; }
names adapter/adapter_model.safetensors >adapter_names
[ "$(wc -l <adapter_names)" -eq 28 ] || fail "expected A and B of 7 projections of 2 layers: $(cat adapter_names)"
grep -qx 'base_model.model.model.layers.1.mlp.down_proj.lora_B.weight' adapter_names || fail "$(cat adapter_names)"
if grep -v lora_ adapter_names; then fail "the adapter has weights of the base"; fi
names merged.safetensors >merged_names
grep -qx lm_head.weight merged_names || fail "$(cat merged_names)"
if grep lora_ merged_names; then fail "the merged model has adapters"; fi
grep -q '"r": 8, "lora_alpha": 16' adapter/adapter_config.json || fail "$(cat adapter/adapter_config.json)"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015,SC2154,SC2317
#
# A step of train_gpt on two hosts of one rank, compared with simulate's prediction. By hand, as root:
#
#   tests/hosts/simulate_step.sh [--rate=1gbit] [--config=gpt2-124m] [--seq_len=128] [--steps=5]
#
# The hosts are namespaces of this machine, and the link between them is limited by a token bucket to --rate. A run of
# one rank measures the speed of this processor: simulate gets the --flops with which it predicts that step. Then it
# predicts the step of two hosts, of which nothing was measured before. Steps count by their median, without the first.
# The link carries 0.945 of --rate, as plain sockets do (docs/benchmarks.md). TRAIN_GPT and SIMULATE are the programs;
# without them ./bazelw builds them. The exit status is 0 if the prediction is within 10 %, 3 if it is not.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/hosts/two_hosts.sh
source "$repository/tests/hosts/two_hosts.sh"

die() {
  echo "simulate_step.sh: $*" >&2
  exit 2
}

# The memory bandwidth of a processor, for the small part of a step that is not a matrix product.
bandwidth=8GB/s

simulated() {  # FLOPS RANKS LINK
  "$SIMULATE" --config="$config" --ranks="$2" --hosts="$2" --link="$3" --link_latency=1e-4 --collective_latency=1e-3 \
    --flops="$1" --memory_bandwidth="$bandwidth" --dtype=float32 --batch_size=1 --seq_len="$seq_len" \
    --nofused_attention --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["step_seconds"])'
}

# train NODE WORLD FILE: a rank on host NODE of a job of WORLD hosts.
train() {
  timeout 240 "$machine/onhost" "$([ "$1" = 0 ] && echo host-a || echo host-b)" env RANK="$1" WORLD_SIZE="$2" \
    LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=host-a MASTER_PORT=$((29500 + $2)) FSDP_RUN_ID="$2" OMP_NUM_THREADS=1 \
    taskset -c "$1" "$TRAIN_GPT" --model=gpt2 --config="$config" --batch_size=1 --seq_len="$seq_len" --steps="$steps" \
    --device=cpu --data="$repository/README.md" --metrics="$3" >"$3.log" 2>&1 || { cat "$3.log" >&2; return 1; }
}

median() {
  python3 -c '
import json, statistics, sys
print(statistics.median([json.loads(line)["step_seconds"] for line in open(sys.argv[1])][1:]))' "$1"
}

inside() {
  make_hosts || die "the hosts cannot be made"
  local host alone both flops predicted
  for host in host-a host-b; do
    nsenter --net="$machine/$host.net" tc qdisc add dev eth0 root tbf rate "$rate" burst 1mb latency 20ms ||
      die "tc cannot limit the link to $rate"
  done
  train 0 1 "$machine/alone" || die "one rank alone failed"
  alone=$(median "$machine/alone")
  train 1 2 "$machine/peer" & train 0 2 "$machine/both" && wait $! || die "two ranks failed"
  both=$(median "$machine/both")
  # The time of a step is a + b / flops, so two predictions give both.
  flops=$(python3 -c '
import sys
alone, slow, fast = map(float, sys.argv[1:])
b = (slow - fast) / (1e-10 - 1e-11)
left = alone - (fast - b * 1e-11)
sys.exit("the step is shorter than its memory traffic") if left <= 0 else print(b / left)' \
    "$alone" "$(simulated 1e10 1 1gbit)" "$(simulated 1e11 1 1gbit)") || die "no speed fits one rank"
  predicted=$(simulated "$flops" 2 "$(python3 -c '
import re, sys
number, unit = re.fullmatch(r"([0-9.]+)([a-z]+)", sys.argv[1]).groups()
print(f"{0.945 * float(number)}{unit}")' "$rate")")
  python3 -c '
import sys
config, rate = sys.argv[1:3]
flops, alone, both, predicted = map(float, sys.argv[3:])
error = predicted / both - 1
print(f"{config} at {rate}: alone {alone:.3f} s ({flops / 1e9:.1f} GFLOP/s), two hosts {both:.3f} s, "
      f"predicted {predicted:.3f} s, error {100 * error:+.1f} %")
sys.exit(0 if abs(error) <= 0.1 else 3)' "$config" "$rate" "$flops" "$alone" "$both" "$predicted"
}

rate=1gbit config=gpt2-124m seq_len=128 steps=5
for argument; do
  case $argument in
    --rate=* | --config=* | --seq_len=* | --steps=*)
      argument=${argument#--}
      declare "${argument%%=*}=${argument#*=}"
      ;;
    *) die "$argument: no such option; --rate, --config, --seq_len and --steps are" ;;
  esac
done
[[ $rate =~ ^[0-9.]+[kmg]bit$ ]] || die "--rate=$rate: expected a bandwidth such as 1gbit"
[[ $steps =~ ^[1-9][0-9]*$ && $steps -ge 3 ]] || die "--steps=$steps: expected a number of at least 3"

if [ -n "${FSDP_SIMULATE_STEP:-}" ]; then
  inside
  exit
fi
[ "$(id -u)" = 0 ] || die "must be root, to make hosts"
command -v tc >/dev/null || die "there is no tc(8) (Debian: iproute2)"
if [ -z "${TRAIN_GPT:-}" ] || [ -z "${SIMULATE:-}" ]; then
  (cd "$repository" && ./bazelw build //train:train_gpt //tools:simulate) || die "the programs cannot be built"
  TRAIN_GPT=$repository/bazel-bin/train/train_gpt SIMULATE=$repository/bazel-bin/tools/simulate
fi
TRAIN_GPT=$(realpath -e "$TRAIN_GPT") && SIMULATE=$(realpath -e "$SIMULATE") || die "a program is not a file"
export TRAIN_GPT SIMULATE FSDP_SIMULATE_STEP=1
on_own_machine bash "$0" "$@"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015,SC2154,SC2317
#
# The cost of train_gpt --upload for a link and for training. By hand, as root:
#
#   tests/object_store/upload_benchmark.sh [--rate=200mbit] [--rounds=5] [--steps=60]
#
# Two hosts of tests/hosts/two_hosts.sh: on one GPT-2 trains with two ranks, on the other s3_sink.py is the object store;
# the link between them is limited to --rate by a token bucket (tc-tbf(8)). A checkpoint of 354 MB is made first. In each
# round three runs continue from it for --steps steps, in changing order: with --upload, which uploads that
# checkpoint from the first step on; without; and without, while another program sends as many bytes through a
# plain socket to the same host. Each run saves at its end, and with --upload waits until that is uploaded too.
#
#   upload / link   bytes per second of the uploads that the run reports, while it trains and, separately, while it only
#                   waits; divided by the rate of a plain socket through the same link, measured in each round
#   slowed          seconds of the steps that ended during the upload, divided by the seconds of as many steps of the
#                   run without, of means and of medians. The first three steps are left out. And the same for the run
#                   with the plain socket: the link, the store's host and training share this machine's processors, so
#                   no upload can be below this here
#
# Each is the median over rounds. Exit status 0 if uploads have at least 0.9 of the link and steps are slowed by at most
# 3 %, else 3. TRAIN_GPT is the program; without it ./bazelw builds it.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/hosts/two_hosts.sh
source "$repository/tests/hosts/two_hosts.sh"

die() {
  echo "upload_benchmark.sh: $*" >&2
  exit 2
}

onhost() { timeout --kill-after=5 900 "$machine/onhost" "$@"; }

# train DIRECTORY METRICS FLAG...: two ranks on host-a.
train() {
  local directory=$1 metrics=$2
  shift 2
  onhost host-a "$TRAIN_GPT" --nproc=2 --config="$work/config.json" --tokens="$work/tokens.u16" --batch_size=1 \
    --seq_len=64 --checkpoint_dir="$directory" --metrics="$metrics" "$@"
}

inside() {
  make_hosts || die "the hosts cannot be made"
  nsenter --net="$machine/host-a.net" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms ||
    die "tc cannot limit the link to $rate"
  export AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none AWS_REGION=none AWS_ENDPOINT_URL=http://host-b:9000
  unset AWS_ENDPOINT_URL_S3 AWS_PROFILE AWS_DEFAULT_PROFILE AWS_SESSION_TOKEN http_proxy HTTP_PROXY
  "$machine/onhost" host-b python3 "$repository/tests/object_store/s3_sink.py" 10.77.0.2 9000 2>"$work/sink.log" &
  echo '{"model_type": "gpt2", "n_layer": 8, "n_embd": 512, "n_head": 8, "vocab_size": 8192, "n_positions": 256,
         "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}' >"$work/config.json"
  python3 -c 'import random, struct, sys
generator = random.Random(1)
sys.stdout.buffer.write(struct.pack("<65537H", *(generator.randrange(8192) for _ in range(65537))))' >"$work/tokens.u16"
  train "$work/start" "$work/start.jsonl" --steps=2 >"$work/log" 2>&1 || { cat "$work/log" >&2; die "no training"; }
  local round kind kinds sender
  for ((round = 1; round <= rounds; ++round)); do
    onhost host-a python3 "$repository/tests/object_store/upload_table.py" link host-b 9001 >>"$work/links" ||
      die "the link does not answer"
    case $((round % 3)) in
      0) kinds='without socket with' ;;
      1) kinds='with without socket' ;;
      2) kinds='socket with without' ;;
    esac
    for kind in $kinds; do
      echo "round $round: $kind, load $(cut -d' ' -f1 /proc/loadavg)" >&2
      mkdir "$work/run" && cp -r "$work/start/." "$work/run" || die "no room in $work"
      local flags=(--steps=$((2 + steps)))
      [ "$kind" = with ] && flags+=("--upload=s3://models/run-$round")
      sender=
      if [ "$kind" = socket ]; then
        onhost host-a python3 "$repository/tests/object_store/upload_table.py" send host-b 9001 "$work/start" \
          "$work/$kind-$round.jsonl" >"$work/$kind-$round.sent" &
        sender=$!
      fi
      train "$work/run" "$work/$kind-$round.jsonl" "${flags[@]}" >"$work/$kind-$round.log" 2>&1 ||
        { cat "$work/$kind-$round.log" >&2; die "the run \"$kind\" failed"; }
      [ -z "$sender" ] || wait "$sender" || die "the plain socket sent nothing"
      rm -r "$work/run"
    done
  done
  python3 "$repository/tests/object_store/upload_table.py" table "$work" "$rounds" "$rate"
}

rate=200mbit rounds=5 steps=60
for argument; do
  case $argument in
    --rate=* | --rounds=* | --steps=*)
      argument=${argument#--}
      declare "${argument%%=*}=${argument#*=}"
      ;;
    *) die "$argument: no such option; --rate, --rounds and --steps are" ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "--rounds=$rounds: expected a number of at least 1"
[[ $steps =~ ^[1-9][0-9]+$ ]] || die "--steps=$steps: expected a number of at least 10"

if [ -n "${FSDP_UPLOAD_WORK:-}" ]; then
  work=$FSDP_UPLOAD_WORK
  inside
  exit
fi

[ "$(id -u)" = 0 ] || die "must be root, to make hosts"
command -v tc >/dev/null || die "there is no tc(8) (Debian: iproute2)"
if [ -z "${TRAIN_GPT:-}" ]; then
  (cd "$repository" && ./bazelw build -c opt //train:train_gpt) || die "the program cannot be built"
  TRAIN_GPT=$repository/bazel-bin/train/train_gpt
fi
TRAIN_GPT=$(realpath -e "$TRAIN_GPT") || die "TRAIN_GPT is not a file"
export TRAIN_GPT
work=$(mktemp -d)
hosts=
end() {
  [ -z "$hosts" ] || kill -KILL "$hosts" 2>/dev/null
  rm -rf --one-file-system "$work"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
# In the background, since a trap waits for a command in the foreground.
FSDP_UPLOAD_WORK=$work on_own_machine bash "$0" "$@" &
hosts=$!
wait "$hosts"
status=$?
hosts=
exit "$status"

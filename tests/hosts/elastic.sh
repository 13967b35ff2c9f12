#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2010,SC2015,SC2100,SC2154,SC2317
#
# Kills a host of a run repeatedly, at random instants, and starts it again: train_gpt under torchrun's --nnodes=1:2, on
# two hosts of two ranks. By hand, as root:
#
#   tests/hosts/elastic.sh [--kills=N] [--seed=S] [--keep=DIR] [NAME...]
#
#   host-b        host-b is killed; host-a has rank 0 and serves torchrun's rendezvous
#   either-host   host-a, which has rank 0, or host-b; the rendezvous is a separate TCPStore of torch's on host-c
#
# Without a NAME: both, with 20 kills each. S determines the instants and is printed.
#
# A kill takes the first process of the host's namespace, and with it the agent and the ranks. Three of four kills, on
# average, come while all four ranks train, 0 to 3 s after their first step. Then the two ranks of the other host must
# end with status 75, be started again by torchrun, and continue from the newest checkpoint; 0 to 3 s after their first
# step the host is back, and the four ranks must continue from the newest checkpoint. The other kills come while the
# host returns, independent of the state of the run: at an instant from the start of the agent to a quarter longer than
# the last return took. In either-host they may hit the host that was not away, so that only the other continues.
# Training must continue by itself after each. If such a kill takes the host of rank 0 while torchrun's agents agree,
# the other agent ends after 60 s, and the test fails because of that (docs/collectives.md).
#
# After the last kill the host comes back, the run is stopped by SIGTERM, and another job of both hosts ends it. Then
#   - every step has a loss, and every line of the metrics, including repeated steps, has the loss of an undisturbed run
#     of four ranks on one host, within 1e-6;
#   - no process, no file in /dev/shm and no hidden directory next to the checkpoints is left.
#
# Needs torchrun as launchers.sh does; TRAIN_GPT and --keep are as there. Prints for each kill a line of seconds:
#
#   noticed   from the kill until the remaining ranks report who is lost
#   torchrun  from then until torchrun has started them again
#   ready     from then until their first new step
#   total     the sum
#   again     steps that are repeated, since no checkpoint has them
#   back      from the start of the host's agent until the first step of four ranks
#
# For a kill while not all four ranks train: only the total, until the next step.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/hosts/real_programs.sh
source "$repository/tests/hosts/real_programs.sh"

all=(host-b either-host)

prepare() {
  make_ready
  make_venv "$venv"
  make_program TRAIN_GPT //train:train_gpt
}

# ------------------------------------------------ the run ------------------------------------------------------------

# The learning rate is one at which training does not amplify rounding: 4 x 2 and 2 x 4 micro-steps add in another
# order. A checkpoint every other step makes kills during saves likely, and repeated steps.
golden=$repository/tests/testdata/golden
train=(--config="$golden/gpt2_tiny/config.json" --tokens="$golden/tokens.u16" --batch_size=1 --seq_len=64
  --global_batch=8 --warmup_steps=20 --lr=3e-4 --seed=7)
saves=(--checkpoint_every=2 --keep_last=10 --resume=auto --join_timeout=30s)

# Without the first, torchrun does not let a host join again; without the second, its agents wait for one that was lost
# during their agreement (docs/collectives.md).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 TORCH_ELASTIC_WORKER_IDENTICAL=1 OMP_NUM_THREADS=1
rendezvous=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2

# The longest that anything may take: torchrun, under load.
limit=180

# By host: its agent, as a process of the machine, and the descriptor that copies its output to the log.
declare -A agents=() outputs=()

# open_output HOST: lines reach the log prefixed by the time and the host.
open_output() {
  local fd line
  exec {fd}> >(while IFS= read -r line; do printf '%s %s %s\n' "$EPOCHREALTIME" "$1" "$line"; done >>"$log")
  outputs[$1]=$fd
}

# start_agent HOST [STEPS]: torchrun on a host. Each rank prints that it has started, and then becomes train_gpt.
start_agent() {
  # shellcheck disable=SC2016
  "$machine/onhost" "$1" "$TORCHRUN" --no-python --nnodes=1:2 --nproc-per-node=2 --max-restarts=1000 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint:29500" --rdzv-id="$job" --rdzv-conf="$rendezvous" \
    sh -c 'echo "starts rank $RANK of $WORLD_SIZE"; exec "$@"' sh \
    "$TRAIN_GPT" "${train[@]}" "${saves[@]}" --steps="${2:-1000000}" --checkpoint_dir="$work/steps" \
    --metrics="$work/metrics.jsonl" >&"${outputs[$1]}" 2>&1 &
  agents[$1]=$!
}

# kill_host HOST: ends all processes of the host immediately, by killing its first one.
kill_host() {
  local first
  first=$(pgrep -P "${agents[$1]}") && kill -KILL "$first"
  wait "${agents[$1]}" 2>/dev/null
  unset "agents[$1]"
}

# A TCPStore for torchrun's agents, on no host of the run.
start_endpoint() {
  "$machine/onhost" host-c "$venv/bin/python" -c "
import datetime, time, torch.distributed
store = torch.distributed.TCPStore('host-c', 29500, is_master=True, multi_tenant=True, wait_for_workers=False,
                                   timeout=datetime.timedelta(seconds=60))
print('serves', flush=True)
time.sleep(1e9)" >&"${outputs[host-c]}" 2>&1 &
  agents[host-c]=$!
  await 'host-c serves'
}

# ------------------------------------------------ what happens -------------------------------------------------------

# random N: an instant in milliseconds, 0 to N - 1, in `drawn`. Not in a subshell, which has random numbers of its own.
random() { drawn=$(((RANDOM * 32768 + RANDOM) % $1)); }

pause() { sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"; }

now() { at=$EPOCHREALTIME; }

# mark: the log so far is not read again.
mark() { seen=$(wc -l <"$log"); }

# await PATTERN: the first line after the mark that matches the extended regular expression after its time; `at` is its
# time, `line` the rest, and the mark moves behind it. Fails when the limit is over, or when an agent ends.
await() {
  local deadline=$((SECONDS + limit)) found host
  until found=$(grep -nm1 -E "^[0-9.]+ $1" < <(tail -n "+$((seen + 1))" "$log")); do
    for host in "${!agents[@]}"; do
      kill -0 "${agents[$host]}" 2>/dev/null && continue
      why="$host: its agent ended while the run should have come to: $1"
      return 1
    done
    [ "$SECONDS" -lt "$deadline" ] || { why="not within $limit s: $1"; return 1; }
    sleep 0.03
  done
  seen=$((seen + ${found%%:*}))
  line=${found#*:}
  at=${line%% *}
  line=${line#* }
}

# seconds FROM TO: 1.23
seconds() {
  local hundredths=$(((${2/./} - ${1/./} + 5000) / 10000))
  printf '%d.%02d' $((hundredths / 100)) $((hundredths % 100))
}

newest_checkpoint() { (cd "$work/steps" 2>/dev/null && printf '%s\n' step-????????) | tail -n 1; }

# The number of the last step with a loss.
last_step() { tail -n 1 "$work/metrics.jsonl" 2>/dev/null | grep -oE '^\{"step":[0-9]+' | grep -oE '[0-9]+'; }

row() { printf '%4s  %-8s %-11s %8s %9s %9s %7s %6s %7s\n' "$@"; }

# kill_of_all HOST: while four ranks train.
kill_of_all() {
  local host=$1 killed noticed started newest last resumed
  last=$(last_step)
  mark
  now && killed=$at
  kill_host "$host"
  await "$left train_gpt: " && noticed=$at || return 1
  await "$left .*failed \(exitcode: " || return 1
  [[ $line == *"(exitcode: 75)"* ]] || { why="a rank of $left: $line"; return 1; }
  await "$left starts rank [01] of 2$" && started=$at || return 1
  newest=$(newest_checkpoint)
  await "$left resuming from " || return 1
  [[ $line == *"/$newest: "* ]] || { why="the newest checkpoint is $newest, but $line"; return 1; }
  await "$left training with 2 ranks, 8 rows a step in 4 " && await "$left step " || return 1
  # A line of the metrics may have been written between reading them and the kill.
  resumed=$((10#${newest#step-}))
  cells=(all "$(seconds "$killed" "$noticed")" "$(seconds "$noticed" "$started")" "$(seconds "$started" "$at")"
    "$(seconds "$killed" "$at")" "$((last + 1 > resumed ? last + 1 - resumed : 0))")
}

# kill_of_any HOST: at any state of the run. Its output so far must have reached the log before the mark.
kill_of_any() {
  local killed
  now && killed=$at
  kill_host "$1"
  sleep 0.2
  mark
  await "$left step " || return 1
  cells=(any - - - "$(seconds "$killed" "$at")" -)
}

# come_back HOST: all four ranks continue. `back` is the time that it took.
come_back() {
  local started newest
  await 'host-. starts rank 0 of 4$' || return 1
  newest=$(newest_checkpoint)
  await 'host-a (resuming from|starting at step 0) ' || return 1
  [[ -z $newest || $line == *"/$newest: "* ]] || { why="the newest checkpoint is $newest, but $line"; return 1; }
  await 'host-a training with 4 ranks, 8 rows a step in 2 ' && await 'host-a step ' || return 1
  back=$(seconds "$1" "$at")
  returning=$((10#${back/./} * 10))
}

# kill_again NUMBER: one kill and what follows, until the host that was killed is started again, at `returned`.
kill_again() {
  local early cells back=-
  random 4 && early=$((drawn == 0 && $1 > 1))
  victim=host-b
  [ "$name" = host-b ] || { random 2 && victim=host-$([ "$drawn" = 0 ] && echo a || echo b); }
  left=host-$([ "$victim" = host-a ] && echo b || echo a)
  if [ "$early" = 1 ]; then
    random $((returning * 5 / 4)) && pause "$drawn"
    kill_of_any "$victim" || return 1
  else
    come_back "$returned" || return 1
    random 3000 && pause "$drawn"
    kill_of_all "$victim" || return 1
  fi
  row "$1" "$victim" "${cells[@]}" "$back"
  random 3000 && pause "$drawn"
  mark
  now && returned=$at
  start_agent "$victim"
}

# Stops the run, as a scheduler does, and lets both hosts train 10 more steps.
end_run() {
  local host failures=0
  mark
  for host in host-a host-b; do pkill -TERM -P "$(pgrep -P "${agents[$host]}")"; done
  for host in host-a host-b; do
    wait "${agents[$host]}" 2>/dev/null
    unset "agents[$host]"
  done
  await 'host-a stopped by a signal after step ' || return 1
  steps=$(($(last_step) + 11))
  job=$name-end
  mark
  start_agent host-a "$steps"
  start_agent host-b "$steps"
  for host in host-a host-b; do wait "${agents[$host]}" || failures=$((failures + 1)); done
  unset 'agents[host-a]' 'agents[host-b]'
  [ "$failures" = 0 ] || { why="$failures of 2 agents of the last $steps steps failed"; return 1; }
}

# compare: each line of the metrics with the same step of the undisturbed run.
compare() {
  awk -F '[:,]' -v steps="$steps" '
    !/^\{"step":[0-9]+,"loss":[0-9.e+-]+,/ { printf "%s, line %d: no loss\n", FILENAME, FNR; bad = 1; next }
    NR == FNR { wanted[$2] = $4; next }
    {
      seen[$2]++
      difference = ($4 - wanted[$2]) / wanted[$2]
      if (difference < 0) difference = -difference
      if (difference > most) most = difference
      if (!(difference <= 1e-6)) { printf "step %d: loss %s, undisturbed %s\n", $2, $4, wanted[$2]; bad = 1 }
    }
    END {
      for (step = 0; step < steps; ++step) {
        if (!(step in wanted) || !(step in seen)) { printf "step %d: no loss\n", step; bad = 1 }
        if (seen[step] > 1) again++
      }
      printf "%d steps, %d of them more than once; largest difference of a loss %.2g\n", steps, again, most
      exit bad
    }' "$work/expected.jsonl" "$work/metrics.jsonl"
}

# nothing_left: no process, no memory, no hidden directory.
nothing_left() {
  local left
  left=$(pgrep -fa -- "$TRAIN_GPT|$venv/" | tr '\n' ' ')
  [ -z "$left" ] || { why="processes are left: $left"; return 1; }
  left=$(ls -A /dev/shm)
  [ -z "$left" ] || { why="in /dev/shm is left: $left"; return 1; }
  left=$(ls -A "$work/steps" | grep -v '^step-[0-9]*$')
  [ -z "$left" ] || { why="left next to the checkpoints: $left"; return 1; }
}

run_name() {
  local host number victim left returned returning why="" at line seen=0
  endpoint=host-a
  job=$name
  RANDOM=$seed
  for host in host-a host-b host-c; do open_output "$host"; done
  now && returned=$at
  if [ "$name" = either-host ]; then
    endpoint=host-c
    start_endpoint || { echo "$why"; return 1; }
  fi
  start_agent host-a
  start_agent host-b
  row kill host during noticed torchrun ready total again back
  for ((number = 1; number <= kills; ++number)); do
    kill_again "$number" || { echo "kill $number, of $victim: $why"; return 1; }
  done
  come_back "$returned" || { echo "after the last kill: $why"; return 1; }
  echo "the last host is back after $back s"
  sleep 2
  hidden=$(find "$work/steps" -mindepth 1 -maxdepth 1 -name '.*' | wc -l)
  end_run || { echo "$why"; return 1; }
  [ "$name" = host-b ] || kill_host host-c
  echo "hidden directories while it trained, of kills or of a save under way: $hidden"
  "$machine/onhost" host-a "$TRAIN_GPT" --nproc=4 "${train[@]}" --steps="$steps" --metrics="$work/expected.jsonl" \
    >"$work/expected.log" 2>&1 || { cat "$work/expected.log"; return 1; }
  compare || return 1
  nothing_left || { echo "$why"; return 1; }
}

# The tests, on the machine.
inside() {
  make_hosts && mount -t tmpfs tmpfs /dev/shm || die "the hosts cannot be made"
  [ -x "$TORCHRUN" ] || die "there is no torchrun, and pip cannot install torch"
  local name work log failed=0 host
  for name in "${names[@]}"; do
    # On the disk: checkpoints take most of the time.
    work=$(mktemp -d "$places/$name.XXXXXX") && log=$work/log && : >"$log" || die "no directory for the run"
    echo "$name: $kills kills, seed $seed"
    if run_name; then
      echo "passed $name: $((SECONDS)) s"
      rm -rf "$work"
    else
      echo "FAILED $name; the end of its log, $log:"
      tail -n 40 "$log" | sed 's/^/    /'
      failed=1
      for host in "${!agents[@]}"; do kill_host "$host"; done
    fi
  done
  return "$failed"
}

# ------------------------------------------------ the command line ---------------------------------------------------

keep=
kills=20
seed=$((RANDOM % 10000))
names=()
for argument; do
  case $argument in
    --keep=*) keep=${argument#*=} ;;
    --kills=*) kills=${argument#*=} ;;
    --seed=*) seed=${argument#*=} ;;
    -*) die "$argument: no such option; --kills=N, --seed=S and --keep=DIR are" ;;
    *)
      [[ " ${all[*]} " == *" $argument "* ]] || die "$argument: no such test; ${all[*]} are"
      names+=("$argument")
      ;;
  esac
done
[[ $kills =~ ^[1-9][0-9]*$ && $seed =~ ^[0-9]+$ ]] || die "--kills=$kills --seed=$seed: expected numbers"
[ ${#names[@]} != 0 ] || names=("${all[@]}")
places=${TMPDIR:-/tmp}

run_on_machine "$keep" --kills="$kills" --seed="$seed" "${names[@]}"

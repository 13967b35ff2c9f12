#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015,SC2317
#
# Starts train_gpt by each common launcher, the real programs, on two hosts of two ranks, and compares loss and gradient
# norm of every step with four ranks on one host, bit for bit. By hand, as root:
#
#   tests/hosts/launchers.sh [--keep=DIR] [NAME...]
#
#   launch              tools/launch --nnodes --node_rank
#   torchrun-static     torchrun --node-rank --master-addr, torch's default
#   torchrun-c10d       torchrun --rdzv-backend=c10d
#   torchrun-one-host   two agents of torchrun on one host
#   srun, srun-ports    Slurm: by a port that follows from the job, and by one that --resv-ports reserves
#   mpirun              Open MPI
#   hydra               mpiexec of MPICH
#   mpirun-mpi          Open MPI with --backend=mpi, without MASTER_ADDR; train_gpt must be built with this MPI
#   hydra-mpi           the same with MPICH
#
# Without a NAME: all.
#
# Missing packages are installed: Debian's by apt-get, and torch for torchrun by pip, in a directory under TMPDIR that
# needs 5.5 GB and is removed at the end; with --keep=DIR it is DIR, which is kept and used again. TRAIN_GPT and LAUNCH
# are the programs under test; without them ./bazelw builds them.
#
# A line for each NAME: passed, FAILED with the end of the log, or SKIPPED with the absent program. The last line is "N
# passed, N failed, N skipped"; the exit status is 0 if something passed and nothing failed.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/hosts/real_programs.sh
source "$repository/tests/hosts/real_programs.sh"

all=(launch torchrun-static torchrun-c10d torchrun-one-host srun srun-ports mpirun hydra mpirun-mpi hydra-mpi)

# The longest that one job of a few steps may take.
limit=180

# ------------------------------------------------ prerequisites
# --------------------------------------------------------

wants() {
  local name
  for name in "${names[@]}"; do
    # shellcheck disable=SC2254
    case $name in $1) return 0 ;; esac
  done
  return 1
}

prepare() {
  make_ready
  wants 'srun*' && install slurm-wlm munge
  wants 'mpirun*' && install openmpi-bin
  wants 'hydra*' && install mpich
  wants 'torchrun*' && make_venv "$venv"
  make_program TRAIN_GPT //train:train_gpt
  make_program LAUNCH //tools:launch
}

# ------------------------------------------------ the launchers ------------------------------------------------------

golden=$repository/tests/testdata/golden
train=(--config="$golden/gpt2_tiny/config.json" --tokens="$golden/tokens.u16")
steps=(--steps=5 --batch_size=1 --seq_len=16 --warmup_steps=3 --lr=3e-3 --seed=7)

# onhost HOST COMMAND...: with a limit, so that a launcher that hangs is a failure and the script ends.
onhost() { timeout --kill-after=5 "$limit" "$machine/onhost" "$@"; }

# both COMMAND...: runs a command on both hosts, with NODE in its words replaced by 0 and 1. Fails if one of them fails.
both() {
  local pids=() failures=0 node pid
  for node in 0 1; do
    onhost "host-$([ "$node" = 0 ] && echo a || echo b)" "${@//NODE/$node}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || failures=$((failures + 1))
  done
  return "$failures"
}

# absent COMMAND PACKAGE: reports and succeeds if there is no such command, so that a test is skipped.
absent() {
  command -v "$1" >/dev/null && return 1
  echo "there is no $1 (Debian: $2), and apt-get cannot install it"
}

absent_torchrun() {
  [ -x "$TORCHRUN" ] && return 1
  echo "there is no torchrun, and pip cannot install torch"
}

run_launch() {
  both "$LAUNCH" --nnodes=2 --node_rank=NODE --master_addr=host-a --master_port=29500 --nproc=2 -- "${program[@]}"
}

run_torchrun_static() {
  both "$TORCHRUN" --no-python --nnodes=2 --node-rank=NODE --nproc-per-node=2 --master-addr=host-a --master-port=29500 \
    "${program[@]}"
}

run_torchrun_c10d() {
  both "$TORCHRUN" --no-python --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=host-a:29500 \
    --rdzv-id=c10d "${program[@]}"
}

# Agents on one host share a store, and their ranks share memory.
run_torchrun_one_host() {
  # shellcheck disable=SC2016
  onhost host-a sh -c '"$@" & "$@" && wait $!' sh "$TORCHRUN" --no-python --nnodes=2 --nproc-per-node=2 \
    --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29501 --rdzv-id=one --local-addr=127.0.0.1 "${program[@]}"
}

# One controller and a slurmd on each host, with their files and their munged in the machine's memory.
start_slurm() {
  [ -e "$machine/slurm/ready" ] && return
  export SLURM_CONF=$machine/slurm/slurm.conf
  mkdir -p "$machine/slurm/state" "$machine/munge"
  sed "s|@DIR@|$machine/slurm|; s|@MUNGE@|$machine/munge/socket|" "$repository/tests/hosts/slurm.conf" >"$SLURM_CONF"
  printf '%s\n' CgroupPlugin=cgroup/v1 CgroupAutomount=no ConstrainCores=no ConstrainRAMSpace=no \
    >"$machine/slurm/cgroup.conf"
  mungekey --create --keyfile="$machine/munge/key" || return 1
  munged --key-file="$machine/munge/key" --socket="$machine/munge/socket" --pid-file="$machine/munge/pid" \
    --log-file="$machine/munge/log" --seed-file="$machine/munge/seed" || return 1
  "$machine/onhost" host-a slurmctld -D &
  "$machine/onhost" host-a slurmd -D -N host-a &
  "$machine/onhost" host-b slurmd -D -N host-b &
  local deadline=$((SECONDS + 60))
  until [ "$("$machine/onhost" host-a sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ]; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "slurm: the nodes are not idle after 60 s"; return 1; }
    sleep 0.2
  done
  touch "$machine/slurm/ready"
}

absent_slurm() { absent slurmctld slurm-wlm || absent slurmd slurm-wlm || absent srun slurm-wlm || absent munged munge; }

run_srun() { start_slurm && onhost host-a srun --nodes=2 --ntasks=4 "${program[@]}"; }

run_srun_ports() { start_slurm && onhost host-a srun --nodes=2 --ntasks=4 --resv-ports=1 "${program[@]}"; }

run_mpirun() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 onhost host-a mpirun.openmpi \
    --mca plm_rsh_agent "$machine/rsh" --mca oob_tcp_if_include 10.77.0.0/24 --host host-a:2,host-b:2 -np 4 \
    -x MASTER_ADDR=host-a -x MASTER_PORT=29500 "${program[@]}"
}

run_mpirun_mpi() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 onhost host-a mpirun.openmpi \
    --mca plm_rsh_agent "$machine/rsh" --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
    --host host-a:2,host-b:2 -np 4 "${program[@]}" --backend=mpi
}

run_hydra() {
  onhost host-a mpiexec.hydra -launcher ssh -launcher-exec "$machine/rsh" -hosts host-a:2,host-b:2 -n 4 \
    -genv MASTER_ADDR host-a -genv MASTER_PORT 29500 "${program[@]}"
}

# MPICH 4.0.2 of Debian 12, over UCX and TCP, may wait in MPI_Finalize for ever, also in other programs: only the losses
# of all steps count.
run_hydra_mpi() {
  local limit=40
  onhost host-a mpiexec.hydra -launcher ssh -launcher-exec "$machine/rsh" -hosts host-a:2,host-b:2 -n 4 \
    "${program[@]}" --backend=mpi || [ $? = 124 ]
}

# built_without LIBRARY: reports it if the libfsdp_mpi.so that train_gpt loads is not made with it: in Bazel's outputs,
# or next to the program.
built_without() {
  local directory
  directory=$(dirname "$TRAIN_GPT")
  local made=$directory/../collectives/mpi/libfsdp_mpi.so
  [ -e "$made" ] || made=$directory/libfsdp_mpi.so
  [ -e "$made" ] || { echo "train_gpt has no libfsdp_mpi.so (tests/mpi/run.sh builds both)"; return; }
  [[ $(ldd "$made") == *$1* ]] && return 1
  echo "$made is not made with $1 (tests/mpi/run.sh does)"
}

# ------------------------------------------------ one test after the other -------------------------------------------

# results FILE: step, loss and gradient norm of each line.
results() { grep -oE '^\{"step":[0-9]+,"loss":[^,]*,"grad_norm":[^,]*' "$1"; }

# compare METRICS: with the run on one host.
compare() {
  diff <(results "$work/expected.jsonl") <(results "$1") && [ "$(results "$1" | wc -l)" = 5 ]
}

# why_not NAME: the absent program; fails if none is absent.
why_not() {
  case $1 in
    launch) return 1 ;;
    torchrun-*) absent_torchrun ;;
    srun*) absent_slurm ;;
    mpirun) absent mpirun.openmpi openmpi-bin ;;
    hydra) absent mpiexec.hydra mpich ;;
    mpirun-mpi) absent mpirun.openmpi openmpi-bin || built_without libmpi.so ;;
    hydra-mpi) absent mpiexec.hydra mpich || built_without libmpich.so ;;
  esac
}

# Runs the tests, on the machine.
inside() {
  make_hosts || die "the hosts cannot be made"
  local work=$machine/work name reason passed=0 failed=0 skipped=0 start
  mkdir "$work"
  onhost host-a "$TRAIN_GPT" --nproc=4 "${train[@]}" "${steps[@]}" --metrics="$work/expected.jsonl" \
    >"$work/log" 2>&1 || { cat "$work/log"; die "four ranks on one host do not train"; }
  for name in "${names[@]}"; do
    if reason=$(why_not "$name"); then
      echo "SKIPPED $name: $reason"
      skipped=$((skipped + 1))
      continue
    fi
    start=$SECONDS
    program=("$TRAIN_GPT" "${train[@]}" "${steps[@]}" --metrics="$work/$name.jsonl")
    if "run_${name//-/_}" >"$work/log" 2>&1 && compare "$work/$name.jsonl" >>"$work/log" 2>&1; then
      echo "passed $name: $((SECONDS - start)) s"
      passed=$((passed + 1))
    else
      echo "FAILED $name after $((SECONDS - start)) s; the end of its log:"
      tail -n 40 "$work/log" | sed 's/^/    /'
      failed=$((failed + 1))
    fi
  done
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

# ------------------------------------------------ the command line ---------------------------------------------------

keep=
names=()
for argument; do
  case $argument in
    --keep=*) keep=${argument#*=} ;;
    -*) die "$argument: no such option; --keep=DIR is" ;;
    *)
      [[ " ${all[*]} " == *" $argument "* ]] || die "$argument: no such test; ${all[*]} are"
      names+=("$argument")
      ;;
  esac
done
[ ${#names[@]} != 0 ] || names=("${all[@]}")

run_on_machine "$keep" "${names[@]}"

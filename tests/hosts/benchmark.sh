#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015,SC2154,SC2317
#
# The collectives between two hosts, compared with plain sockets on the same link, with torch's Gloo and with Open MPI.
# By hand, as root:
#
#   tests/hosts/benchmark.sh [--rate=2gbit] [--rounds=3] [--layouts=2x1,2x2,2x4] [--mebibytes=16,64,256]
#                            [--peers=gloo,mpi] [--keep=DIR]
#
# The hosts are namespaces of this machine, the link between them a pair of virtual Ethernet devices, each end limited
# by a token bucket (tc-tbf(8)) to --rate; --rate=none leaves it unlimited, so that processors are the limit. In each
# round all programs take turns, so that other load on the machine meets all of them: for each layout ours with the
# wire, Gloo, Open MPI. benchmark_table.py defines the comparisons. The exit status is 0 if all goals that were measured
# held, 3 if one did not.
#
# Missing packages are installed: Debian's by apt-get, torch by pip in DIR, which is kept and used again (without
# --keep, in a directory that is removed). BENCHMARK is our program; without it ./bazelw builds it.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/hosts/two_hosts.sh
source "$repository/tests/hosts/two_hosts.sh"
# shellcheck source=tests/hosts/packages.sh
source "$repository/tests/hosts/packages.sh"

# The longest that one program may take.
limit=900

die() {
  echo "benchmark.sh: $*" >&2
  exit 2
}

prepare() {
  [ "$(id -u)" = 0 ] || die "must be root, to make hosts and to install packages"
  install iproute2 libucx0
  command -v tc >/dev/null || die "there is no tc(8) (Debian: iproute2), and apt-get cannot install it"
  case ,$peers, in *,gloo,*)
    make_venv "$venv" || die "pip cannot install torch; --peers=mpi does without"
    ;;
  esac
  case ,$peers, in *,mpi,*)
    install openmpi-bin libopenmpi-dev
    command -v mpicc >/dev/null || die "there is no mpicc (Debian: libopenmpi-dev); --peers=gloo does without"
    ;;
  esac
  if [ -z "${BENCHMARK:-}" ]; then
    (cd "$repository" && ./bazelw build -c opt //collectives/conformance:collectives_benchmark) ||
      die "the program cannot be built"
    BENCHMARK=$repository/bazel-bin/collectives/conformance/collectives_benchmark
  fi
  BENCHMARK=$(realpath -e "$BENCHMARK") || die "BENCHMARK is not a file"
  export BENCHMARK
}

onhost() { timeout --kill-after=5 "$limit" "$machine/onhost" "$@"; }

# ranks EACH COMMAND...: EACH ranks on each host, in torchrun's environment; each call has its own port.
ranks() {
  local each=$1 pids=() node failures=0 pid
  shift
  port=$((port + 1))
  for node in 0 1; do
    # shellcheck disable=SC2016
    onhost "host-$([ "$node" = 0 ] && echo a || echo b)" sh -c '
      each=$1 node=$2 port=$3 pids=
      shift 3
      for local_rank in $(seq 0 $((each - 1))); do
        RANK=$((node * each + local_rank)) WORLD_SIZE=$((2 * each)) LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE=$each \
          MASTER_ADDR=host-a MASTER_PORT=$port FSDP_RUN_ID=$port OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 "$@" &
        pids="$pids $!"
      done
      for pid in $pids; do wait "$pid" || exit 1; done' sh "$each" "$node" "$port" "$@" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failures=$((failures + 1)); done
  return "$failures"
}

measure_ours() {
  ranks "$1" "$BENCHMARK" --backend=net --wire --rounds=5 --json --op=all_gather --min_bytes=4KiB --max_bytes=4KiB || return
  local mebibytes op
  for mebibytes in $sizes; do
    for op in all_gather reduce_scatter; do
      ranks "$1" "$BENCHMARK" --backend=net --wire --rounds=3 --json --op="$op" --min_bytes="${mebibytes}MiB" \
        --max_bytes="${mebibytes}MiB" || return
    done
  done
}

measure_gloo() { ranks "$1" "$venv/bin/python3" "$repository/tests/hosts/gloo_benchmark.py" 3 $((4 << 10)) "${bytes[@]}"; }

# Its ranks spin while they wait; if ranks share cores they must yield.
measure_mpi() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 onhost host-a mpirun.openmpi \
    --mca plm_rsh_agent "$machine/rsh" --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca mpi_yield_when_idle 1 --host "host-a:$1,host-b:$1" -np $((2 * $1)) "$work/mpi_benchmark" 3 $((4 << 10)) "${bytes[@]}"
}

# Runs on the machine.
inside() {
  make_hosts || die "the hosts cannot be made"
  local work=$machine/work port=29500 sizes=${mebibytes//,/ } bytes=() size host round layout who
  mkdir "$work"
  for size in $sizes; do bytes+=($((size << 20))); done
  if [ "$rate" != none ]; then
    for host in host-a host-b; do
      nsenter --net="$machine/$host.net" tc qdisc add dev eth0 root tbf rate "$rate" burst 1mb latency 20ms ||
        die "tc cannot limit the link to $rate"
    done
  fi
  case ,$peers, in *,mpi,*)
    mpicc -O2 -o "$work/mpi_benchmark" "$repository/tests/hosts/mpi_benchmark.c" || die "mpicc does not compile" ;;
  esac
  for ((round = 1; round <= rounds; ++round)); do
    for layout in ${layouts//,/ }; do
      for who in ours ${peers//,/ }; do
        echo "round $round: $layout, $who, load $(cut -d' ' -f1 /proc/loadavg)" >&2
        "measure_$who" "${layout#2x}" >"$work/out" 2>"$work/log" || { cat "$work/log" >&2; die "$who failed on $layout"; }
        python3 "$repository/tests/hosts/benchmark_table.py" note "$round" "$layout" "$who" \
          "$(cut -d' ' -f1 /proc/loadavg)" <"$work/out" >>"$work/rows.jsonl" || die "$who printed no rows"
      done
    done
  done
  python3 "$repository/tests/hosts/benchmark_table.py" table "$rate" <"$work/rows.jsonl"
}

rate=2gbit rounds=3 layouts=2x1,2x2,2x4 mebibytes=16,64,256 peers=gloo,mpi keep=
for argument; do
  case $argument in
    --rate=* | --rounds=* | --layouts=* | --mebibytes=* | --peers=* | --keep=*)
      argument=${argument#--}
      declare "${argument%%=*}=${argument#*=}"
      ;;
    *) die "$argument: no such option; --rate, --rounds, --layouts, --mebibytes, --peers and --keep are" ;;
  esac
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "--rounds=$rounds: expected a number of at least 1"
[[ $layouts =~ ^2x[1-9][0-9]?(,2x[1-9][0-9]?)*$ ]] || die "--layouts=$layouts: expected 2xRANKS,..."
[[ $mebibytes =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || die "--mebibytes=$mebibytes: expected numbers with commas between"
[[ $peers =~ ^((gloo|mpi)(,(gloo|mpi))*)?$ ]] || die "--peers=$peers: expected gloo, mpi, both or nothing"

if [ -n "${FSDP_HOSTS_VENV:-}" ]; then
  venv=$FSDP_HOSTS_VENV
  inside
  exit
fi

if [ -n "$keep" ]; then
  mkdir -p "$keep" && venv=$(realpath -e "$keep") || die "--keep=$keep: cannot be made"
else
  venv=$(mktemp -d) || die "there is no directory for torch"
fi
hosts=
end() {
  [ -z "$hosts" ] || kill -KILL "$hosts" 2>/dev/null
  [ -n "$keep" ] || rm -rf --one-file-system "$venv"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
prepare
# In the background, since a trap waits for a command in the foreground.
FSDP_HOSTS_VENV=$venv on_own_machine bash "$0" "$@" &
hosts=$!
wait "$hosts"
status=$?
hosts=
exit "$status"

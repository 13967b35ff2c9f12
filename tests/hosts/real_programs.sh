# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2015,SC2034,SC2154
#
# For scripts by hand that run the real launchers on the hosts of two_hosts.sh: the prerequisites, and the way from the
# user's shell to the machine. A script that sources this sets `repository`, and defines
#
#   prepare   installs and finds the tests' prerequisites; outside of the machine, with a network
#   inside    the tests, on the machine; its arguments are the words of run_on_machine
#
# It ends with: run_on_machine "$keep" WORD...
#
# shellcheck source=tests/hosts/two_hosts.sh
source "$repository/tests/hosts/two_hosts.sh"
# shellcheck source=tests/hosts/packages.sh
source "$repository/tests/hosts/packages.sh"

die() {
  echo "$(basename "$0"): $*" >&2
  exit 2
}

# Prerequisites of hosts and of net groups.
make_ready() {
  [ "$(id -u)" = 0 ] || die "must be root, to make hosts and to install packages"
  install iproute2 libucx0
  command -v ip >/dev/null || die "there is no ip(8) (Debian: iproute2), and apt-get cannot install it"
  # Without grep -q, which may end while ldconfig writes; with pipefail that is a failure.
  [[ $(ldconfig -p) == *libucp.so.0* ]] || die "there is no libucp.so.0 (Debian: libucx0), and apt-get cannot install it"
}

# make_program VARIABLE TARGET: the program under test, exported in VARIABLE; ./bazelw builds it if the variable is not
# set.
make_program() {
  local target=${2#//}
  if [ -z "${!1:-}" ]; then
    (cd "$repository" && ./bazelw build "$2") || die "$2 cannot be built"
    printf -v "$1" %s "$repository/bazel-bin/${target/:/\/}"
  fi
  local path
  path=$(realpath -e "${!1}") || die "$1=${!1}: no such file"
  export "$1=$path"
}

# run_on_machine KEEP WORD...: prepares, then runs this script again as the first process of a machine, which calls
# `inside WORD...`, and exits with its status. torch's directory is KEEP, which is kept; if KEEP is empty, a new one
# that is removed. Does not return.
run_on_machine() {
  local keep=$1 status
  shift
  if [ -n "${FSDP_HOSTS_VENV:-}" ]; then
    venv=$FSDP_HOSTS_VENV
    TORCHRUN=$venv/bin/torchrun
    inside "$@"
    exit
  fi
  if [ -n "$keep" ]; then
    mkdir -p "$keep" && venv=$(realpath -e "$keep") || die "--keep=$keep: cannot be made"
  else
    venv=$(mktemp -d) || die "there is no directory for torch"
    trash=$venv
  fi
  trap clean_up EXIT
  trap 'exit 130' INT TERM HUP
  prepare
  # In the background: a trap does not run while a command is in the foreground.
  FSDP_HOSTS_VENV=$venv on_own_machine bash "$0" "$@" &
  tests=$!
  wait "$tests"
  status=$?
  tests=
  exit "$status"
}

tests=
trash=
clean_up() {
  [ -z "$tests" ] || kill -KILL "$tests" 2>/dev/null
  [ -z "$trash" ] || rm -rf --one-file-system "$trash"
}

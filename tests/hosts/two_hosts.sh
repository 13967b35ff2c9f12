# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# For scripts that start jobs on several hosts: a separate machine with host-a, host-b and host-c. They share its disk
# and have a network address each; a command started by onhost also has its own host name, process numbers, System V
# objects and mounts, as tests/hosts/hosts.h makes them for tests in C++.
#
# Everything, processes included, ends with the script that made it, however that ends. Needs root and iproute2.

# The machine's files: in memory, visible only to the machine.
machine=/run/machine

# on_own_machine COMMAND...: becomes a command that is the first process of a machine without a network. The machine ends
# with the command, and with the parent of the process that calls this. The command calls make_hosts.
on_own_machine() {
  exec setpriv --pdeathsig KILL unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc --uts \
    --ipc -- "$@"
}

# Makes the hosts, with names that resolve on each, and the commands onhost and rsh.
make_hosts() {
  mount -t tmpfs tmpfs /run && mkdir -p "$machine/tmp" "$machine/home" || return 1
  # Launchers leave files in both.
  export TMPDIR=$machine/tmp HOME=$machine/home
  printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 host-a' '10.77.0.2 host-b' '10.77.0.3 host-c' >"$machine/hosts"
  mount --bind "$machine/hosts" /etc/hosts || return 1
  ip link set lo up && ip link add switch type bridge && ip link set switch up || return 1
  local number=0 host
  for host in host-a host-b host-c; do
    number=$((number + 1))
    touch "$machine/$host.net" && unshare --net="$machine/$host.net" true || return 1
    ip link add "port-$host" type veth peer name eth0 netns "$machine/$host.net" || return 1
    ip link set "port-$host" master switch up || return 1
    nsenter --net="$machine/$host.net" sh -c "ip link set lo up && ip addr add 10.77.0.$number/24 dev eth0 &&
      ip link set eth0 up" || return 1
  done
  # Without a pid 1 of its own, processes that a command leaves behind on its host would not end with it.
  cat >"$machine/onhost" <<'END'
#!/bin/sh
# onhost HOST COMMAND...: runs a command on a host. Killing this process kills all that the command started there.
host=$1
shift
exec nsenter --net="/run/machine/$host.net" \
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc --uts --ipc -- \
  sh -c 'mount -t sysfs sysfs /sys && hostname "$0" && "$@"' "$host" "$@"
END
  cat >"$machine/rsh" <<'END'
#!/bin/sh
# rsh [-OPTION...] HOST WORD...: as ssh with the same arguments, for launchers that start their helpers by it.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec /run/machine/onhost "$host" sh -c "$*"
END
  chmod +x "$machine/onhost" "$machine/rsh"
}

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# For scripts that prove something on a bare Debian: makes a chroot and runs commands in it. Needs root, debootstrap and
# a Debian mirror. All mounts are in a mount namespace of their own, and all processes in a process namespace, so none
# of them is left when the script ends, however it ends.

# Starts the script again inside new namespaces, once. Call it first: enter_namespaces "$@"
enter_namespaces() {
  if [ "$(id -u)" != 0 ]; then
    echo "$0: must be root, to make a chroot" >&2
    exit 1
  fi
  if [ -z "${FSDP_CHROOT_NAMESPACES:-}" ]; then
    FSDP_CHROOT_NAMESPACES=1 exec unshare --mount --propagation private --pid --fork --kill-child bash "$0" "$@"
  fi
}

# make_chroot SUITE ROOT: a minimal Debian in ROOT, unless it exists, with the mounts of a booted system.
make_chroot() {
  local suite=$1 root=$2
  if [ ! -e "$root/etc/debian_version" ]; then
    # debootstrap has no script for a suite that is younger than itself.
    local script=$suite
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid
    debootstrap --variant=minbase "$suite" "$root" "${MIRROR:-http://deb.debian.org/debian}" "$script"
  fi
  mount -t proc proc "$root/proc"
  mkdir -p "$root/dev/shm"
  mount -t tmpfs tmpfs "$root/dev/shm"
}

# in_chroot ROOT COMMAND: runs a shell command in it with an empty environment: only PATH, no HOME, no locale.
in_chroot() {
  echo "+ $2" >&2
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" /bin/sh -ec "$2"
}

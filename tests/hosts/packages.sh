# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# For scripts by hand, as root: packages that they need and a machine may lack.

# install PACKAGE...: Debian's packages that are not installed. Callers check for the commands of a package. Packages
# start their daemons when they are installed: here in a namespace that ends with the installation.
install() {
  local package missing=()
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  echo "installing ${missing[*]}" >&2
  apt-get update -qq >/dev/null 2>&1
  for package in "${missing[@]}"; do
    DEBIAN_FRONTEND=noninteractive unshare --pid --fork --kill-child --mount-proc \
      apt-get install -qq -y --no-install-recommends "$package" </dev/null >/dev/null 2>&1
  done
}

# make_venv DIR: a virtual environment with torch of PyPI, unless it exists; without DIR/bin/torchrun if torch cannot be
# installed. It needs 5.5 GB.
make_venv() {
  [ -x "$1/bin/torchrun" ] && return
  install python3-venv
  echo "installing torch in $1" >&2
  python3 -m venv "$1" || return
  "$1/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check torch
}

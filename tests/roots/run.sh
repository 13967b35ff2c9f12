#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Uses everything that docs/install.md names in the roots of other systems, made here by debootstrap: the static programs,
# the Debian package, the wheel, the C library, and the install for CMake and pkg-config.
#
#   tests/roots/run.sh [--dir=DIR] [--site_packages=DIR] [--libraries=DIR] [--release=DIR]
#                      [ROOT...] [-- OPTION_OF_BAZEL...]
#
#   --dir=DIR            directory in which the roots are made and kept, 3 GB; default: fsdp-roots in the user's cache
#   --site_packages=DIR  a PyTorch for Python 3.11: all of tests/wheel in the root of Debian 12
#   --libraries=DIR      the libraries of CUDA that this PyTorch needs, if they are not next to it
#   --release=DIR        test the files that tools/release.sh made there, instead of this working tree's
#   ROOT                 one of: empty debian12 debian11 ubuntu22.04 ubuntu20.04 ubuntu16.04; default: all
#
# As root, with debootstrap and mirrors of Debian and Ubuntu (MIRROR, UBUNTU_MIRROR). A missing prerequisite is reported
# as a line "SKIPPED: ...". The last line is "N passed, N failed, N skipped", and the exit status shows whether any
# failed; 77 if nothing could be tried.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
# shellcheck source=tests/chroot.sh
source "$repository/tests/chroot.sh"

dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/fsdp-roots
site_packages=
libraries=
release=
roots=()
options=()
for argument; do
  [ ${#options[@]} = 0 ] || { options+=("$argument") && continue; }
  case $argument in
    --) options=(build) ;;
    --dir=?*) dir=$(realpath -m "${argument#--dir=}") ;;
    --site_packages=?*) site_packages=$(realpath "${argument#--site_packages=}") ;;
    --libraries=?*) libraries=$(realpath "${argument#--libraries=}") ;;
    --release=?*) release=$(realpath "${argument#--release=}") ;;
    -h | --help) sed -n '3,19s/^# \{0,1\}//p' "$0" && exit 0 ;;
    empty | debian12 | debian11 | ubuntu22.04 | ubuntu20.04 | ubuntu16.04) roots+=("$argument") ;;
    *) echo "run.sh: $argument: neither a flag nor a root; see --help" >&2 && exit 2 ;;
  esac
done
[ ${#roots[@]} != 0 ] || roots=(empty debian12 debian11 ubuntu22.04 ubuntu20.04 ubuntu16.04)
things=$dir/things

# Outside the namespaces, since Bazel's server would end with them.
if [ -z "${FSDP_CHROOT_NAMESPACES:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "SKIPPED: everything: must be root, to make and enter roots" && exit 77; }
  rm -rf "$things"
  mkdir -p "$things"
  cd "$repository" || exit 1
  if [ -n "$release" ]; then
    cp "$release"/{ckpt,launch} "$release"/*.whl "$release"/fsdp-tools_*_amd64.deb "$things" || exit 1
  else
    ./bazelw "${options[@]:-build}" //tools:{ckpt_static,launch_static,wheel,deb} || exit 1
    for program in ckpt launch; do cp "bazel-bin/tools/${program}_static" "$things/$program" || exit 1; done
    bazel-bin/tools/wheel --output_dir="$things" >/dev/null && bazel-bin/tools/deb --output_dir="$things" >/dev/null || exit 1
  fi
  # No root has the CUDA and the NCCL of this machine.
  ./bazelw "${options[@]:-build}" --config=nocuda //tools:install || exit 1
  bazel-bin/tools/install --prefix="$things/prefix" >/dev/null || exit 1
  cp checkpoint/testdata/all_dtypes.safetensors "$things/model.safetensors"
  cp checkpoint/c_api/example.c tools/package/{install_test.sh,installed_program.cc,readme_program.cc.in} \
    README.md docs/install.md "$here"/{complete.zsh,use_wheel.py} "$things"
fi
enter_namespaces "$@"

passed=0
failed=0
skipped=0
log=$dir/log

skip() {
  echo "SKIPPED: $*"
  skipped=$((skipped + 1))
}

# check ROOT WHAT COMMAND: runs a shell command in the root, in /things.
check() {
  if in_chroot "$dir/$1" "cd /things; $3" >"$log" 2>&1; then
    echo "passed: $1: $2"
    passed=$((passed + 1))
  else
    echo "FAILED: $1: $2"
    tail -n 20 "$log" | sed 's/^/    /'
    failed=$((failed + 1))
    return 1
  fi
}

# wants ROOT WHAT PACKAGE...: installs packages in the root, or skips WHAT.
wants() {
  local root=$1 what=$2
  shift 2
  in_chroot "$dir/$root" "DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $*" >"$log" 2>&1 && return
  skip "$root: $what: $(grep -a . "$log" | tail -n 1)"
  return 1
}

# make ROOT SUITE [MIRROR]: an installed system with the things in /things.
make() {
  local root=$1 suite=$2 components=main
  [ -z "${3:-}" ] || components="main universe"
  if ! command -v debootstrap >/dev/null; then
    skip "$root: all of it: there is no debootstrap"
    return 1
  fi
  if ! MIRROR=${3:-${MIRROR:-}} make_chroot "$suite" "$dir/$root" >"$log" 2>&1; then
    skip "$root: all of it: $(grep -a . "$log" | tail -n 1)"
    rm -rf "${dir:?}/$root"
    return 1
  fi
  # For terminals, in which shells complete.
  mount -t devpts -o ptmxmode=666 devpts "$dir/$root/dev/pts"
  if [ ! -e "$dir/$root/things" ]; then
    # shellcheck disable=SC2086
    for of in "$suite" ${3:+"$suite-updates"}; do
      echo "deb ${3:-${MIRROR:-http://deb.debian.org/debian}} $of $components"
    done >"$dir/$root/etc/apt/sources.list"
    in_chroot "$dir/$root" "apt-get update -q" >"$log" 2>&1 || echo "$root: apt-get update: $(tail -n 1 "$log")"
  fi
  rm -rf "$dir/$root/things"
  cp -a "$things" "$dir/$root/things"
}

PROGRAMS='
  ./ckpt --version
  ./ckpt convert model.safetensors full
  ./ckpt convert full sharded --state_dict_type=sharded --world_size=4 --parity=1
  rm sharded/rank-00002-of-00004.h5
  ./ckpt repair sharded
  ./ckpt verify sharded
  ./ckpt convert sharded back.safetensors
  ./ckpt diff model.safetensors back.safetensors
  ./launch --nproc=2 -- ./ckpt verify full
  rm -r full sharded back.safetensors'

programs() { check "$1" "the static programs" "$PROGRAMS"; }

# The C library, with its own compiler, in a C99 program.
c_library() {
  wants "$1" "the C library" gcc libc6-dev || return 0
  check "$1" "the C library, on $(in_chroot "$dir/$1" "ldd --version" 2>/dev/null | head -n 1)" '
    cc -std=c99 example.c -Iprefix/include -o example prefix/lib/libfsdp_checkpoint.so -Wl,-rpath,/things/prefix/lib
    ./example model.safetensors >means
    grep -q "a.float32 float32 \[3, 7\] mean" means'
}

# wheel ROOT PYTHON PACKAGE...: pip takes it by its tag.
wheel() {
  local root=$1 python=$2
  wants "$root" "the wheel" "${@:3}" || return 0
  check "$root" "the wheel, in $python without NumPy and PyTorch" "
    rm -rf venv
    $python -m venv venv
    venv/bin/pip install --no-index --disable-pip-version-check fsdp_checkpoint-*.whl
    cd venv && PATH=/things/venv/bin:\$PATH bin/python ../use_wheel.py ../model.safetensors"
}

deb() {
  wants "$1" "the Debian package" man-db bash-completion zsh || return 0
  # Roots without documentation are configured to install none.
  check "$1" "the Debian package, its pages and its programs" '
    rm -f /etc/dpkg/dpkg.cfg.d/excludes
    DEBIAN_FRONTEND=noninteractive apt-get install -y --reinstall ./fsdp-tools_*_amd64.deb
    ckpt verify model.safetensors
    fsdp-launch --nproc=2 -- true
    for page in ckpt ckpt-convert fsdp-launch; do
      LC_ALL=C.UTF-8 MAN_KEEP_STDERR=1 man --warnings -E UTF-8 "$page" >page 2>complaints
      grep -q "^SYNOPSIS" page
      if grep . complaints; then exit 1; fi
    done'
  check "$1" "completion in bash" "zsh -f complete.zsh bash"
  check "$1" "completion in zsh" "zsh -f complete.zsh zsh"
}

# Programs linked with the archives, by the compiler and with the libraries of the root.
builds() {
  wants "$1" "CMake and pkg-config" g++ cmake make pkg-config python3 libabsl-dev libdnnl-dev libhdf5-dev libhwy-dev \
    libisal-dev liburing-dev libxxhash-dev libzstd-dev zlib1g-dev nlohmann-json3-dev || return 0
  # install_test.sh builds at the place given to an installing program: this one copies.
  check "$1" "programs by CMake, by pkg-config and in C" '
    rm -rf built && mkdir -p built tools/package
    cp installed_program.cc readme_program.cc.in tools/package
    printf "#!/bin/sh\ncp -a /things/prefix/. \"\${1#--prefix=}\"\n" >copy
    chmod +x copy
    if ! TEST_SRCDIR=/things TEST_TMPDIR=/things/built bash install_test.sh copy README.md install.md >said 2>&1 || grep SKIPPED said; then
      cat said
      exit 1
    fi'
}

# The tests of the wheel, with a PyTorch from outside the root.
wheel_with_torch() {
  if [ -z "$site_packages" ]; then
    skip "$1: the tests of the wheel with PyTorch: --site_packages=DIR names none"
    return
  fi
  local at=$dir/$1
  mkdir -p "$at"/{site_packages,libraries,sources}
  mount --bind "$repository" "$at/sources" && mount --bind "$site_packages" "$at/site_packages" || return 1
  [ -z "$libraries" ] || mount --bind "$libraries" "$at/libraries" || return 1
  local torch='
    export PYTHONDONTWRITEBYTECODE=1 PATH=/things/venv/bin:$PATH LD_LIBRARY_PATH=/libraries FSDP_TESTDATA=/sources/checkpoint/testdata
    cd venv
    echo /site_packages >"$(echo lib/python3*/site-packages)/torch_elsewhere.pth"'
  if ! in_chroot "$at" "cd /things; $torch; python -c 'import numpy, torch'" >"$log" 2>&1; then
    skip "$1: the tests of the wheel with PyTorch: $(tail -n 1 "$log")"
    return
  fi
  check "$1" "the tests of the wheel with PyTorch" "$torch; python -m unittest discover -v -p '*_test.py' -s /sources/tests/wheel"
}

for root in "${roots[@]}"; do
  case $root in
    empty)
      rm -rf "$dir/empty" && mkdir -p "$dir/empty/things"
      cp "$things"/{ckpt,launch,model.safetensors} "$dir/empty/things"
      # It has no shell either: each line is run directly.
      good=1
      while read -r line; do
        case $line in
          "") continue ;;
          rm*) (cd "$dir/empty/things" && $line) || good=0 ;;
          *)
            # shellcheck disable=SC2086
            env -i "$(command -v chroot)" "$dir/empty" ${line//.\//\/things\/} >"$log" 2>&1 || good=0
            ;;
        esac
        [ $good = 1 ] || { echo "FAILED: empty: $line: $(tail -n 1 "$log")" && failed=$((failed + 1)) && break; }
      done < <(sed 's#\(model\|back\)\.safetensors#/things/&#g; s# \(full\|sharded\)# /things/\1#g; s#^  rm -r .*##; s#/things/\(sharded/rank\)#\1#' <<<"$PROGRAMS")
      [ $good = 0 ] || { echo "passed: empty: the static programs" && passed=$((passed + 1)); }
      ;;
    debian12)
      make debian12 bookworm || continue
      programs debian12
      deb debian12
      wheel debian12 python3 python3 python3-venv && wheel_with_torch debian12
      c_library debian12
      builds debian12
      ;;
    debian11)
      make debian11 bullseye || continue
      programs debian11
      deb debian11
      wheel debian11 python3 python3 python3-venv
      c_library debian11
      ;;
    ubuntu22.04)
      make ubuntu22.04 jammy "${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}" || continue
      programs ubuntu22.04
      deb ubuntu22.04
      wheel ubuntu22.04 python3 python3 python3-venv
      c_library ubuntu22.04
      ;;
    ubuntu20.04)
      make ubuntu20.04 focal "${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}" || continue
      programs ubuntu20.04
      skip "ubuntu20.04: the wheel: its pip 20.0 knows no tags of the form manylinux_2_18, as pip 20.3 and later do"
      c_library ubuntu20.04
      ;;
    ubuntu16.04)
      make ubuntu16.04 xenial "${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}" || continue
      programs ubuntu16.04
      c_library ubuntu16.04
      skip "ubuntu16.04: the wheel: it has no Python from 3.9 on"
      ;;
  esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] || exit 1
[ "$passed" != 0 ] || exit 77

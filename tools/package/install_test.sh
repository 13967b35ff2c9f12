#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The files of //tools:install are enough for a program in C++, by pkg-config and by CMake, and for one in C: each
# builds only from PREFIX, moved to another place, and runs.
#
#   install_test.sh INSTALL    the program that installs
set -uo pipefail

failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
skip() { echo "SKIPPED: $*"; }

command -v python3 >/dev/null || { skip "there is no python3: nothing is installed" && exit 0; }
install=$PWD/$1
program=$PWD/tools/package/installed_program.cc
export RUNFILES_DIR=${RUNFILES_DIR:-$TEST_SRCDIR}
cd "$TEST_TMPDIR" || exit 1
"$install" --prefix=first >/dev/null || fail "it does not install"
"$install" --prefix=first >/dev/null || fail "it does not install over itself"
mv first moved
prefix=$PWD/moved

[ "$("$prefix/bin/ckpt" --version | cut -d' ' -f1)" = ckpt ] || fail "bin/ckpt does not run"
cat >reads.c <<'END'
#include <fsdp_checkpoint.h>
int main(void) { return fsdp_checkpoint_abi_version() == FSDP_CHECKPOINT_ABI_VERSION ? 0 : 1; }
END

if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  # shellcheck disable=SC2046
  g++ -O0 $(pkg-config --cflags fsdp fsdp_checkpoint) "$program" -o by_pkg_config \
    $(pkg-config --libs fsdp fsdp_checkpoint) && [ "$(./by_pkg_config)" = OK ] ||
    fail "the program by pkg-config"
  # shellcheck disable=SC2046
  gcc -std=c99 $(pkg-config --cflags fsdp_checkpoint_c) reads.c -o reads $(pkg-config --libs fsdp_checkpoint_c) &&
    ./reads || fail "the program in C by pkg-config"
else
  skip "pkg-config is not installed"
fi

if command -v cmake >/dev/null; then
  mkdir project
  cp "$program" reads.c project
  cat >project/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(program CXX C)
find_package(fsdp 0.1 REQUIRED CONFIG)
add_executable(program installed_program.cc)
target_link_libraries(program fsdp::fsdp fsdp::checkpoint)
add_executable(reads reads.c)
target_link_libraries(reads fsdp::checkpoint_c)
END
  cmake -S project -B built -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 && cmake --build built >>cmake.log 2>&1 &&
    [ "$(built/program)" = OK ] && built/reads || { tail -n 30 cmake.log && fail "the program by CMake"; }
  sed -i 's/fsdp 0.1 /fsdp 7.1 /' project/CMakeLists.txt
  cmake -S project -B refused -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 && fail "CMake takes it for version 7.1"
else
  skip "CMake is not installed"
fi
[ "$failures" = 0 ] && echo "PASSED"
exit "$failures"

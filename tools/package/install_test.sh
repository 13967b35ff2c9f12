#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The files of //tools:install are enough for a program in C++, by pkg-config and by CMake, and for one in C: each
# builds only from PREFIX, moved to another place, and runs. README's program is built as docs/install.md says: by its
# CMakeLists.txt, and by its command line.
#
#   install_test.sh INSTALL README INSTALL_PAGE    the program that installs, and the pages
set -uo pipefail

failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
skip() { echo "SKIPPED: $*"; }

command -v python3 >/dev/null || { skip "there is no python3: nothing is installed" && exit 0; }
install=$PWD/$1
readme=$PWD/$2
page=$PWD/$3
program_of_readme=$PWD/tools/package/readme_program.cc.in
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

sed -n '/^## A program/,/^```$/p' "$readme" | sed '/^## \|^```\|#include\|^$/d' >readme_program.txt
[ "$(wc -l <readme_program.txt)" -gt 10 ] || fail "README has no program"
mkdir train
sed -e '/^@README@$/{r readme_program.txt' -e 'd}' "$program_of_readme" >train/train.cc
# trains PROGRAM: it trains on two ranks, and continues on three.
trains() {
  "$prefix/bin/fsdp-launch" --nproc=2 -- "$1" saved.$2 1 && "$prefix/bin/fsdp-launch" --nproc=3 -- "$1" saved.$2 2 &&
    "$prefix/bin/ckpt" verify saved.$2/step-00000002
}

if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  # shellcheck disable=SC2046
  g++ -O0 $(pkg-config --cflags fsdp fsdp_checkpoint) "$program" -o by_pkg_config \
    $(pkg-config --libs fsdp fsdp_checkpoint) && [ "$(./by_pkg_config)" = OK ] ||
    fail "the program by pkg-config"
  command_line=$(sed -n 's/^\(g++ .*\)$/\1/p' "$page")
  (cd train && eval "$command_line") && trains train/train by_command_line || fail "README's program by: $command_line"
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
target_link_libraries(program fsdp::fsdp)
add_executable(reads reads.c)
target_link_libraries(reads fsdp::checkpoint_c)
END
  cmake -S project -B built -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 && cmake --build built >>cmake.log 2>&1 &&
    [ "$(built/program)" = OK ] && built/reads || { tail -n 30 cmake.log && fail "the program by CMake"; }
  sed -n '/^```cmake$/,/^```$/p' "$page" | sed '/^```/d' >train/CMakeLists.txt
  cmake -S train -B train/build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 && cmake --build train/build >>cmake.log 2>&1 &&
    trains train/build/train by_cmake || { tail -n 30 cmake.log && fail "README's program by CMake"; }
  sed -i 's/fsdp 0.1 /fsdp 7.1 /' project/CMakeLists.txt
  cmake -S project -B refused -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 && fail "CMake takes it for version 7.1"
else
  skip "CMake is not installed"
fi
[ "$failures" = 0 ] && echo "PASSED"
exit "$failures"

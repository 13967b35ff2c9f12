#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The real programs against random attacks: damaged and hostile files of every format, hostile names, kills at random
# instants, stopped ranks, strangers on ports, ranks with different files, a lying object store, disks that are full or
# fail, few descriptors, outputs on inputs. Promises (docs/guarantees.md) are checked after each try.
#
#   ./bazelw build //tools:{ckpt,launch,report,simulate} //train:train_gpt && tests/attacks/run.sh
#   tests/attacks/run.sh [--minutes=10] [--seed=N] [--only=ATTACK[:TRY]]
#
# Prints the seed first, for each failure a command that repeats it, and at the end how often each attack was tried; a
# try depends on seed, attack and number only, except that a kill's instant does not repeat exactly. Exit status 1 if
# something failed, whose files are kept, 77 without python3 3.9. An attack that needs root (disks), libucx0 or
# libxxhash0 is skipped without, with the reason. BIN=DIR: the programs, instead of bazel-bin.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

bin=${BIN:-$PWD/bazel-bin}
for program in tools/ckpt tools/launch tools/report tools/simulate train/train_gpt; do
  [ -x "$bin/$program" ] || { echo "attacks: $bin/$program is missing: ./bazelw build //${program/\//:}" >&2; exit 1; }
done
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || {
  echo "attacks: SKIPPED: there is no python3 of 3.9 or later"
  exit 77
}
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/attacks/attacks.py --bin="$bin" "$@"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The programs of tools/static/aarch64.sh under qemu's emulation of that processor, compared with this machine's: the
# same bits, each repairs files that the other has protected, and messages are equal.
#
#   tools/static/aarch64_test.sh DIR CKPT    DIR: aarch64.sh's directory; CKPT: the static program of this machine
#
# Exit status 77 after a line "SKIPPED: ..." if there is no qemu-aarch64 (Debian: qemu-user-static).
set -uo pipefail
[ $# = 2 ] && [ -x "$2" ] || { echo "usage: tools/static/aarch64_test.sh DIR CKPT" >&2 && exit 2; }
arm=$(realpath "$1")/ckpt-aarch64
arm_launch=$(realpath "$1")/launch-aarch64
here=$(realpath "$2")
testdata=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/checkpoint/testdata
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
  { echo "SKIPPED: the programs for aarch64: there is no qemu-aarch64" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 2

failures=0
# must WHAT COMMAND...: must also print nothing to stderr.
must() {
  if ! "${@:2}" >out 2>err || [ -s err ]; then
    echo "FAILED: $1: $(tail -n 2 err)"
    failures=$((failures + 1))
  fi
}
same() {
  cmp "$1" "$2" || failures=$((failures + 1))
}

for program in "$arm" "$arm_launch"; do
  readelf --file-header "$program" | grep -q 'Machine: *AArch64' || { echo "FAILED: $program is not for AArch64" && exit 1; }
  readelf --program-headers "$program" | grep -qE 'INTERP|DYNAMIC' && { echo "FAILED: $program is not static" && exit 1; }
done

cp "$testdata/all_dtypes.safetensors" model.safetensors
for of in "here $here" "arm $qemu $arm"; do
  read -ra ckpt <<<"${of#* }"
  name=${of%% *}
  mkdir "$name"
  must "$name: convert to full" "${ckpt[@]}" convert model.safetensors "$name/full"
  must "$name: convert to sharded" "${ckpt[@]}" convert model.safetensors "$name/sharded" --state_dict_type=sharded \
    --world_size=5 --parity=2
  # Arithmetic: every dtype rounded to another.
  for dtype in bfloat16 float16 float8_e4m3fn float64; do
    must "$name: convert to $dtype" "${ckpt[@]}" convert model.safetensors "$name/$dtype.safetensors" "--dtype=$dtype"
  done
  must "$name: convert to torch" "${ckpt[@]}" convert "$name/sharded" "$name/model.pt"
  must "$name: inspect" "${ckpt[@]}" inspect model.safetensors --json
  cp out "$name/inspected"
done
compared=0
while read -r file; do
  # Two saves have different identities; a save of several files has its identity in every file.
  case $file in
    */sharded/* | */manifest.json) continue ;;
  esac
  same "here/$file" "arm/$file"
  compared=$((compared + 1))
done < <(cd here && find . -type f | sort)
[ "$(cd here && find . | sort)" = "$(cd arm && find . | sort)" ] || { echo "FAILED: other files"; failures=$((failures + 1)); }

# Each restores files from the other's parity.
for sharded in arm here; do cp -a $sharded/sharded $sharded/whole; done
rm arm/sharded/rank-0000{1,4}-of-00005.h5 here/sharded/rank-0000{0,2}-of-00005.h5
must "repair of arm's here" "$here" repair arm/sharded
must "repair of here's on arm" "$qemu" "$arm" repair here/sharded
for file in {here,arm}/whole/*; do
  same "$file" "${file/whole/sharded}"
  compared=$((compared + 1))
done
for sharded in here arm; do
  must "verify $sharded" "$qemu" "$arm" verify "$sharded/sharded"
  must "diff of $sharded" "$qemu" "$arm" diff model.safetensors "$sharded/sharded"
done
must "the HDF5 library" "$qemu" "$arm" verify here/full/checkpoint.h5
must "launch" "$qemu" "$arm_launch" --nproc=2 -- "$qemu" "$arm" verify here/full

# Damage is found, with the same words.
printf '\xff' | dd of=here/sharded/rank-00003-of-00005.h5 bs=1 seek=5000 conv=notrunc 2>/dev/null
"$here" verify here/sharded >said.here 2>&1 && { echo "FAILED: damage is not found here"; failures=$((failures + 1)); }
"$qemu" "$arm" verify here/sharded >said.arm 2>&1 && { echo "FAILED: damage is not found on arm"; failures=$((failures + 1)); }
same said.here said.arm
[ "$compared" -ge 20 ] || { echo "FAILED: only $compared files were compared"; failures=$((failures + 1)); }
[ "$failures" = 0 ] && echo "PASSED: $compared files with the same bits"
exit $((failures != 0))

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packs programs for a machine that has a GPU and its libraries, but neither Bazel nor Debian's:
#
#   gpu_bundle.sh OUT.tar.xz FILE...
#
# Programs go to bin/, scripts to the top, and the shared libraries that Debian has in no other form (oneDNN and what it
# needs, ISA-L, Highway) to lib/, with UCX where it is installed, which programs open by name. What remains to be found
# there is glibc, libstdc++, and what comes with CUDA, NCCL and PyTorch; anything else is an error. Symbols are stripped;
# the oldest glibc that will do is written to GLIBC.
set -euo pipefail

out=$1
shift
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib"
problems=0

carry_libraries() {  # of one program
  local name path with_torch=
  ldd "$1" >/dev/null 2>&1 || return 0  # a static program needs none
  while read -r name path; do
    case $name in
      linux-vdso.so.1|ld-linux-*|/lib64/ld-linux-*|libc.so.6|libm.so.6|libdl.so.2|libpthread.so.0|librt.so.1) ;;
      libstdc++.so.6|libgcc_s.so.1|libcuda.so.1|libcublas*.so.*|libnccl.so.2) ;;
      libtorch*.so|libc10*.so) with_torch=yes ;;
      libdnnl.so.*|libisal.so.*|libhwy.so.*|libgomp.so.1|libOpenCL.so.1)
        [[ -e $stage/lib/$name ]] || cp -L "$path" "$stage/lib/$name" ;;
      *)
        [[ $with_torch && $name == @(libcu|libnv|libutil.)* ]] && continue  # what PyTorch's libraries need themselves
        echo "$1 needs $name ($path), which a GPU machine may lack" >&2
        problems=1 ;;
    esac
  done < <(ldd "$1" | sed -E 's/ \(0x[0-9a-f]+\)$//; s/^[[:space:]]*//; s/ => / /')
}

for file in "$@"; do
  if [[ $(head -c 4 "$file") == $'\x7fELF' ]]; then
    cp -L "$file" "$stage/bin/$(basename "$file")"
    carry_libraries "$file"
  else
    cp -L "$file" "$stage/$(basename "$file")"
  fi
done
[[ $problems == 0 ]]
libucp=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/^[[:space:]]*libucp\.so\.0 .*=> //p' | head -n 1)
if [[ -n $libucp ]]; then
  cp -L "$libucp" "$stage/lib/libucp.so.0"
  ldd "$libucp" | sed -nE 's/^[[:space:]]*(libuc[a-z]*\.so\.[0-9]+|libnuma\.so\.[0-9]+) => (\S+) .*/\1 \2/p' |
    while read -r name path; do cp -L "$path" "$stage/lib/$name"; done
fi
chmod -R u+w "$stage"
strip --strip-unneeded "$stage"/bin/* "$stage"/lib/* 2>/dev/null || true  # what is no ELF file stays as it is
{ objdump -T "$stage"/bin/* "$stage"/lib/* 2>/dev/null || true; } | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1 > "$stage/GLIBC"
# Programs have most of their code in common: a dictionary as large as all of them makes a tenth of 250 MB.
tar -C "$stage" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | xz --lzma2=preset=1,dict=256MiB > "$out"

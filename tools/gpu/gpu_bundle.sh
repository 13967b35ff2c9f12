#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packs programs for a machine that has a GPU and its libraries, but neither Bazel nor Debian's:
#
#   gpu_bundle.sh OUT.tar.xz FILE...
#
# Programs go to bin/, scripts to the top, and the shared libraries that Debian has in no other form (oneDNN and its
# dependencies, ISA-L, Highway) to lib/, with UCX if it is installed, which programs open by name. The machine must have
# glibc, libstdc++, and the libraries of CUDA, NCCL and PyTorch; anything else is an error. Symbols are stripped; the
# oldest sufficient glibc is written to GLIBC.
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
        [[ $with_torch && $name == @(libcu|libnv|libutil.)* ]] && continue  # dependencies of PyTorch's libraries
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
strip --strip-unneeded "$stage"/bin/* "$stage"/lib/* 2>/dev/null || true  # files that are not ELF stay as they are
{ objdump -T "$stage"/bin/* "$stage"/lib/* 2>/dev/null || true; } | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1 > "$stage/GLIBC"
# Programs share most of their code: a dictionary as large as all of them reduces 250 MB to a tenth.
tar -C "$stage" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | xz --lzma2=preset=1,dict=256MiB > "$out"

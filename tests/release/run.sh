#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Takes a release as a person does who has downloaded it: every file has its checksum, README's first table names it, and
# each is installed where nothing else is, and does there what README says.
#
#   tests/release/run.sh DIR      the directory that tools/release.sh has made
#
# As root, or where users may make namespaces: otherwise programs run outside of their roots, and a line says so.
set -uo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin

[ $# = 1 ] && [ -d "$1" ] || { echo "usage: tests/release/run.sh DIR" >&2 && exit 2; }
release=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
skip() { echo "SKIPPED: $*"; }

# in_root ROOT COMMAND...: the command sees only that directory.
in_root() {
  local root=$1
  shift
  if [ "$(id -u)" = 0 ]; then
    chroot "$root" "$@"
  elif unshare --user --map-root-user true 2>/dev/null; then
    unshare --user --map-root-user chroot "$root" "$@"
  else
    skip "an empty root: chroot is not allowed here"
    (cd "$root" && "$root/$1" "${@:2}")
  fi
}

# readme_lines CKPT...: README's commands of "Checkpoints on the command line", by the given way to call ckpt.
readme_lines() {
  sed -n '/^## Checkpoints on the command line/,/^## /s/^    ckpt \([a-zA-Z=-]* .*\)  .*/\1/p' "$repository/README.md" |
    sed 's/^\([a-z]*\) */\1 /; s/  .*//; s/PATH/model.safetensors/; s/SRC DST/model.safetensors again/' >"$work/lines"
  [ "$(wc -l <"$work/lines")" -ge 3 ] || fail "README has no lines of ckpt"
  while read -r -a words; do
    "$@" "${words[@]}" </dev/null >"$work/said" 2>&1 || fail "$* ${words[*]}: $(tail -n 2 "$work/said")"
  done <"$work/lines"
  "$@" help push >/dev/null || fail "$* has no push"
}

(cd "$release" && sha256sum --check --quiet SHA256SUMS) || fail "SHA256SUMS"
(cd "$release" && ls | grep -v '^SHA256SUMS$') | while read -r file; do
  grep -q "  $file\$" "$release/SHA256SUMS" || echo "$file has no checksum"
done | grep . && fail "SHA256SUMS does not name these"

# The names of the table, with a star for what depends on the machine.
names=$(sed -n '/^| you have/,/^$/p' "$repository/README.md" | grep -o '`[a-z_-]*[-_.][^` ]*\(whl\|deb\|gz\)`' | tr -d '`')
[ "$(wc -l <<<"$names")" = 3 ] || fail "README's first table names $(wc -l <<<"$names") files: $names"
for name in ckpt $names; do
  # shellcheck disable=SC2086
  (cd "$release" && ls $name >/dev/null 2>&1) || fail "README's first table names $name, which the release lacks"
done

echo "== ckpt and launch, in a root with nothing else"
root=$work/static
mkdir "$root"
cp "$release"/{ckpt,launch} "$repository/checkpoint/testdata/all_dtypes.safetensors" "$root"
mv "$root/all_dtypes.safetensors" "$root/model.safetensors"
readme_lines in_root "$root" /ckpt
in_root "$root" /launch --nproc=2 -- /ckpt verify model.safetensors >/dev/null || fail "launch"

echo "== the Debian package, by dpkg, in an empty root"
if command -v dpkg >/dev/null; then
  root=$work/deb
  mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers}
  : >"$root/var/lib/dpkg/status"
  deb=$(ls "$release"/fsdp-tools_*.deb)
  install_package() { dpkg --root="$root" --force-not-root --log=/dev/null "$@" >"$work/said" 2>&1; }
  install_package -i "$deb" || fail "dpkg -i: $(tail -n 2 "$work/said")"
  cp "$work/static/model.safetensors" "$root"
  readme_lines in_root "$root" /usr/bin/ckpt
  in_root "$root" /usr/bin/fsdp-launch --nproc=2 -- /usr/bin/ckpt verify model.safetensors >/dev/null || fail "fsdp-launch"
  for page in ckpt ckpt-convert fsdp-launch; do
    zcat "$root/usr/share/man/man1/$page.1.gz" | grep -q '^.SH EXAMPLES\|^.SH SEE ALSO' || fail "no page $page(1)"
  done
  install_package -P fsdp-tools || fail "dpkg -P: $(tail -n 2 "$work/said")"
  left=$(find "$root/usr" -type f 2>/dev/null)
  [ -z "$left" ] || fail "dpkg -P leaves $left"
else
  skip "the Debian package: there is no dpkg"
fi

echo "== the wheel, by pip, in an empty environment"
if python3 -m venv "$work/venv" >"$work/said" 2>&1; then
  "$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$release"/fsdp_checkpoint-*.whl >"$work/said" 2>&1 ||
    fail "pip: $(tail -n 2 "$work/said")"
  mkdir "$work/wheel"
  cp "$work/static/model.safetensors" "$work/wheel"
  in_environment() { (cd "$work/wheel" && env -i PATH="$work/venv/bin" "$@"); }
  readme_lines in_environment ckpt
  in_environment python -c '
import fsdp_checkpoint
with fsdp_checkpoint.open("model.safetensors") as checkpoint:
    names = list(checkpoint)
assert names, names' || fail "fsdp_checkpoint.open"
else
  skip "the wheel: $(tail -n 1 "$work/said")"
fi

echo "== the sources"
tar -xzf "$release"/fsdp-*.tar.gz -C "$work" || fail "the archive of the sources does not open"
sources=$(echo "$work"/fsdp-[0-9]*)
version=$("$release/ckpt" --version)
[ "ckpt ${sources##*/fsdp-}" = "$version" ] || fail "the sources are $sources, and ckpt is $version"
for wanted in bazelw README.md LICENSE MODULE.bazel examples/quickstart.cc; do
  [ -s "$sources/$wanted" ] || fail "the sources lack $wanted"
done
# Every page that README links to is there.
grep -o '](\([a-zA-Z_/]*\.md\)' "$sources/README.md" | sed 's/](//' | sort -u | while read -r page; do
  [ -s "$sources/$page" ] || echo "$page"
done | grep . && fail "README links to these, which the sources lack"

[ "$failures" = 0 ] && echo "release: PASSED"
exit $((failures != 0))

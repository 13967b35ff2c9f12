#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The Debian package is made from the programs' help, and works on an empty system: equal bytes twice, programs that run
# in an empty root, manual pages without a warning of groff, completion that completes.
#
#   package_test.sh DEB    the program that makes the package
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
skip() { echo "SKIPPED: $*"; }

for wanted in python3 dpkg-deb; do
  command -v "$wanted" >/dev/null || { skip "there is no $wanted: nothing can be packed" && exit 0; }
done
deb=$PWD/$1
# A rule uses this test's runfiles.
export RUNFILES_DIR=${RUNFILES_DIR:-$TEST_SRCDIR}
work=$TEST_TMPDIR
first=$("$deb" --output_dir="$work/first") || fail "the package is not made"
second=$("$deb" --output_dir="$work/second") || fail "the package is not made a second time"
cmp "$first" "$second" || fail "equal inputs give other bytes"

dpkg-deb -x "$first" "$work/root" || fail "the package does not open"
version=$(dpkg-deb -f "$first" Version)
[ "$("$work/root/usr/bin/ckpt" --version)" = "ckpt $version" ] || fail "ckpt --version is not $version"
"$work/root/usr/bin/fsdp-launch" --nproc=2 -- /bin/true || fail "fsdp-launch does not start /bin/true"
if unshare --user --map-root-user chroot "$work/root" /usr/bin/ckpt --version >/dev/null 2>&1; then
  echo "ckpt runs in a root that has only the package"
elif [ "$(id -u)" = 0 ]; then
  chroot "$work/root" /usr/bin/ckpt --version >/dev/null || fail "ckpt does not run in a root that has only the package"
else
  skip "a root that has only the package: chroot is not allowed here"
fi

pages=$work/root/usr/share/man/man1
for name in $("$work/root/usr/bin/ckpt" --help | sed -n 's/^  ckpt \([a-z]*\) .*/\1/p'); do
  [ -s "$pages/ckpt-$name.1.gz" ] || fail "there is no page ckpt-$name(1)"
  "$work/root/usr/bin/ckpt" "$name" --help | sed -n 's/^  --\([a-z_]*\): .*/\1/p' | while read -r flag; do
    zcat "$pages/ckpt-$name.1.gz" | grep -q -- "--$flag" || zcat "$pages/ckpt-$name.1.gz" | grep -q -- "\\\\-\\\\-$flag" ||
      echo "--$flag"
  done | grep . && fail "ckpt-$name(1) lacks these flags"
done
if command -v groff >/dev/null; then
  for page in "$pages"/*.gz; do
    warnings=$(zcat "$page" | groff -man -ww -Tutf8 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "$page: $warnings"
  done
  # Paragraphs fill the terminal and do not leave it.
  long=$(zcat "$pages/ckpt.1.gz" | groff -man -Tascii -P-cbou -rLL=80n | awk 'length > 80')
  [ -z "$long" ] || fail "ckpt(1) has lines that no terminal shows whole: $long"
else
  skip "warnings of manual pages: there is no groff"
fi

# Every page has the sections that people look for.
for page in ckpt ckpt-convert ckpt-push fsdp-launch; do
  for section in SYNOPSIS "EXIT STATUS" ENVIRONMENT; do
    zcat "$pages/$page.1.gz" | grep -qx ".SH $section" || fail "$page(1) has no section $section"
  done
  [ "$page" = ckpt ] || zcat "$pages/$page.1.gz" | grep -qx ".SH EXAMPLES" || fail "$page(1) has no examples"
done
zcat "$pages/ckpt-inspect.1.gz" | grep -qF '\fB\-\-tensors\fR[=\fIVALUE\fR]' ||
  fail "ckpt-inspect(1) does not say that the value of --tensors may be left out"
zcat "$pages/fsdp-launch.1.gz" | grep -q "launch_static" && fail "fsdp-launch(1) calls the program launch_static"

# completes WORDS...: bash's completions of the last word, one per line.
completes() {
  bash --norc -c '
    compopt() { :; }
    source "$1/$2"
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    "_${1//-/_}"
    printf "%s\n" "${COMPREPLY[@]}"' bash "$work/root/usr/share/bash-completion/completions" "$@"
}
[ "$(completes ckpt conv)" = convert ] || fail "ckpt conv is not completed to convert"
[ "$(completes ckpt convert --max_sh)" = --max_shard_size= ] || fail "ckpt convert --max_sh is not completed"
[ "$(completes ckpt convert --to = saf)" = safetensors ] || fail "ckpt convert --to=saf is not completed"
[ "$(completes ckpt convert --to = meg)" = megatron ] || fail "ckpt convert --to=meg is not completed"
[ "$(completes ckpt convert --state_dict_type = sh)" = sharded ] || fail "--state_dict_type=sh is not completed"
[ "$(completes ckpt convert --dtype = bf)" = bfloat16 ] || fail "ckpt convert --dtype=bf is not completed"
[ "$(completes ckpt convert --outtype = Q)" = Q8_0 ] || fail "ckpt convert --outtype=Q is not completed"
[ "$(completes ckpt convert --world_size = "")" = "" ] || fail "files are offered for --world_size"
[ "$(completes ckpt inspect --tens | tr '\n' ' ')" = "--tensors --tensors= " ] ||
  fail "ckpt inspect --tens is not completed with and without a value"
[ "$(completes ckpt help ver)" = verify ] || fail "ckpt help ver is not completed"
[ "$(completes ckpt verify --max_sh)" = "" ] || fail "ckpt verify is offered a flag that it has not"
[ "$(completes fsdp-launch --nno)" = --nnodes= ] || fail "fsdp-launch --nno is not completed"
completes fsdp-launch -- bas | grep -qx bash || fail "fsdp-launch -- bas is not completed"
if command -v zsh >/dev/null; then
  for name in ckpt fsdp-launch; do
    zsh -n "$work/root/usr/share/zsh/vendor-completions/_$name" || fail "zsh does not read the completion of $name"
  done
  grep -q -- "--to=.*:value:(.*safetensors.*megatron.*)'" "$work/root/usr/share/zsh/vendor-completions/_ckpt" ||
    fail "zsh does not know the values of --to"
  grep -q -- "--world_size=.*:value: '" "$work/root/usr/share/zsh/vendor-completions/_ckpt" ||
    fail "zsh offers files for --world_size"
else
  skip "completion of zsh: there is no zsh"
fi
if command -v fish >/dev/null; then
  # fish_completes LINE: fish's completions of its end, on one line, without their descriptions.
  fish_completes() {
    HOME=$work PATH=$work/root/usr/bin:$PATH fish --no-config -c '
      for file in $argv[1]/*.fish; source $file; end
      complete -C $argv[2]' "$work/root/usr/share/fish/vendor_completions.d" "$1" | cut -f1 | tr '\n' ' '
  }
  [ "$(fish_completes 'ckpt conv')" = "convert " ] || fail "fish does not complete ckpt conv"
  [ "$(fish_completes 'ckpt convert --max_sh')" = "--max_shard_size " ] || fail "fish does not complete --max_sh"
  [ "$(fish_completes 'ckpt convert --to=meg')" = "--to=megatron " ] || fail "fish does not complete --to=meg"
  [ "$(fish_completes 'ckpt verify --max_sh')" = "" ] || fail "fish offers ckpt verify a flag that it has not"
  [ "$(fish_completes 'ckpt convert --world_size=')" = "" ] || fail "fish offers files for --world_size"
  [ "$(fish_completes 'fsdp-launch --nno')" = "--nnodes " ] || fail "fish does not complete fsdp-launch --nno"
  fish_completes 'fsdp-launch --nproc=2 -- bas' | grep -q '\bbash\b' || fail "fish does not complete fsdp-launch -- bas"
else
  skip "completion of fish: there is no fish"
fi
[ "$failures" = 0 ] && echo "PASSED"
exit "$failures"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the commands of docs/libtorch.md, line by line, in an empty directory, as a person would who has built what the
# page says: bazel-bin/ holds the programs that Bazel built for this test, and the two commands that download and build,
# which run.sh has carried out by then, only check that what they make is there. Then checks what the commands left, and
# that the page's first lines of C++ are those of the example.
set -euo pipefail

root=$PWD # of the runfiles
page=$root/docs/libtorch.md
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/page.XXXXXX")
cd "$work"

fail() { echo "FAILED: $*" >&2 && exit 1; }

# blocks LANGUAGE: the lines of all blocks of the page in it.
blocks() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$page" | grep -v '^```'; }

ln -s "$root" bazel-bin
mkdir -p tests/libtorch
printf '#!/bin/sh\necho /opt/libtorch\n' >tests/libtorch/run.sh
cat >bazelw <<'END'
#!/bin/bash
# build //PACKAGE:NAME...
[ "$1" = build ] || exit 1
for target in "${@:2}"; do
  file=${target#//}
  [ -x "bazel-bin/${file/://}" ] || { echo "$target: no data of this test" >&2 && exit 1; }
done
END
chmod +x bazelw tests/libtorch/run.sh

blocks sh >commands.sh
[ "$(wc -l <commands.sh)" -ge 10 ] || fail "the page has only these commands: $(cat commands.sh)"
bash -euxo pipefail commands.sh 2>&1 | tee output || fail "a command of the page"

# The kill hit a run that had saved, and the second run went on from there.
steps=$(sed -n 's/.*\] *\([0-9]*\) steps are done$/\1/p; s/^\([0-9]*\) steps are done$/\1/p' output)
[ "${steps:-0}" -ge 100 ] || fail "no run went on after 100 steps or more"
[ -e "run/step-00000600/manifest.json" ] || fail "the second run did not save its last step"
[ -e "run/step-$(printf %08d "$steps")/rank-00003-of-00004.h5" ] || fail "the first run had no four ranks"
[ -e "run/step-00000600/rank-00001-of-00002.h5" ] || fail "the second run had no two ranks"
[ -s model.pt ] && [ -s model.safetensors ] || fail "nothing was converted"

# loss STEP: that of the last run that printed it.
loss() { sed -n "s/.*step *$1  loss \([0-9.]*\)\$/\1/p" output | tail -n 1; }
awk -v first="$(loss 0)" -v last="$(loss 599)" 'BEGIN { exit !(first > 2 && last > 0 && last < first / 4) }' ||
  fail "the loss went from $(loss 0) to $(loss 599)"

# The first two blocks of C++ are the example's, but for where lines are broken.
example=$(tr -d ' \n' <"$root/examples/torch_transformer.cc")
blocks cpp | sed '/path\/of\/dcp/,$d; /Restore(/d' | tr -d ' ' | while read -r line; do
  [[ $example == *"$line"* ]] || fail "the page shows a line that the example has not: $line"
done

# Programs say what they are for, and refuse what they do not have.
for program in examples/torch_transformer tests/libtorch/benchmark; do
  "$root/$program" --help | grep -q '^usage: ' || fail "$program --help"
  status=0
  { "$root/$program" --no_such_flag=1 2>&1 || true; } | grep -q no_such_flag || fail "$program --no_such_flag"
  "$root/$program" --steps=0 >/dev/null 2>&1 || status=$?
  [ "$status" = 2 ] || fail "$program --steps=0: exit status $status"
done
{ "$root/tests/libtorch/benchmark" --size=1,2,x 2>&1 || true; } | grep -q 'size=1,2,x: expected' || fail "benchmark --size"
echo passed

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# page_test.sh PAGE EXAMPLE RANKS_BEFORE RANKS_AFTER
#
# Runs the commands of PAGE (docs/NAME.md), line by line, in an empty directory, as a user who has built the page's
# programs would: bazel-bin/ holds the programs that Bazel built for this test, and the commands that download and build
# only check that their results exist. Then checks the results of the commands: a run of EXAMPLE (examples/NAME) that
# was killed on RANKS_BEFORE ranks after at least 100 steps, continued on RANKS_AFTER, and was converted. Each line of
# the page's blocks of cpp is a line of the example, except for line breaks.
set -euo pipefail

root=$PWD # of the runfiles
page=$root/$1
example=$2
before=$(printf %05d "$3")
after=$(printf %05d "$4")
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
[ "$(wc -l <commands.sh)" -ge 9 ] || fail "the page has only these commands: $(cat commands.sh)"
bash -euxo pipefail commands.sh 2>&1 | tee output || fail "a command of the page"

# The kill hit a run that had saved, and the second run continued from there.
steps=$(sed -n 's/.*\] *\([0-9]*\) steps are done$/\1/p; s/^\([0-9]*\) steps are done$/\1/p' output)
[ "${steps:-0}" -ge 100 ] || fail "no run went on after 100 steps or more"
at=run/step-$(printf %08d "$steps")
end=$(printf '%s\n' run/step-* | tail -n 1)
last=$((10#${end#run/step-}))
[ "$last" -gt "$steps" ] && [ -e "$end/manifest.json" ] || fail "the second run saved no step"
[ -e "$(echo "$at"/rank-*-of-"$before".h5 | cut -d' ' -f1)" ] || fail "the first run had not $3 ranks: $(ls "$at")"
[ -e "$(echo "$end"/rank-*-of-"$after".h5 | cut -d' ' -f1)" ] || fail "the second run had not $4 ranks: $(ls "$end")"
[ -s model.pt ] && [ -s model.safetensors ] || fail "nothing was converted"

# loss STEP: the loss in the last run that printed it.
loss() { sed -n "s/.*step *$1  loss \([0-9.]*\)\$/\1/p" output | tail -n 1; }
awk -v first="$(loss 0)" -v last="$(loss $((last - 1)))" 'BEGIN { exit !(first > 0 && last > 0 && last < first / 4) }' ||
  fail "the loss went from $(loss 0) to $(loss $((last - 1)))"

source=$(tr -d ' \n' <"$root/$example.cc")
[ "$(blocks cpp | wc -l)" -ge 10 ] || fail "the page shows no C++"
blocks cpp | tr -d ' ' | while read -r line; do
  [[ $source == *"$line"* ]] || fail "the page shows a line that the example has not: $line"
done

# The example prints its purpose, and refuses unknown flags.
"$root/$example" --help | grep -q '^usage: ' || fail "$example --help"
{ "$root/$example" --no_such_flag=1 2>&1 || true; } | grep -q no_such_flag || fail "$example --no_such_flag"
status=0
"$root/$example" --steps=0 >/dev/null 2>&1 || status=$?
[ "$status" = 2 ] || fail "$example --steps=0: exit status $status"
echo passed

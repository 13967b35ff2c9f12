#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks docs/formats.md: every test that it names is a source NAME_test.cc, every file that it names in parentheses is
# mentioned in that source, every row of the tables of formats names a test, and no cell is empty or says "partly". Needs
# no build. Prints the faults and exits with 1.
set -eu
cd "$(dirname "$0")/../.."
page=docs/formats.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong=0

# Tests: `name_test`, and `room:name_test` if the target has the same name.
grep -oE '`[a-z0-9_/:]*_test`' "$page" | tr -d '`' | sed 's/.*://' | sort -u > "$work/named"
# A source that no BUILD file names, by itself or as the target that train_gpt_test makes of it, is not run.
find . -name BUILD.bazel -not -path './bazel-*' -exec grep -hoE '"[a-z0-9_]+_test(\.cc)?"' {} + | tr -d '"' |
  sed 's/\.cc$//' | sort -u > "$work/tests"
missing=$(comm -23 "$work/named" "$work/tests")
if [ -n "$missing" ]; then
  echo "$page names tests that do not exist:"; echo "$missing"; wrong=1
fi

# Files: `name_test` (`file`, `file`).
grep -oE '`[a-z0-9_/:]*_test`( and [^(|]*)? \(`[^)]*`\)' "$page" |
  sed -E 's/^`([a-z0-9_/:]*:)?([a-z0-9_]+)`[^(]*\((.*)\)$/\2 \3/; s/[`,]/ /g' > "$work/files"
while read -r test names; do
  source=$(find . -name "$test.cc" -not -path './bazel-*')
  for name in $names; do
    grep -q "$name" "$source" || { echo "$page: $test does not mention $name"; wrong=1; }
  done
done < "$work/files"

grep -E '^\| ' "$page" | grep -vE '^\| (format|form|what|conversion) \|' > "$work/rows"
sed -n '/^| format |/,/^$/p; /^| form |/,/^$/p' "$page" | grep '^| ' | grep -vE '^\| (format|form) \|' > "$work/cells"
if grep -v '_test`' "$work/cells"; then
  echo "$page: the rows above name no test"; wrong=1
fi
if grep -iE '\| +\||partly' "$work/rows"; then
  echo "$page: the rows above have an empty cell, or one that says partly"; wrong=1
fi
[ "$wrong" -eq 0 ] && echo "$page: $(wc -l < "$work/cells") rows, $(wc -l < "$work/named") tests, all present"
exit "$wrong"

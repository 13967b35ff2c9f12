#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks docs/fsdp_parity.md: every test that it names exists in the tree, every row names one (except below "Not yet"),
# no row has an empty cell, and no two rows begin alike. Needs no build. Prints the faults and exits with 1.
set -eu
cd "$(dirname "$0")/../.."
page=docs/fsdp_parity.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# TEST(Suite, Name), TEST_F and TEST_P, as Suite.Name; a name may be on the line after its suite.
find . -name '*_test.cc' -not -path './bazel-*' -exec cat {} + | tr '\n' ' ' |
  grep -oE 'TEST(_F|_P)?\([A-Za-z0-9_]+, *[A-Za-z0-9_]+\)' |
  sed -E 's/^TEST(_F|_P)?\(//; s/, */./; s/\)$//' | sort -u > "$work/tests"

grep -oE '`[A-Za-z0-9_]+Test\.[A-Za-z0-9_]+`' "$page" | tr -d '`' | sort -u > "$work/named"
sed '/^## Not yet/,$d' "$page" | grep '^| ' | grep -v '^| PyTorch | here |' > "$work/rows"
sed -E 's/^\| //; s/ \| .*//' "$work/rows" | sort > "$work/keys"

wrong=0
missing=$(comm -23 "$work/named" "$work/tests")
if [ -n "$missing" ]; then
  echo "$page names tests that do not exist:"; echo "$missing"; wrong=1
fi
if grep -vE '\| `[^`|]+`(, `[^`|]+`)* \|$' "$work/rows"; then
  echo "$page: the rows above name no test"; wrong=1
fi
if grep -E '\| +\|' "$page"; then
  echo "$page: the rows above have an empty cell"; wrong=1
fi
if uniq -d "$work/keys" | grep .; then
  echo "$page: the first cells above are there twice"; wrong=1
fi
[ "$wrong" -eq 0 ] && echo "$page: $(wc -l < "$work/rows") rows, $(wc -l < "$work/named") tests, all present"
exit "$wrong"

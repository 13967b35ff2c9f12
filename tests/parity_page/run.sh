#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks docs/fsdp_parity.md: every test that it names exists in the tree, every row names one (except below "Not yet"),
# no row has an empty cell, and no two begin alike. And mutations.txt: every row has a mutation there or stands under
# "none:", and the text that a mutation changes occurs once in its file, so that mutate.py can run it. Needs no build.
# Prints the faults and exits with 1.
set -eu
cd "$(dirname "$0")/../.."
page=docs/fsdp_parity.md
mutations=tests/parity_page/mutations.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# TEST(Suite, Name), TEST_F and TEST_P, as Suite.Name; a name may be on the line after its suite.
find . -name '*_test.cc' -not -path './bazel-*' -exec cat {} + | tr '\n' ' ' |
  grep -oE 'TEST(_F|_P)?\([A-Za-z0-9_]+, *[A-Za-z0-9_]+\)' |
  sed -E 's/^TEST(_F|_P)?\(//; s/, */./; s/\)$//' | sort -u > "$work/tests"

grep -oE '`[A-Za-z0-9_]+Test\.[A-Za-z0-9_]+`' "$page" | tr -d '`' | sort -u > "$work/named"
sed '/^## Not yet/,$d' "$page" | grep '^| ' | grep -v '^| PyTorch | here |' > "$work/rows"
sed -E 's/^\| //; s/ \| .*//' "$work/rows" | sort > "$work/keys"

# Blocks of mutations.txt, checked one by one: "F file", "B line" of the text before, and "R row".
check_mutations() {
  grep -v '^#' "$mutations" | awk -v rows="$work/mutated" '
    function occurrences(file, text,   all, line, n, at) {
      while ((getline line < file) > 0) all = all line "\n"
      close(file)
      for (n = 0; (at = index(all, text)) > 0; ++n) all = substr(all, at + 1)
      return n
    }
    function finish() {
      if (file != "" && file !~ /^none:/) {
        n = changed ? occurrences(file, before) : 0
        if (!changed) {
          print "mutations.txt: " file " has no line of text before, \"- ...\""; wrong = 1
        } else if (n != 1) {
          print file ": this occurs " n " times, not once:\n  " before; wrong = 1
        }
      }
      file = before = ""; changed = 0
    }
    /^$/ { finish(); next }
    /^- / { before = before (before == "" ? "" : "\n") substr($0, 3); changed = 1; next }
    /^\+/ { next }
    /^  / { print substr($0, 3) > rows; next }
    { file = $0 }
    END { finish(); exit wrong }'
}

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
check_mutations || wrong=1
sort "$work/mutated" > "$work/mutated_sorted"
if comm -3 "$work/keys" "$work/mutated_sorted" | grep .; then
  echo "$mutations: the rows above are missing, or, further right, are not rows of $page or are there twice"; wrong=1
fi
[ "$wrong" -eq 0 ] && echo "$page: $(wc -l < "$work/rows") rows, $(wc -l < "$work/named") tests, all present;" \
  "$(grep -c '^- ' "$mutations") lines to mutate"
exit "$wrong"

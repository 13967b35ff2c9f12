#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the source behind rows of docs/fsdp_parity.md, one row at a time, and shows whether the row's tests notice.

  tests/parity_page/mutate.py --seed=1 --rows=40             40 rows drawn at random
  tests/parity_page/mutate.py --row="apply" --row="module"   these rows

Each change is made to a copy of the last commit (a git worktree, kept in --scratch for the next run). The tests of all
rows are built and run there once without a change. Then each row's tests are built and run with its change, and a line
is printed: "noticed" if one of them fails with the change alone, "NOT noticed" if all pass, "does not compile" if
nothing ran, "fails unchanged" if they fail without it. A row takes about half a minute on two cores. Tests whose programs
a GPU would run use the emulator. The last line counts. Exit status 1: a row was not noticed.
"""

import argparse
import hashlib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEST = re.compile(r"\bTEST(?:_F|_P)?\((\w+),\s*(\w+)\)")


class Row:
    def __init__(self, line):
        cells = line.strip().strip("|").split(" | ")
        self.key = cells[0].strip()
        self.tests = re.findall(r"`(\w+\.\w+)`", cells[2])


class Mutation:
    def __init__(self, file, before, after):
        self.file, self.before, self.after = file, before, after

    def apply(self, tree):
        path = tree / self.file
        source = path.read_text()
        if source.count(self.before) != 1:
            raise ValueError(f"{self.file}: {self.before!r} occurs {source.count(self.before)} times, not once")
        path.write_text(source.replace(self.before, self.after))

    def __str__(self):
        """The line that is changed, short enough for a table."""
        pairs = zip(self.before.split("\n"), self.after.split("\n") + [""] * 9)
        line = next((b for b, a in pairs if b != a), self.before.split("\n")[0]).strip()
        line = line if len(line) <= 60 else line[:57] + "..."
        return f"{self.file}: `{line}`".replace("|", "\\|")


def read_page(tree):
    """The rows above "Not yet", by their first cell."""
    page = (tree / "docs/fsdp_parity.md").read_text().split("\n## Not yet")[0]
    lines = [line for line in page.split("\n") if line.startswith("| ") and not line.startswith("| PyTorch | here |")]
    return {row.key: row for row in map(Row, lines)}


def read_mutations(tree):
    """By the first cell of the row; rows without code are left out."""
    text = "".join(line for line in open(tree / "tests/parity_page/mutations.txt") if not line.startswith("#"))
    mutations = {}
    for block in text.strip().split("\n\n"):
        file, *lines = block.split("\n")
        if file.startswith("none:"):
            continue
        before = "\n".join(line[2:] for line in lines if line.startswith("-"))
        after = "\n".join(line[2:] for line in lines if line.startswith("+"))
        mutations.update({line[2:]: Mutation(file, before, after) for line in lines if line.startswith("  ")})
    return mutations


def targets_of(tree, tests):
    """The Bazel targets that hold `tests`."""
    targets = set()
    for path in tree.glob("**/*_test.cc"):
        if not {f"{suite}.{name}" for suite, name in TEST.findall(path.read_text())} & set(tests):
            continue
        build = (path.parent / "BUILD.bazel").read_text()
        for rule, body in re.findall(r"^(cc_test|cuda_test)\((.*?)^\)", build, re.M | re.S):
            name = re.search(r'name = "(\w+)"', body).group(1)
            if f'"{path.name}"' not in body:
                continue
            if rule == "cuda_test":
                name = name[: -len("_test")] + "_emulated_test"
            targets.add(f"//{path.parent.relative_to(tree)}:{name}")
            break  # a file may be in two: on the host first
    return sorted(targets)


def bazel_test(tree, bazel, targets, tests, changed=None):
    """The output of the run of `tests`, all of which are run whichever fail; `changed`: a file that may have warnings."""
    filters = ":".join(f"{test}:*/{test}/*" for test in tests)
    command = [*bazel, "test", *targets, f"--test_filter={filters}", "--test_output=all", "--keep_going",
               "--test_timeout=180", "--test_sharding_strategy=disabled", "--nocache_test_results"]
    if changed is not None:
        command.append(f"--per_file_copt={changed}@-Wno-error")
    output = subprocess.run(command, cwd=tree, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    (tree.parent / "last.log").write_text(output)
    return output


def failures(output):
    """The tests that failed, without the parameters of their instances."""
    return {test.split("/")[1] if test.count("/") == 2 else test.split("/")[0]
            for test in re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", output, re.M)}


def broken_targets(output):
    """The targets that were not built, or whose program died or ran out of time without a test that failed."""
    return set(re.findall(r"^(//\S+) +(?:FAILED TO BUILD|NO STATUS|FAILED in |TIMEOUT in )", output, re.M))


def verdict(output):
    """"noticed", "NOT noticed" or "does not compile", and the tests that failed."""
    failed = failures(output)
    if failed:
        return "noticed", ", ".join(f"`{test}`" for test in sorted(failed))
    if re.search(r"^//\S+ +(FAILED|TIMEOUT) in ", output, re.M):
        return "noticed", "the program died or ran out of time"
    if re.search(r"^\[  PASSED  \] [1-9]", output, re.M) and not re.search(r"FAILED TO BUILD|NO STATUS", output):
        return "NOT noticed", ""
    return "does not compile", ""


class Unchanged:
    """What the tests of all rows do without a change: a test that fails anyway notices nothing."""

    def __init__(self, tree, bazel, rows):
        tests = sorted({test for row in rows for test in row.tests})
        output = bazel_test(tree, bazel, targets_of(tree, tests), tests)
        self.failed, self.passed = failures(output), set(re.findall(r"^\[       OK \] ([\w./]+)", output, re.M))
        self.broken = broken_targets(output)

    def verdict(self, tests, targets):
        """None if all of `tests` pass, else as `verdict`."""
        failed = self.failed & set(tests)
        if failed:
            return "fails unchanged", ", ".join(f"`{test}`" for test in sorted(failed))
        if self.broken & set(targets) and not self.failed:
            return "does not compile", "even unchanged"
        if not any(test in name.split("/") for test in tests for name in self.passed):
            return "does not compile", "even unchanged: no test of it ran"
        return None


def try_row(tree, bazel, row, mutation, unchanged):
    targets = targets_of(tree, row.tests)
    before = unchanged.verdict(row.tests, targets)
    if before is not None:
        return before
    mutation.apply(tree)
    try:
        return verdict(bazel_test(tree, bazel, targets, row.tests, mutation.file))
    finally:
        subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=tree, check=True)


def draw(mutations, seed, count):
    """`count` rows; a row that is added to the page changes the draw of a seed by one at most."""
    return sorted(mutations, key=lambda key: hashlib.sha256(f"{seed} {key}".encode()).digest())[:count]


def scratch_tree(scratch):
    """A worktree of the last commit, in which whatever is there is overwritten: only in one that was made here."""
    tree, marker = scratch / "tree", scratch / "made_by_mutate.py"
    if not tree.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), "HEAD"], cwd=ROOT, check=True)
        marker.touch()
    if not marker.exists():
        sys.exit(f"mutate.py: {tree} is there but was not made by this program; choose another --scratch")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    subprocess.run(["git", "checkout", "--quiet", "--force", "--detach", head.stdout.strip()], cwd=tree, check=True)
    return tree


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--rows", type=int, default=40, help="how many rows to draw")
    parser.add_argument("--row", action="append", help="a row by its first cell, instead of a draw; repeatable")
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path("/tmp/fsdp_mutations"))
    parser.add_argument("--bazel", default="./bazelw", help="the command, with its own options before `test`")
    arguments = parser.parse_args()

    arguments.scratch.mkdir(parents=True, exist_ok=True)
    tree = scratch_tree(arguments.scratch)
    rows, mutations = read_page(tree), read_mutations(tree)
    drawn = arguments.row or draw(mutations, arguments.seed, arguments.rows)
    print(f"seed {arguments.seed}: {len(drawn)} of {len(mutations)} rows\n")
    print("| row | changed | result | test that fails |\n|---|---|---|---|", flush=True)
    unchanged = Unchanged(tree, arguments.bazel.split(), [rows[key] for key in drawn])
    results = []
    for key in drawn:
        result, failed = try_row(tree, arguments.bazel.split(), rows[key], mutations[key], unchanged)
        results.append(result)
        print(f"| {key} | {mutations[key]} | {result} | {failed} |", flush=True)
    noticed = results.count("noticed")
    print(f"\n{noticed} of {len(results)} noticed, {results.count('NOT noticed')} not noticed, "
          f"{results.count('does not compile')} did not compile, {results.count('fails unchanged')} fail unchanged")
    return 0 if noticed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

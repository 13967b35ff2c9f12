#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests and benchmarks of an unpacked //tools:gpu_bundle on a machine with a GPU, in calls of a few minutes:

  python3 -m tarfile -e gpu_bundle.tar.xz bundle && cd bundle
  ./gpu_check.py --part=all --budget=540 --out=$OUT      everything below, in this order
  ./gpu_check.py --part=ceilings,changed,kernels         some of it

  ceilings     a copy of 4 GB and a product of 8192^3 by PyTorch; the head's products at three row strides, of both
  changed      the gtests of kernels and steps
  losses       twenty steps of GPT-2 124M in each configuration that is timed below, against the CPU's losses
  sanitizer    compute-sanitizer's memcheck and racecheck on the small cases of attention
  kernels      every kernel, of this project and of PyTorch
  train        training steps of both, the rows that goals need first
  again        ours and PyTorch's best once more, for the spread
  checkpoints  staging to pinned memory, and loads with 4, 8 and 16 threads

Not in "all": tests (all gtests, and ranks that share the GPU against ranks on the CPU). "benchmarks" is kernels and
checkpoints, "peers" is train.

Each program has its own time limit and each part a share of --budget; time left by a part goes to the next. A failure,
a hang or a part that is not reached stops nothing else and is named. --out gets report.json after every program; the
output ends with tables of at most 12,000 characters, the ratios and their goals last. The exit status is 1 if something
failed, else 3 if something was skipped or not reached. A missed goal is not a failure.

--device=cpu --tiny runs all of it on a machine without a GPU, on programs of the emulator; its numbers are meaningless.
Standard library only, except PyTorch's side, which is skipped without PyTorch.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import gpu_benchmark
import gpu_goals
import gpu_tests
from gpu_programs import HERE, Failed, has_gpu, has_torch, machine, run

# Each with its share of the budget: seconds of 540.
PARTS = {
    "ceilings": (30, gpu_benchmark.ceilings),
    "changed": (75, lambda session: gpu_tests.gtests(session, gpu_tests.STEP_TESTS)),
    "losses": (40, lambda session: session.loss_check.pieces()),
    "sanitizer": (30, gpu_tests.sanitizer),
    "kernels": (85, gpu_benchmark.kernels),
    "train": (220, gpu_benchmark.training),
    "again": (30, gpu_benchmark.again),
    "checkpoints": (25, gpu_benchmark.checkpoints),
    "tests": (540, lambda session: [*gpu_tests.gtests(session), *gpu_tests.shared_gpu(session)]),
}
ALL = [part for part in PARTS if part != "tests"]
SHORTHANDS = {"all": ALL, "benchmarks": ["kernels", "checkpoints"], "peers": ["train", "again"]}
TIMED = {"ceilings", "kernels", "train", "again", "checkpoints"}
RESERVE = 4  # seconds for the tables
LARGEST_OUTPUT = 11500


class Session:
    """State shared by the pieces."""

    def __init__(self, args, parts, scratch):
        self.device, self.tiny, self.scratch, self.out = args.device, args.tiny, scratch, args.out
        self.gpu = args.device == "cuda" and has_gpu()
        self.torch = has_torch()
        self.results = dict(training={}, kernels={}, copies=[])
        self._help = None
        self.loss_check = gpu_tests.LossCheck(self) if "losses" in parts and self.can_run() else None
        self.compilers = None

    def can_run(self):
        return self.gpu or self.device == "cpu"

    def has_flag(self, flag):
        """Whether this train_gpt, which may be an older one, has the flag."""
        if self._help is None:
            status, _, output = run([HERE / "bin/train_gpt", "--help"], 20, self.scratch)
            self._help = output if status == 0 else []
        return any(flag in line for line in self._help)

    def attentions(self):
        """(name, flags, environment) of kernels of attention other than the default, if this train_gpt can choose."""
        return [("own attention", ["--attention=online"], {"FSDP_CUDNN": "0"}),
                ("eager attention", ["--attention=eager"], {})] if self.has_flag("--attention") else []

    def loss_chunks(self):
        """The same of losses in chunks of rows."""
        return [("loss chunks", ["--loss_chunks=8"], {})] if self.has_flag("--loss_chunks") else []

    def begin(self, part, later):
        """PyTorch's compilers run during the parts that are not timed."""
        timed = part in TIMED
        if self.compilers and timed:
            self.compilers.stop()
            self.compilers = None
        elif not self.compilers and not timed and self.gpu and self.torch and "train" in later:
            self.compilers = gpu_benchmark.warm_compilers(self)

    def end(self):
        for background in (self.compilers, self.loss_check and self.loss_check.reference):
            if background:
                background.stop()


def verdict_of(row):
    if row["status"] == "not reached":
        return "not reached"
    if row["status"] != 0:
        return "TIMED OUT" if row["status"] == 124 else f"FAILED ({row['status']})"
    return "skipped" if row.get("skipped") and not row.get("passed") else "ok"


def detail_of(row):
    details = []
    if "passed" in row:
        details.append(f"{row['passed']} passed, {row['skipped']} skipped, {row['failed']} failed")
    if row.get("difference") is not None:
        details.append(f"losses within {row['difference']:.1e} of the CPU's")
    if row.get("reason"):
        details.append(row["reason"][:160])
    return "; ".join(details)


def row_of_error(name, error):
    return gpu_tests.row_of(name, 1, 0, [f"{type(error).__name__}: {error}"])


def pieces_of(session, part):
    """The pieces of a part; if they cannot be made, one that fails."""
    try:
        return PARTS[part][1](session)
    except Exception as error:  # of any kind: the other parts still run
        row = row_of_error(part, error)
        return [(part, 0, lambda timeout: row)]


def work_through(session, part, pieces, deadline, report, began):
    for name, wants, work in pieces:
        left = deadline - time.monotonic()
        if left < wants:
            row = dict(status="not reached", seconds=0, reason=f"wants {wants} s, {max(left, 0):.0f} s are left")
        else:
            started = time.monotonic()
            try:
                row = work(left)
            except Failed as failure:
                row = gpu_tests.row_of(name, 1, 0, str(failure).splitlines())
            except Exception as error:  # of any kind: the other rows still count
                row = row_of_error(name, error)
            row["seconds"] = round(time.monotonic() - started, 1)
        row |= dict(name=name, part=part)
        report["rows"].append(row)
        print(f"{time.monotonic() - began:5.0f} s  {name}: {verdict_of(row)}, {row['seconds']} s; {detail_of(row)}",
              flush=True)
        for line in row.get("output", [])[-6:] if row["status"] not in (0, "not reached") else []:
            print(f"         {line[:200]}", flush=True)
        write(session, report)


def write(session, report):
    (session.out / "report.json").write_text(json.dumps({**report, **session.results}, indent=1) + "\n")


def section(title, lines_of):
    """An empty line, the title and the lines, if there are lines; an error instead of lines that cannot be made."""
    try:
        lines = lines_of()
    except Exception as error:  # of any kind: the other sections still count
        lines = [f"{type(error).__name__}: {error}"]
    return ["", title, *lines] if lines else []


def tables(session, report):
    problems = [f"{verdict_of(row)}: {row['name']}; {detail_of(row)}" for row in report["rows"]
                if verdict_of(row) not in ("ok", "skipped")]
    gpu = report["machine"]["gpu"]
    return [str(report["machine"]),
            *section("Kernels: microseconds; of a copy, or TFLOP/s", lambda: gpu_goals.kernel_lines(session.results)),
            *section("Training", lambda: gpu_goals.training_lines(session.results)),
            *section("Problems", lambda: problems),
            *section("Goals", lambda: gpu_goals.goal_lines(session.results, gpu))]


def parts_of(text, parser):
    parts = []
    for word in text.split(","):
        for part in SHORTHANDS.get(word, [word]):
            if part not in PARTS:
                parser.error(f"--part={text}: no part {part}; there are {', '.join([*PARTS, *SHORTHANDS])}")
            parts.append(part)
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="all", help="one or more, with commas between")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path.cwd())
    parser.add_argument("--budget", type=float, default=540, help="seconds for all parts together")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()
    parts = parts_of(args.part, parser)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        session = Session(args, parts, pathlib.Path(scratch))
        report = dict(parts=parts, budget=args.budget, machine=machine(), rows=[])
        print(report["machine"], flush=True)
        shares, spent = sum(PARTS[part][0] for part in parts), 0
        try:
            for index, part in enumerate(parts if session.can_run() else []):
                session.begin(part, parts[index:])
                spent += PARTS[part][0]
                deadline = began + (args.budget - RESERVE) * spent / shares
                work_through(session, part, pieces_of(session, part), deadline, report, began)
        finally:
            session.end()
        write(session, report)
        print("\n" + "\n".join(tables(session, report))[-LARGEST_OUTPUT:], flush=True)
    if not session.can_run():
        print("\nSKIPPED: no GPU on this machine (nvidia-smi finds none)")
    verdicts = [verdict_of(row) for row in report["rows"]]
    if any(verdict.startswith(("FAILED", "TIMED")) for verdict in verdicts):
        return 1
    return 3 if not verdicts or any(verdict in ("skipped", "not reached") for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())

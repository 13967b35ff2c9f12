#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every GPU test and benchmark from an unpacked //tools:gpu_bundle, on a machine with a GPU, in a few calls:

  tar -xf gpu_bundle.tar -C bundle && cd bundle
  ./gpu_check.py --part=tests         the gpu tests, and ranks that share the GPU against ranks on the CPU
  ./gpu_check.py --part=benchmarks    the kernels' benchmarks
  ./gpu_check.py --part=peers         gpu_benchmark.py: beside PyTorch

Each writes report-PART.json and report-PART.md below --out (default: here), also when something failed, and exits with 1
then. Standard library only; the libraries of CUDA and NCCL are those of the toolkit, or of the installed PyTorch.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


def environment():
    """With the bundle's libraries, and those that pip brings with PyTorch, in the loader's path."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    folders = [HERE / "lib", *sorted(site.glob("nvidia/*/lib")), pathlib.Path("/usr/local/cuda/lib64")]
    paths = [str(folder) for folder in folders if folder.is_dir()]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths + [os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")}


def run(command, timeout, scratch):
    """(exit status, seconds, last lines); 124 after `timeout`."""
    began = time.monotonic()
    try:
        done = subprocess.run(command, env=environment(), cwd=scratch, timeout=timeout, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        status = 124
    return status, time.monotonic() - began, output.splitlines()[-40:]


def gtest_row(program, timeout, scratch):
    result = scratch / f"{program.name}.json"
    status, seconds, lines = run([program, f"--gtest_output=json:{result}"], timeout, scratch)
    row = dict(name=program.name, status=status, seconds=round(seconds, 1), passed=0, skipped=0, failed=0)
    if result.exists():
        for suite in json.loads(result.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                failed, skipped = "failures" in test, test["result"] == "SKIPPED"
                row["failed" if failed else "skipped" if skipped else "passed"] += 1
    if status != 0:
        row["output"] = lines
    return row


def train_row(name, flags, timeout, scratch):
    """A short run of train_gpt and its losses."""
    metrics = scratch / f"{name}.jsonl"
    status, seconds, lines = run(
        [HERE / "bin/train_gpt", *flags, f"--metrics={metrics}", "--resume=none", "--steps=5"], timeout, scratch)
    row = dict(name=name, status=status, seconds=round(seconds, 1), losses=[])
    if metrics.exists():
        row["losses"] = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    if status != 0:
        row["output"] = lines
    return row


def check_losses(rows, reference, tolerance):
    """Marks the rows whose losses leave the reference's."""
    for row in rows:
        pairs = list(zip(row["losses"], reference["losses"]))
        row["difference"] = max((abs(a - b) / abs(b) for a, b in pairs), default=None)
        if row["status"] == 0 and (len(pairs) != 5 or row["difference"] > tolerance):
            row["status"] = 1


def tests(args, scratch):
    rows = [gtest_row(program, args.timeout, scratch) for program in sorted((HERE / "bin").glob("*_test"))]
    tokens = scratch / "tokens.u16"
    generator = random.Random(1)
    tokens.write_bytes(struct.pack("<20000H", *(generator.randrange(257) for _ in range(20000))))
    base = [f"--tokens={tokens}", "--nproc=2", "--batch_size=4"]
    reference = train_row("train_gpt on the CPU", [*base, "--device=cpu"], args.timeout, scratch)
    share = [*base, "--device=cuda", "--share_gpu"]
    runs = [
        train_row(f"train_gpt on the GPU {' '.join(flags)}".strip(), [*share, *flags], args.timeout, scratch)
        for flags in ([], ["--cpu_offload"], ["--activation_checkpointing"], ["--sharding_strategy=shard_grad_op"],
                      ["--sharding_strategy=no_shard"], ["--api=fsdp2"], ["--api=fsdp2", "--cpu_offload", "--pin_memory"])
    ]
    check_losses(runs, reference, 1e-4)  # float32 sums in another order, over five steps
    return rows + [reference] + runs


def benchmarks(args, scratch):
    rows = []
    for program in sorted((HERE / "bin").glob("*_benchmark")):
        status, seconds, lines = run([program], args.timeout, scratch)
        rows.append(dict(name=program.name, status=status, seconds=round(seconds, 1), output=lines))
    return rows


def peers(args, scratch):
    out = args.out / "gpu_benchmark.json"
    status, seconds, lines = run([sys.executable, HERE / "gpu_benchmark.py", f"--bundle={HERE}", f"--json={out}"],
                                 args.timeout * 4, scratch)
    return [dict(name="gpu_benchmark.py", status=status, seconds=round(seconds, 1), output=lines)]


def machine():
    """What a number means nothing without."""
    def first(command):
        try:
            return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
        except OSError:
            return "absent"
    return dict(gpu=first(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
                nvcc=first(["nvcc", "--version"]).splitlines()[-1:],
                torch=first([sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.nccl.version())"]),
                glibc_wanted=(HERE / "GLIBC").read_text().strip(), glibc=os.confstr("CS_GNU_LIBC_VERSION"))


def markdown(report):
    lines = [f"# GPU {report['part']}", "", *(f"* {key}: {value}" for key, value in report["machine"].items()), ""]
    lines += ["| what | | seconds | |", "|---|---|---|---|"]
    for row in report["rows"]:
        verdict = "ok" if row["status"] == 0 else f"FAILED ({row['status']})"
        if "passed" in row:
            detail = f"{row['passed']} passed, {row['skipped']} skipped, {row['failed']} failed"
        elif row.get("difference") is not None:
            detail = f"losses within {row['difference']:.1e} of the CPU's"
        else:
            detail = ""
        lines.append(f"| {row['name']} | {verdict} | {row['seconds']} | {detail} |")
    for row in report["rows"]:
        if row.get("output"):
            lines += ["", f"## {row['name']}", "", "```", *row["output"], "```"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["tests", "benchmarks", "peers"], required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path.cwd())
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each program")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        part = {"tests": tests, "benchmarks": benchmarks, "peers": peers}[args.part]
        report = dict(part=args.part, machine=machine(), rows=part(args, pathlib.Path(scratch)))
    (args.out / f"report-{args.part}.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / f"report-{args.part}.md").write_text(markdown(report))
    print(markdown(report), end="")
    return 1 if any(row["status"] != 0 for row in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every GPU test and benchmark from an unpacked //tools:gpu_bundle, on a machine with a GPU, in a few calls:

  tar -xf gpu_bundle.tar -C bundle && cd bundle
  ./gpu_check.py --part=tests         the gpu tests, and ranks that share the GPU against ranks on the CPU
  ./gpu_check.py --part=benchmarks    the kernels' benchmarks; the copies of a checkpoint against a plain copy
  ./gpu_check.py --part=peers         gpu_benchmark.py: compared with PyTorch

Each keeps report-PART.json and report-PART.md below --out (default: here) up to date after every program, so that
the results so far survive a failure, a hang, or the end of the machine's time. It exits with 1 if anything failed
and with 3 if nothing failed but something was skipped or not reached. No program takes longer than --timeout, and
all together take no longer than --budget. Standard library only; the libraries of CUDA and NCCL are those of the toolkit, or of
the installed PyTorch.
"""

import argparse
import glob
import json
import os
import pathlib
import random
import signal
import site
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TAIL = 60  # lines of output that a report keeps


def library_folders():
    """The bundle's, PyTorch's and those that pip brings with it, and the toolkit's."""
    packages = dict.fromkeys([sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()])
    pip = [folder for package in packages for folder in sorted(glob.glob(f"{package}/nvidia/*/lib"))]
    pip += [f"{package}/torch/lib" for package in packages]
    toolkit = ["/usr/local/cuda/lib64", *sorted(glob.glob("/usr/local/cuda-*/lib64"), reverse=True)]
    return [folder for folder in [str(HERE / "lib"), *pip, *toolkit] if os.path.isdir(folder)]


def environment():
    paths = [*library_folders(), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}


def run(command, timeout, scratch):
    """(exit status, seconds, output); 124 after `timeout`, when the program and all that it started are killed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:  # a pipe would wait for children that are left
        try:
            process = subprocess.Popen([str(part) for part in command], env=environment(), cwd=scratch, stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            return 127, 0.0, [str(error)]
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = 124
        try:
            os.killpg(process.pid, signal.SIGKILL)  # ranks that outlived their launcher
        except ProcessLookupError:
            pass
        process.wait()
        output.seek(0)
        return status, time.monotonic() - began, output.read().splitlines()


def row_of(name, status, seconds, output, **more):
    row = dict(name=name, status=status, seconds=round(seconds, 1), **more)
    if status != 0:
        row["output"] = output[-TAIL:]
    return row


def gtest_row(program, timeout, scratch):
    result = scratch / f"{program.name}.json"
    status, seconds, output = run([program, f"--gtest_output=json:{result}"], timeout, scratch)
    counts = dict(passed=0, skipped=0, failed=0)
    try:
        suites = json.loads(result.read_text())["testsuites"]
    except (OSError, ValueError, KeyError):
        suites = []
        if status == 0:
            status = 1  # it ran no test
    for suite in suites:
        for test in suite["testsuite"]:
            failed, skipped = "failures" in test, test.get("result") == "SKIPPED"
            counts["failed" if failed else "skipped" if skipped else "passed"] += 1
    row = row_of(program.name, status, seconds, output, **counts)
    if counts["skipped"]:
        # "file:line: Skipped", then why.
        why = [b for a, b in zip(output, output[1:]) if a.endswith(": Skipped")]
        row["reason"] = "skipped: " + "; ".join(dict.fromkeys(why)) if why else "no reason given"
    return row


def train_row(name, flags, timeout, scratch):
    """A short run of train_gpt and its losses."""
    metrics = scratch / f"{len(list(scratch.iterdir()))}.jsonl"
    status, seconds, output = run(
        [HERE / "bin/train_gpt", *flags, f"--metrics={metrics}", "--resume=none", "--steps=5"], timeout, scratch)
    losses = []
    if metrics.exists():
        losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if line.endswith("}")]
    return row_of(name, status, seconds, output, losses=losses)


# Each rank passes for a host of its own.
HOST_PER_RANK = ["sh", "-c", 'FSDP_HOSTID=host-$RANK exec "$@"', "sh"]


def hosts_row(name, flags, timeout, scratch):
    """train_gpt on two ranks that pass for two hosts: NCCL, and the control group over UCX, between them."""
    metrics = scratch / "hosts.jsonl"
    status, seconds, output = run(
        [HERE / "bin/launch_static", "--nproc=2", "--", *HOST_PER_RANK, HERE / "bin/train_gpt", *flags,
         f"--metrics={metrics}", "--resume=none", "--steps=5"], timeout, scratch)
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()] if metrics.exists() else []
    if status == 0 and not any("2 ranks on 2 hosts" in line for line in output):
        status, output = 1, ["the ranks did not pass for two hosts", *output]
    return row_of(name, status, seconds, output, losses=losses)


def check_losses(row, reference, tolerance):
    """Fails a run whose losses differ too much from the reference's."""
    pairs = list(zip(row["losses"], reference["losses"]))
    row["difference"] = max((abs(a - b) / abs(b) for a, b in pairs), default=None)
    if row["status"] == 0 and (len(pairs) != 5 or row["difference"] > tolerance):
        row["status"] = 1
        row["output"] = [f"losses {row['losses']}, on the CPU {reference['losses']}, tolerance {tolerance}"]
    return row


def has_gpu():
    status, _, output = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], 30, HERE)
    return status == 0 and any(line.strip() for line in output)


# Each part is a list of (name, function of the seconds that are left that returns a row).

def tests(args, scratch):
    work = [(program.name, lambda timeout, program=program: gtest_row(program, timeout, scratch))
            for program in sorted((HERE / "bin").glob("*_test"))]
    tokens = scratch / "tokens.u16"
    generator = random.Random(1)
    tokens.write_bytes(struct.pack("<20000H", *(generator.randrange(257) for _ in range(20000))))
    common = [f"--tokens={tokens}", "--batch_size=4"]
    base = [*common, "--nproc=2"]
    reference = {}

    def on_cpu(timeout):
        reference.update(train_row("train_gpt on the CPU", [*base, "--device=cpu"], timeout, scratch))
        return dict(reference)

    def on_gpu(name, flags, tolerance, timeout):
        if not args.gpu:
            return dict(name=name, status=0, seconds=0, skipped=1, reason="no GPU")
        row = train_row(name, [*base, "--device=cuda", "--share_gpu", *flags], timeout, scratch)
        return check_losses(row, reference, tolerance)

    def on_hosts(name, flags, timeout):
        if not args.gpu:
            return dict(name=name, status=0, seconds=0, skipped=1, reason="no GPU")
        row = hosts_row(name, [*common, "--device=cuda", "--share_gpu", *flags], timeout, scratch)
        return check_losses(row, reference, 1e-4)

    work.append(("train_gpt on the CPU", on_cpu))
    # Differences come from float32 sums in another order over five steps, and in bfloat16 from activations rounded to 2^-9.
    runs = [([], 1e-4), (["--cpu_offload"], 1e-4), (["--activation_checkpointing"], 1e-4),
            (["--sharding_strategy=shard_grad_op"], 1e-4), (["--sharding_strategy=no_shard"], 1e-4),
            (["--api=fsdp2"], 1e-4), (["--api=fsdp2", "--cpu_offload", "--pin_memory"], 1e-4),
            (["--param_dtype=bfloat16", "--reduce_dtype=float32"], 2e-2),
            (["--param_dtype=bfloat16", "--reduce_dtype=float32", "--optimizer_casts"], 2e-2),
            # Three of the five steps are replayed from a graph.
            (["--cuda_graph"], 1e-4), (["--cuda_graph", "--sharding_strategy=no_shard"], 1e-4),
            (["--cuda_graph", "--api=fsdp2", "--activation_checkpointing"], 1e-4),
            (["--cuda_graph", "--param_dtype=bfloat16", "--reduce_dtype=float32", "--optimizer_casts"], 2e-2)]
    for flags, tolerance in runs:
        name = f"train_gpt on the GPU {' '.join(flags)}".strip()
        work.append((name, lambda timeout, name=name, flags=flags, tolerance=tolerance:
                     on_gpu(name, flags, tolerance, timeout)))
    for flags in ([], ["--cuda_graph", "--api=fsdp2"]):
        name = f"train_gpt on the GPU, two hosts {' '.join(flags)}".strip()
        work.append((name, lambda timeout, name=name, flags=flags: on_hosts(name, flags, timeout)))
    return work


def benchmarks(args, scratch):
    def measure(program, timeout):
        if not args.gpu:
            return dict(name=program.name, status=0, seconds=0, skipped=1, reason="no GPU")
        status, seconds, output = run([program], timeout, scratch)
        results = [json.loads(line) for line in output if line.startswith("{") and line.endswith("}")]
        return dict(name=program.name, status=status, seconds=round(seconds, 1), output=output, results=results)

    return [(program.name, lambda timeout, program=program: measure(program, timeout))
            for program in sorted((HERE / "bin").glob("*_benchmark"))]


def peers(args, scratch):
    def measure(timeout):
        if not args.gpu:
            return dict(name="gpu_benchmark.py", status=0, seconds=0, skipped=1, reason="no GPU")
        command = [sys.executable, HERE / "gpu_benchmark.py", f"--bundle={HERE}", f"--budget={timeout - 15:.0f}",
                   f"--json={args.out / 'gpu_benchmark.json'}", f"--markdown={args.out / 'gpu_benchmark.md'}"]
        status, seconds, output = run(command, timeout, scratch)
        return dict(name="gpu_benchmark.py", status=status, seconds=round(seconds, 1), output=output)

    return [("gpu_benchmark.py", measure)]


def machine():
    """The machine, driver and libraries: numbers mean nothing without them."""
    def lines(command):
        status, _, output = run(command, 60, HERE)
        return output if status == 0 else ["absent"]

    def torch(expression):
        return lines([sys.executable, "-c", f"import torch; print({expression})"])[-1]

    glibc = HERE / "GLIBC"
    return dict(gpu=lines(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])[0],
                nvcc=lines(["nvcc", "--version"])[-1], torch=torch("torch.__version__"),
                torch_nccl=torch("torch.cuda.nccl.version()"), libraries=library_folders(),
                glibc_wanted=glibc.read_text().strip() if glibc.exists() else "unknown",
                glibc=os.confstr("CS_GNU_LIBC_VERSION"))


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
        details.append(row["reason"][:200])
    return "; ".join(details).replace("|", "/")


def markdown(report):
    lines = [f"# GPU {report['part']}", "", *(f"* {key}: {value}" for key, value in report["machine"].items()), ""]
    lines += ["| what | | seconds | |", "|---|---|---|---|"]
    lines += [f"| {row['name']} | {verdict_of(row)} | {row['seconds']} | {detail_of(row)} |" for row in report["rows"]]
    for row in report["rows"]:
        if row.get("output"):
            lines += ["", f"## {row['name']}", "", "```", *row["output"], "```"]
    return "\n".join(lines) + "\n"


def write(report, out):
    for name, text in ((f"report-{report['part']}.json", json.dumps(report, indent=1) + "\n"),
                       (f"report-{report['part']}.md", markdown(report))):
        (out / f".{name}").write_text(text)
        os.replace(out / f".{name}", out / name)


def work_through(work, report, args):
    """Runs each piece of work within the rest of the budget, and writes the report after each."""
    began = time.monotonic()
    report["rows"] = [dict(name=name, status="not reached", seconds=0) for name, _ in work]
    write(report, args.out)
    for i, (name, piece) in enumerate(work):
        left = args.budget - (time.monotonic() - began)
        if left < 5:
            break
        try:
            row = piece(min(args.timeout, left))
        except Exception as error:  # a bug of this script must not stop the others
            row = dict(name=name, status=1, seconds=0, output=[f"{type(error).__name__}: {error}"])
        report["rows"][i] = row
        print(f"{verdict_of(row):12} {row['seconds']:7} s  {name}  {detail_of(row)}", flush=True)
        write(report, args.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["tests", "benchmarks", "peers"], required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path.cwd())
    parser.add_argument("--timeout", type=float, help="seconds for each program; default: 120, of peers the budget")
    parser.add_argument("--budget", type=float, default=540, help="seconds for all of them")
    args = parser.parse_args()
    args.timeout = args.timeout or (args.budget if args.part == "peers" else 120)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    args.gpu = has_gpu()
    report = dict(part=args.part, machine=machine(), rows=[])
    with tempfile.TemporaryDirectory() as scratch:
        part = {"tests": tests, "benchmarks": benchmarks, "peers": peers}[args.part]
        work_through(part(args, pathlib.Path(scratch)), report, args)
    print("\n" + markdown(report), end="")
    verdicts = [verdict_of(row) for row in report["rows"]]
    if any(verdict.startswith(("FAILED", "TIMED")) for verdict in verdicts):
        return 1
    if not args.gpu:
        print("\nSKIPPED: no GPU on this machine (nvidia-smi finds none)")
    return 3 if any(verdict in ("skipped", "not reached") for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())

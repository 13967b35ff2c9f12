# SPDX-License-Identifier: Apache-2.0
"""The correctness checks of gpu_check.py: gtests, ranks on one GPU against ranks on the CPU, twenty steps of GPT-2 124M
against the CPU's, and compute-sanitizer. Each piece is (name, seconds that it needs, function of a time limit that
returns a row)."""

import json
import random
import re
import struct
import time

from gpu_programs import HERE, TAIL, Background, find_toolkit_program, run

# The tests of the kernels and of the paths of a step, ordered by how much a failure would invalidate the numbers.
STEP_TESTS = ["cuda_attention_test", "cuda_fused_attention_gpu_test", "cuda_layer_ops_test", "cuda_head_test",
              "cuda_optimizer_extras_test", "graph_training_test", "step_graph_test", "device_grad_scaler_test",
              "gpu_training_test", "ops_test", "cuda_graph_test", "stream_memory_test", "cuda_device_test",
              "cuda_optimizer_test"]
LOSS_STEPS = 20


def row_of(name, status, seconds, output=(), **more):
    row = dict(name=name, status=status, seconds=round(seconds, 1), **more)
    if status != 0:
        row["output"] = list(output)[-TAIL:]
    return row


def skipped(name, why):
    return dict(name=name, status=0, seconds=0, skipped=1, reason=why)


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
            failed, skips = "failures" in test, test.get("result") == "SKIPPED"
            counts["failed" if failed else "skipped" if skips else "passed"] += 1
    row = row_of(program.name, status, seconds, output, **counts)
    if counts["skipped"]:
        # "file:line: Skipped", then the reason.
        why = [b for a, b in zip(output, output[1:]) if a.endswith(": Skipped")]
        row["reason"] = "skipped: " + "; ".join(dict.fromkeys(why)) if why else "no reason given"
    return row


def gtests(session, names=None):
    """All gtests of the bundle, or those in `names`. One that hangs leaves half of the time to the others."""
    programs = {program.name: program for program in sorted((HERE / "bin").glob("*_test"))}

    def work(name, timeout):
        if name not in programs:
            return skipped(name, "not in the bundle")
        return gtest_row(programs[name], max(timeout / 2, min(timeout, 20)), session.scratch)

    return [(name, 3, lambda timeout, name=name: work(name, timeout)) for name in names or programs]


def train_command(session, flags):
    return [HERE / "bin/train_gpt", *flags, "--resume=none"]


def losses_of(metrics):
    if not metrics.exists():
        return []
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if line.endswith("}")]


def train_row(session, name, flags, timeout, wrap=(), environment=None):
    """A short run of train_gpt and its losses."""
    metrics = session.scratch / f"{re.sub('[^a-z0-9]+', '_', name)}.jsonl"
    metrics.unlink(missing_ok=True)
    status, seconds, output = run([*wrap, *train_command(session, flags), f"--metrics={metrics}"], timeout,
                                  session.scratch, environment)
    return row_of(name, status, seconds, output, losses=losses_of(metrics)), output


def compare_losses(row, reference, tolerance, steps):
    """Fails a run whose losses differ too much from the reference's."""
    pairs = list(zip(row["losses"], reference))
    row["difference"] = max((abs(a - b) / abs(b) for a, b in pairs), default=None)
    if row["status"] == 0 and (len(pairs) != steps or not row["difference"] <= tolerance):
        row["status"] = 1
        row["output"] = [f"losses {row['losses']}, on the CPU {reference}, tolerance {tolerance}"]
    return row


# Ranks that share the GPU.

# Each rank counts as a separate host.
HOST_PER_RANK = ["sh", "-c", 'FSDP_HOSTID=host-$RANK exec "$@"', "sh"]

# Differences come from float32 sums in another order over five steps, and in bfloat16 from activations rounded to 2^-9.
MIXED = ["--param_dtype=bfloat16", "--reduce_dtype=float32"]
SHARED_RUNS = [([], 1e-4), (["--cpu_offload"], 1e-4), (["--activation_checkpointing"], 1e-4),
               (["--sharding_strategy=shard_grad_op"], 1e-4), (["--sharding_strategy=no_shard"], 1e-4),
               (["--api=fsdp2"], 1e-4), (["--api=fsdp2", "--cpu_offload", "--pin_memory"], 1e-4),
               (MIXED, 2e-2), ([*MIXED, "--optimizer_casts=false"], 2e-2),
               # Three of the five steps are replayed from a graph.
               (["--cuda_graph"], 1e-4), (["--cuda_graph", "--sharding_strategy=no_shard"], 1e-4),
               (["--cuda_graph", "--api=fsdp2", "--activation_checkpointing"], 1e-4),
               (["--cuda_graph", *MIXED], 2e-2)]


def shared_gpu(session):
    """Two ranks on one GPU, and two that count as two hosts, against two on the CPU."""
    tokens = session.scratch / "bytes.u16"
    generator = random.Random(1)
    tokens.write_bytes(struct.pack("<20000H", *(generator.randrange(257) for _ in range(20000))))
    common = [f"--tokens={tokens}", "--batch_size=4", "--steps=5"]
    reference = []

    def on_cpu(timeout):
        row, _ = train_row(session, "train_gpt on the CPU", [*common, "--nproc=2", "--device=cpu"], timeout)
        reference[:] = row["losses"]
        return row

    def on_gpu(name, flags, tolerance, timeout):
        if not session.gpu:
            return skipped(name, "no GPU")
        row, _ = train_row(session, name, [*common, "--nproc=2", "--device=cuda", "--share_gpu", *flags], timeout)
        return compare_losses(row, reference, tolerance, 5)

    def on_hosts(name, flags, timeout):
        if not session.gpu:
            return skipped(name, "no GPU")
        wrap = [HERE / "bin/launch_static", "--nproc=2", "--", *HOST_PER_RANK]
        row, output = train_row(session, name, [*common, "--device=cuda", "--share_gpu", *flags], timeout, wrap)
        if row["status"] == 0 and not any("2 ranks on 2 hosts" in line for line in output):
            row |= dict(status=1, output=["the ranks did not pass for two hosts", *output])
        return compare_losses(row, reference, 1e-4, 5)

    work = [("train_gpt on the CPU", 2, on_cpu)]
    for flags, tolerance in SHARED_RUNS:
        name = f"train_gpt on the GPU {' '.join(flags)}".strip()
        work.append((name, 3, lambda timeout, name=name, flags=flags, tolerance=tolerance:
                     on_gpu(name, flags, tolerance, timeout)))
    for flags in ([], ["--cuda_graph", "--api=fsdp2"]):
        name = f"train_gpt on the GPU, two hosts {' '.join(flags)}".strip()
        work.append((name, 3, lambda timeout, name=name, flags=flags: on_hosts(name, flags, timeout)))
    return work


# Twenty steps of the model whose speed is measured.

class LossCheck:
    """The CPU's losses come from a process in the background, which begins with the first part."""

    def __init__(self, session):
        self.session = session
        tokens = session.scratch / "text.u16"
        text = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
        tokens.write_bytes(struct.pack(f"<{len(text)}H", *text))
        size = ["--config=gpt2-tiny", "--seq_len=64"] if session.tiny else ["--config=gpt2-124m", "--seq_len=1024"]
        self.flags = [*size, f"--tokens={tokens}", "--nproc=1", "--batch_size=1", f"--steps={LOSS_STEPS}", "--lr=3e-4"]
        self.metrics = session.scratch / "cpu_losses.jsonl"
        command = [*train_command(session, self.flags), "--device=cpu", f"--metrics={self.metrics}"]
        self.reference = Background([command], session.scratch, priority=0)
        self.rows = []

    def variants(self):
        """(name, flags, tolerance, environment): each configuration of a step in the benchmarks."""
        device = f"--device={self.session.device}"
        graph = ["--cuda_graph"] if self.session.device == "cuda" else []
        yield "float32", [device], 1e-4, None
        yield "bfloat16", [device, *MIXED], 2e-2, None
        yield "bfloat16, graph", [device, *MIXED, *graph], 2e-2, None
        for name, flags, environment in self.session.attentions() + self.session.loss_chunks():
            yield f"bfloat16, graph, {name}", [device, *MIXED, *graph, *flags], 2e-2, environment

    def run(self, variant, timeout):
        name, flags, tolerance, environment = variant
        row, _ = train_row(self.session, f"losses, {name}", [*self.flags, *flags], timeout, environment=environment)
        self.rows.append((row, tolerance))
        return row

    def compare(self, timeout):
        began = time.monotonic()
        done = self.reference.wait(timeout)
        reference = losses_of(self.metrics)
        self.reference.stop()
        if len(reference) < LOSS_STEPS:
            why = "no time for" if not done else "the run failed at"
            return row_of("losses against the CPU's", 1, time.monotonic() - began,
                          [f"{why} step {len(reference) + 1} of {LOSS_STEPS} on the CPU"])
        wrong = []
        for row, tolerance in self.rows:
            if row["status"] == 0 and compare_losses(row, reference, tolerance, LOSS_STEPS)["status"] != 0:
                wrong += [row["name"], *row["output"]]
        largest = max((row.get("difference") or 0 for row, _ in self.rows), default=None)
        return row_of("losses against the CPU's", 1 if wrong or not self.rows else 0, time.monotonic() - began, wrong,
                      losses=reference, difference=largest)

    def pieces(self):
        work = [(f"losses, {variant[0]}", 4, lambda timeout, variant=variant: self.run(variant, timeout))
                for variant in self.variants()]
        return [*work, ("losses against the CPU's", 1, self.compare)]


# compute-sanitizer.

def small_cases(program, scratch):
    """The attention tests of one or two tiles, which a tool that is fifty times slower can run."""
    _, _, output = run([program, "--gtest_list_tests"], 30, scratch)
    suite, names = "", []
    for line in output:
        if not line.startswith(" "):
            suite = line.split("#")[0].strip()
            continue
        case = line.split("#")[0].strip()
        size = re.search(r"EqualsFloat64/bfloat16_(\d+)", case)
        if size and int(size.group(1)) <= 128:
            names.append(suite + case)
    return names


def sanitizer(session):
    program, tool = HERE / "bin/cuda_attention_test", find_toolkit_program("compute-sanitizer")

    def check(kind, timeout):
        name = f"compute-sanitizer {kind}, attention"
        if not session.gpu or tool is None or not program.exists():
            missing = "GPU" if not session.gpu else program if tool else "compute-sanitizer"
            return skipped(name, f"no {missing}")
        cases = small_cases(program, session.scratch)
        if not cases:
            return row_of(name, 1, 0, ["no test is called EqualsFloat64/bfloat16_N with N up to 128"])
        status, seconds, output = run([tool, "--tool", kind, "--error-exitcode=9", program,
                                       f"--gtest_filter={':'.join(cases)}"], timeout, session.scratch)
        summary = [line for line in output if "SUMMARY" in line]
        return row_of(name, status, seconds, output, reason="; ".join([f"{len(cases)} cases", *summary[-1:]]))

    return [(f"compute-sanitizer {kind}, attention", 5, lambda timeout, kind=kind: check(kind, timeout))
            for kind in ("memcheck", "racecheck")]

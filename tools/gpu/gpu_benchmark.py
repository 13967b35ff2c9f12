# SPDX-License-Identifier: Apache-2.0
"""The measurements of gpu_check.py: kernels, training steps and checkpoints of this project, and PyTorch's in the same
run.

Each piece is (name, seconds that it needs, function of a time limit that returns a row); results go to session.results,
from which gpu_goals.py makes the tables.

  training   tokens per second of one GPU, the median of the steps after the first ten, and the peak of tensors' memory
  kernels    the lines of cuda_kernels_benchmark and gpu_torch_kernels.py
  copies     the lines of gpu_staging_benchmark
"""

import json
import random
import statistics
import struct
import sys

from gpu_programs import HERE, Background, Failed, json_lines, output_of
from gpu_tests import MIXED, row_of, skipped

WARMUP = 10
# (model, rows): steps, and flags of train_gpt.
TRAINING = {
    ("gpt2-124m", 8): (40, ["--config=gpt2-124m", "--seq_len=1024"]),
    ("gpt2-124m", 32): (26, ["--config=gpt2-124m", "--seq_len=1024"]),
    ("gpt2-124m", 64): (22, ["--config=gpt2-124m", "--seq_len=1024"]),
    ("llama-3.2-1b", 4): (22, ["--model=llama", "--config=llama-3.2-1b", "--seq_len=2048"]),
}
TINY_TRAINING = {
    "gpt2-124m": ["--config=gpt2-tiny", "--seq_len=16"],
    "llama-3.2-1b": ["--model=llama", "--config=llama-tiny", "--seq_len=16"],
}
OURS, GRAPH = "ours", "ours, graph"


def steps_of(session, model, rows):
    return WARMUP + 3 if session.tiny else TRAINING[model, rows][0]


def tokens_file(session):
    """Random, so that no embedding has a longer chain than in text; the tokens are in the vocabulary of both models."""
    path = session.scratch / "random.u16"
    if not path.exists():
        generator = random.Random(1)
        count = 64 * 1024 + 1
        path.write_bytes(struct.pack(f"<{count}H", *(generator.randrange(257 if session.tiny else 50257)
                                                     for _ in range(count))))
    return path


def keep_training(session, model, rows, name, run):
    if not run["tokens_per_second"]:
        raise Failed(f"no step after the first {WARMUP}")
    session.results["training"].setdefault(f"{model} {rows}", {}).setdefault(name, []).append(run)


def summary(run):
    rate = statistics.median(run["tokens_per_second"])
    return f"{rate:.0f} tokens/s, {run['peak_bytes'] / 2**30:.2f} GiB"


def train_ours(session, model, rows, name, flags, timeout, environment):
    metrics = session.scratch / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    size = TINY_TRAINING[model] if session.tiny else TRAINING[model, rows][1]
    command = [HERE / "bin/train_gpt", f"--device={session.device}", "--nproc=1", *size, *MIXED, "--lr=1e-4",
               f"--tokens={tokens_file(session)}", f"--batch_size={2 if session.tiny else rows}", "--resume=none",
               f"--steps={steps_of(session, model, rows)}", f"--metrics={metrics}", *flags]
    output_of(command, timeout, session.scratch, environment)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    run = dict(tokens_per_second=[step["tokens_per_second"] for step in steps[WARMUP:]],
               peak_bytes=max(step["peak_bytes"] for step in steps), loss=steps[-1]["loss"])
    keep_training(session, model, rows, name, run)
    return row_of("", 0, 0, reason=summary(run))


def torch_train_command(session, model, rows, kind, steps):
    command = [sys.executable, HERE / "gpu_torch_peer.py", f"--device={session.device}", f"--model={model}",
               f"--kind={kind}", f"--rows={2 if session.tiny else rows}", f"--steps={steps}",
               f"--scratch={session.scratch}"]
    return command + ["--tiny"] if session.tiny else command


def train_torch(session, model, rows, kind, timeout):
    if not session.torch:
        return skipped("", "no PyTorch")
    command = torch_train_command(session, model, rows, kind, steps_of(session, model, rows))
    run = json_lines(output_of(command, timeout, session.scratch))[-1]
    keep_training(session, model, rows, f"torch, {kind}", run)
    return row_of("", 0, 0, reason=f"{summary(run)}, first step {run['first_step_seconds']:.0f} s")


def training_piece(session, name, seconds, work):
    """`seconds`: the time for compiling and the steps; a row that cannot finish is not started, and one that takes four
    times as long hangs and is ended, which leaves time to the others."""
    if session.tiny:
        return name, 2, work
    return name, seconds, lambda timeout: work(min(timeout, 4 * seconds))


def ours(session, model, rows, name, flags, environment=None):
    seconds = {"llama-3.2-1b": 25}.get(model, 8 + rows // 8)
    return training_piece(session, f"{model}, {rows} rows: {name}", seconds, lambda timeout:
                          train_ours(session, model, rows, name, flags, timeout, environment))


def peer(session, model, rows, kind, seconds):
    return training_piece(session, f"{model}, {rows} rows: torch, {kind}", seconds, lambda timeout:
                          train_torch(session, model, rows, kind, timeout))


def graph_flags(session):
    return ["--cuda_graph"] if session.device == "cuda" else []


def training(session):
    """By priority: first the rows that goals need."""
    gpt2, llama = "gpt2-124m", "llama-3.2-1b"
    graph, eager = graph_flags(session), []
    work = [ours(session, gpt2, 8, GRAPH, graph), ours(session, gpt2, 8, OURS, eager),
            peer(session, gpt2, 8, "compiled", 35), peer(session, gpt2, 8, "whole", 40),
            ours(session, gpt2, 64, GRAPH, graph), peer(session, gpt2, 64, "whole", 45),
            ours(session, llama, 4, GRAPH, graph), peer(session, llama, 4, "compiled", 45),
            peer(session, gpt2, 8, "reduce-overhead", 45), peer(session, gpt2, 8, "padded", 35)]
    work += [ours(session, gpt2, 8, f"{GRAPH}, {name}", [*graph, *flags], environment)
             for name, flags, environment in session.attentions()]
    work += [ours(session, model, rows, f"{GRAPH}, {name}", [*graph, *flags], environment)
             for name, flags, environment in session.loss_chunks() for model, rows in ((gpt2, 8), (llama, 4))]
    work += [ours(session, gpt2, 32, GRAPH, graph), peer(session, gpt2, 32, "whole", 45),
             ours(session, gpt2, 64, OURS, eager), peer(session, gpt2, 64, "reduce-overhead", 50),
             peer(session, gpt2, 64, "compiled", 45), peer(session, gpt2, 32, "reduce-overhead", 50),
             peer(session, gpt2, 64, "padded", 45), peer(session, gpt2, 32, "compiled", 45),
             peer(session, gpt2, 32, "padded", 45), ours(session, gpt2, 32, OURS, eager)]
    return work


def again(session):
    """Second runs, for the spread: ours, and PyTorch's best by name. Its compiled code is now cached."""
    work = []
    for group, runs in sorted(session.results["training"].items()):
        model, rows = group.split()
        peers = {name: run for name, run in runs.items() if name.startswith("torch")}
        if GRAPH in runs:
            work.append(ours(session, model, int(rows), GRAPH, graph_flags(session)))
        if peers:
            best = max(peers, key=lambda name: statistics.median(peers[name][0]["tokens_per_second"]))
            work.append(peer(session, model, int(rows), best.removeprefix("torch, "), 25))
    return work


def warm_compilers(session):
    """PyTorch compiles in the background for later timings, while nothing is timed."""
    wanted = [("gpt2-124m", 8, "compiled"), ("gpt2-124m", 8, "whole"), ("gpt2-124m", 64, "whole"),
              ("llama-3.2-1b", 4, "compiled"), ("gpt2-124m", 8, "reduce-overhead")]
    return Background([torch_train_command(session, *row, steps=2) for row in wanted], session.scratch)


# Kernels.

def keep_kernels(session, who, lines):
    kernels = [line for line in lines if "kernel" in line]
    for line in kernels:
        session.results["kernels"].setdefault(f"{line['kernel']}, {line['shape']}, {line['dtype']}", {})[who] = line
    ends = [line for line in lines if "measured" in line]
    return f"{len(kernels)} kernels" + (f", no time for {ends[-1]['no_time_for']}" if ends else "")


def our_kernels(session, who, name, flags, timeout, environment=None):
    command = [HERE / "bin/cuda_kernels_benchmark", *flags, f"--seconds={max(timeout - 8, 1):.0f}"]
    command += ["--tiny", "--rounds=1"] if session.tiny else []
    lines = json_lines(output_of(command, timeout, session.scratch, environment))
    return row_of(name, 0, 0, reason=keep_kernels(session, who, lines))


def torch_kernels(session, name, sections, timeout):
    if not session.torch:
        return skipped(name, "no PyTorch")
    command = [sys.executable, HERE / "gpu_torch_kernels.py", f"--device={session.device}", f"--sections={sections}",
               f"--seconds={max(timeout - 12, 1):.0f}"]
    command += ["--tiny", "--rounds=1"] if session.tiny else []
    lines = json_lines(output_of(command, timeout, session.scratch))
    return row_of(name, 0, 0, reason=keep_kernels(session, "torch", lines))


def ceilings(session):
    """The limits of this GPU, and the head's products at three row strides."""
    return [("ceilings and head, torch", 5, lambda timeout:
             torch_kernels(session, "", "ceilings,head", timeout)),
            ("head, ours", 3, lambda timeout: our_kernels(session, "ours", "", ["--filter=head"], timeout))]


def kernels(session):
    return [("kernels, ours", 10, lambda timeout: our_kernels(session, "ours", "", [], timeout * 0.5)),
            ("kernels, torch", 15, lambda timeout:
             torch_kernels(session, "", "attention,products,memory", timeout * 0.75)),
            ("attention without cuDNN, ours", 5, lambda timeout: our_kernels(
                session, "own", "", ["--filter=attention"], timeout, {"FSDP_CUDNN": "0"}))]


# Checkpoints.

def checkpoints(session):
    def measure(timeout):
        command = [HERE / "bin/gpu_staging_benchmark", f"--scratch={session.scratch}", "--io_threads=4,8,16"]
        command += ["--mib=1"] if session.tiny else []
        lines = json_lines(output_of(command, timeout, session.scratch))
        session.results["copies"] = lines
        return row_of("", 0, 0, reason="; ".join(f"{line['copy']}: {line['of_copy']:.2f}" for line in lines))

    return [("staging and loads", 10, measure)]

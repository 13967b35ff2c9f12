# SPDX-License-Identifier: Apache-2.0
"""Death at random instants: of saves, conversions, repairs, deletions and ranks. A seed repeats the delay before a
kill, not what the program was doing then: repeat a try several times."""

import os
import shutil
import signal
import subprocess
import time

from damage import check_values
from inputs import NEWEST, read_safetensors, training
from trial import snapshot


def kill(trial, process, longest, sign=signal.SIGKILL):
    """After a random time, or the end of the process if that is earlier. Returns the exit status."""
    delay = trial.rng.random() * longest
    trial.note(f"{signal.Signals(sign).name} after {delay:.4f} s")
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.send_signal(sign)
    left = trial.ended(30)
    process.wait()
    trial.expect(not left, f"these processes outlive their launcher: {left}")
    return process.returncode


def how_long(trial, program, *arguments):
    """Seconds that a whole run takes, of which the kill hits any."""
    began = time.monotonic()
    trial.run(program, *arguments, ok=(0,))
    return time.monotonic() - began


def check_steps(trial, root):
    """Every step-* of the root verifies. Returns them."""
    steps = sorted(name for name in os.listdir(root) if name.startswith("step-")) if os.path.isdir(root) else []
    for step in steps:
        trial.run("ckpt", "verify", os.path.join(root, step), ok=(0,))
    return steps


def check_no_leftovers(trial, root):
    hidden = [name for name in os.listdir(root) if name.startswith(".")]
    trial.expect(not hidden, f"the next command leaves {hidden}")


def saves(trial):
    """A run that is killed, or asked to end: every step verifies, and the run that continues computes the same."""
    root = trial.path("out/run")
    kind = trial.rng.choice((["--async_checkpoint"], ["--state_dict_type=full"], ["--state_dict_type=local"],
                             ["--parity=1"], ["--incremental"], []))
    flags = training(trial.inputs, f"--checkpoint_dir={root}", "--checkpoint_every=1", *kind)
    trial.note(" ".join(kind))
    for _ in range(2):
        sign = trial.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        with open(trial.dir + ".log", "wb") as log:
            kill(trial, trial.start("train_gpt", *flags, output=log), 1.5, sign)
        check_steps(trial, root)
    trial.run("train_gpt", *flags, ok=(0,), mebibytes=1024)
    trial.expect(NEWEST in check_steps(trial, root), "the run that continues has not saved its last step")
    check_no_leftovers(trial, root)
    trial.run("ckpt", "diff", os.path.join(root, NEWEST), os.path.join(trial.inputs["run"], NEWEST), ok=(0,))


def one_rank(trial):
    """One rank is killed: the others end, name it, and no step is torn."""
    root = trial.path("out/run")
    flags = training(trial.inputs, f"--checkpoint_dir={root}", "--checkpoint_every=5", "--keep_last=2", steps=1000000)
    with open(trial.dir + ".log", "w+b") as log:
        process = trial.start("launch", "--nproc=2", "--", trial.programs["train_gpt"], *flags, output=log)
        ranks = wait_for_ranks(trial, process, 2)
        time.sleep(trial.rng.random() * 0.5)
        number = trial.rng.randrange(2)
        os.kill(ranks[number], signal.SIGKILL)
        left = trial.ended(10)
        log.seek(0)
        trial.raw = log.read()
    text = trial.raw.decode("utf-8", "replace")
    trial.expect(not left, f"{left} still run 10 s after rank {number} was killed")
    trial.expect(process.wait() != 0, "exit status 0 with a dead rank")
    trial.expect(f"rank {number}" in text, f"rank {number} is not named")
    trial.check_text(text)
    check_steps(trial, root)


def wait_for_ranks(trial, process, count):
    """The processes of the ranks, as soon as they train: a checkpoint or a step is there."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ranks = [pid for pid in trial.processes() if environment(pid).get("RANK")]
        root = trial.path("out/run")
        if len(ranks) == count and os.path.isdir(root) and any(name.startswith("step-") for name in os.listdir(root)):
            return sorted(ranks, key=lambda pid: int(environment(pid)["RANK"]))
        trial.expect(process.poll() is None, "the job has ended by itself")
        time.sleep(0.02)
    trial.expect(False, "the ranks have not saved a step within 30 s")


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = file.read().decode("utf-8", "replace").split("\0")
        return dict(item.split("=", 1) for item in items if "=" in item)
    except OSError:
        return {}


def conversions(trial):
    """A conversion over another: the target is the old one or the new one, and converting again leaves only that."""
    source, other = trial.inputs["run"], trial.inputs["other"]
    trial.keep(source)
    target, flags = trial.rng.choice((("x.safetensors", []), ("x.pt", []), ("x.npz", []), ("dcp", ["--to=dcp"]),
                                      ("x.gguf", []), ("x.h5", []), ("megatron", ["--to=megatron"]),
                                      ("local", ["--state_dict_type=local"]), ("full", []),
                                      ("parity", ["--state_dict_type=sharded", "--world_size=3", "--parity=1"])))
    out = trial.path(f"out/{target}")
    arguments = ["convert", source, out, "--force", *flags]
    took = how_long(trial, "ckpt", *arguments)
    new = values(trial, out)
    trial.run("ckpt", "convert", other, out, "--force", *flags, ok=(0,))
    old = values(trial, out)
    kill(trial, trial.start("ckpt", *arguments), took * 1.2)
    if os.path.isdir(out) and os.path.exists(f"{out}/manifest.json"):
        trial.run("ckpt", "verify", out, ok=(0,))
    trial.expect(values(trial, out) in (old, new), "the target is neither the old one nor the new one")
    trial.run("ckpt", *arguments, ok=(0,))
    trial.expect(values(trial, out) == new, "converting again gives other values")
    check_no_leftovers(trial, trial.path("out"))


def values(trial, path):
    whole = trial.path("tmp/values.safetensors")
    trial.run("ckpt", "convert", path, whole, "--model_only", ok=(0,))
    found = read_safetensors(whole)
    os.unlink(whole)
    return found


def repairs(trial):
    """A repair: whole files keep every byte, and a second repair restores all as they were saved."""
    source = trial.copy("parity")
    saved = snapshot(source)
    lost = trial.rng.sample(sorted(name for name in saved if name.startswith(("rank", "parity"))), 2)
    lost += [name for name in ("manifest.json", "checkpoint.h5") if trial.rng.random() < 0.3]
    trial.note(f"lost: {lost}")
    copied = trial.path("in/copy")
    shutil.copytree(source, copied)
    for path in (source, copied):
        for name in lost:
            os.unlink(os.path.join(path, name))
    took = how_long(trial, "ckpt", "repair", copied)
    kill(trial, trial.start("ckpt", "repair", source), took * 1.2)
    torn = [name for name, now in snapshot(source).items() if not name.startswith(".") and now != saved[name]]
    trial.expect(not torn, f"torn: {torn}")
    trial.run("ckpt", "repair", source, ok=(0,))
    trial.expect(snapshot(source) == saved, "the second repair does not restore what was saved")


def prunes(trial):
    """The deletion of old steps: every step-* verifies, the newest is there, and pruning again ends it."""
    root = trial.path("in/run")
    shutil.copytree(trial.inputs["run"], root)
    copied = trial.path("in/copy")
    shutil.copytree(root, copied)
    took = how_long(trial, "ckpt", "prune", copied, "--keep_last=1")
    kill(trial, trial.start("ckpt", "prune", root, "--keep_last=1"), took * 1.2)
    trial.expect(NEWEST in check_steps(trial, root), "the newest step is gone")
    trial.run("ckpt", "prune", root, "--keep_last=1", ok=(0,))
    trial.expect(sorted(os.listdir(root)) == [NEWEST], f"pruning again leaves {sorted(os.listdir(root))}")
    check_values(trial, values(trial, root), read_safetensors(trial.inputs["full.truth"]))


ATTACKS = [saves, one_rank, conversions, repairs, prunes]

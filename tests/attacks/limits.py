# SPDX-License-Identifier: Apache-2.0
"""Too little of everything, and outputs that are somebody's inputs: nothing that was there is lost."""

import os
import subprocess

from damage import check_values
from inputs import CHECKSUMS, DIGESTS, NEWEST, PLAIN, read_safetensors, training
from kills import check_steps
from trial import Crashed, Skip

TARGETS = ("torch", "dcp", "hdf5", "safetensors", "npz", "gguf", "megatron", "deepspeed")


def full_disk(trial):
    """A disk that is full at a random size: the error names it, older steps verify, and with room the run ends."""
    disk = trial.path("out/disk")
    os.mkdir(disk)
    size = trial.rng.randrange(64, 8192)
    trial.note(f"{size} KiB")
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", disk],
                                     capture_output=True).returncode:
        raise Skip("must be root, to mount a tmpfs")
    try:
        root = os.path.join(disk, "run")
        flags = training(trial.inputs, f"--checkpoint_dir={root}", "--checkpoint_every=1",
                         trial.rng.choice(("--parity=1", "--async_checkpoint", "--keep_last=1", "--incremental")))
        run = trial.run("train_gpt", *flags, mebibytes=1024)
        check_steps(trial, root)
        trial.expect(run.status == 0 or "o space left" in run.text, "the error does not name the full disk")
        for source, target in (("run", "copy"), ("full", "x.pt"), ("model.pt", "x.safetensors")):
            target = os.path.join(disk, target)
            if trial.run("ckpt", "convert", trial.inputs[source], target).status:
                trial.check_absent(target)
        subprocess.run(["mount", "-o", "remount,size=256m", disk], check=True)
        trial.run("train_gpt", *flags, ok=(0,), mebibytes=1024)
        trial.expect(NEWEST in check_steps(trial, root), "with room, the last step is not saved")
    finally:
        trial.clean()
        subprocess.run(["umount", "-l", disk], check=True)


def little_room(trial):
    """Few descriptors, little memory, short files: right values, or an error and nothing."""
    name = trial.rng.choice([name for name in DIGESTS + CHECKSUMS + PLAIN if name != "plain.h5"])
    limits = trial.rng.choice((f"-n {trial.rng.randrange(3, 40)}", f"-v {trial.rng.randrange(20000, 600000)}",
                               f"-f {trial.rng.randrange(0, 2000)}"))
    trial.note(f"{name}, ulimit {limits}")
    source = trial.inputs[name]
    trial.keep(source)
    # A program that cannot be loaded, or gets no memory, may die: it may not be wrong.
    ok = (0, 1) if limits.startswith("-f") else (0, 1, 126, 127, -6, -11)
    whole = trial.path("out/values.safetensors")
    try:
        verified = trial.run("ckpt", "verify", source, limits=limits, ok=ok)
        trial.expect("damaged:" not in verified.text, "this is no damage")
        converted = trial.run("ckpt", "convert", source, whole, "--model_only", limits=limits, ok=ok)
    except Crashed:
        trial.expect(limits.startswith("-v"), "the program has crashed")
        converted = None
    # It may be there after an error too, of the last fsync, which says so.
    if os.path.exists(whole):
        trial.expect(not converted or converted.status != 1 or "is complete" in converted.text,
                     "the conversion has failed, and its output is there")
        check_values(trial, read_safetensors(whole), read_safetensors(trial.inputs[name + ".truth"]))


def few_descriptors_for_a_run(trial):
    """Ranks that may open few files: they train and save, or end with an error; every step verifies."""
    root = trial.path("out/run")
    limit = trial.rng.randrange(8, 64)
    trial.note(f"{limit} files")
    trial.run("train_gpt", *training(trial.inputs, f"--checkpoint_dir={root}", "--checkpoint_every=2",
                                     "--join_timeout=10s"),
              limits=f"-n {limit}", ok=(0, 1, 75), mebibytes=1024)
    check_steps(trial, root)


def outputs(trial):
    """Every output of every program on something that is not its to write: refused, and every byte stays."""
    run, dcp, model = trial.copy("run"), trial.copy("dcp"), trial.copy("model.pt", "model/model.pt")
    split, trainer, gguf = trial.copy("split"), trial.copy("deepspeed"), trial.copy("model.gguf", "files/model.gguf")
    metrics, config = trial.copy("metrics.jsonl", "files/metrics.jsonl"), trial.copy("config.json", "files/config.json")
    adapter = trial.copy("model.safetensors", "adapter/adapter_model.safetensors")
    with open(trial.path("in/adapter/adapter_config.json"), "w") as file:
        file.write('{"peft_type": "LORA"}')
    os.mkfifo(trial.path("in/fifo"))
    os.symlink(os.path.join(run, NEWEST, "new"), trial.path("in/link"))
    os.link(model, trial.path("in/hard link"))
    trial.keep(trial.path("in"))
    commands = {
        "inspect": ("ckpt", ["inspect", model, "--html={}"], [model]),
        "convert": ("ckpt", ["convert", model, "{}", "--to=" + trial.rng.choice(TARGETS), "--force"], [model]),
        "parts": ("ckpt", ["convert", os.path.join(split, sorted(os.listdir(split))[0]), "{}", "--to=gguf", "--force"],
                  [os.path.join(split, name) for name in os.listdir(split)]),
        "template": ("ckpt", ["convert", model, "{}", "--to=gguf", "--template=" + gguf, "--force"], [model, gguf]),
        "merge": ("ckpt", ["merge", model, adapter, "{}", "--to=torch", "--force"],
                  [model, adapter, adapter.replace("model.safetensors", "config.json")]),
        "view": ("ckpt", ["view", model, "{}", "--force"], [model]),
        "report": ("report", [metrics, "--html={}"], [metrics]),
        "simulate": ("simulate", [f"--config={config}", "--ranks=2", "--trace={}"], [config]),
    }
    for flag in ("export", "metrics", "trace", "tensorboard", "checkpoint_dir"):
        arguments = training({**trial.inputs, "config.json": config}, "--" + flag + "={}", nproc=1, steps=1)
        commands[flag] = ("train_gpt", arguments, [config])
    name = trial.rng.choice(sorted(commands))
    program, arguments, reads = commands[name]
    reads = reads + [trial.path("in/hard link")] if model in reads else reads
    output = trial.rng.choice(reads + [
        os.path.join(dcp, ".metadata"), os.path.join(run, NEWEST, "manifest.json"), os.path.join(run, NEWEST, "new"),
        os.path.join(trainer, "global_step3/mp_rank_00_model_states.pt"),
        trial.path("in/fifo"), trial.path("in/link"), "/dev/null", "/dev/zero"])
    if trial.rng.random() < 0.5:
        output = os.path.join(os.path.dirname(output), ".", os.path.basename(output))
    trial.note(f"{name} to {output}")
    trial.run(program, *[argument.replace("{}", output) for argument in arguments], ok=(1, 2), mebibytes=1024)


ATTACKS = [full_disk, little_room, few_descriptors_for_a_run, outputs]

# SPDX-License-Identifier: Apache-2.0
"""Media that fail: errors of reads and writes (EIO, ESTALE), writes that are lost, and a network file system that shows
late what others have made or removed. The old or the new is there, the error names its cause, and a run that continues
computes the same."""

import errno
import os
import shutil

from damage import check_values
from disk import DROPPED, READS, WRITE, WRITES, Disk
from inputs import CHECKSUMS, DIGESTS, NEWEST, PLAIN, read_safetensors, training
from kills import check_steps
from trial import snapshot

CAUSES = {errno.EIO: "Input/output error", errno.ESTALE: "Stale file handle"}


def mounted(trial):
    return Disk(trial.path("in/disk"), trial.path("out/disk"))


def break_disk(trial, disk, longest, kinds=(READS, WRITES, READS + WRITES)):
    """Operations fail, once, three times or from now on. Returns the words that an error must have."""
    operations, error = trial.rng.choice(kinds), trial.rng.choice(sorted(CAUSES))
    first, count = trial.rng.randrange(longest), trial.rng.choice((1, 3, 1 << 30))
    trial.note(f"{CAUSES[error]} from operation {first} on, {count} times, of {operations}")
    disk.fail(operations, error, first, count)
    return CAUSES[error]


def train(trial, root, *flags, steps=6, ok=(0,)):
    return trial.run("train_gpt", *training(trial.inputs, f"--checkpoint_dir={root}", "--checkpoint_every=2", *flags,
                                            steps=steps), ok=ok, mebibytes=1024)


def check_equal(trial, step, other):
    trial.run("ckpt", "diff", step, other, ok=(0,))


def saves(trial):
    """A run on a disk that fails while it reads or saves: every step verifies, and the next run ends as any other."""
    kind = trial.rng.choice((["--async_checkpoint"], ["--state_dict_type=full"], ["--state_dict_type=local"],
                             ["--parity=1"], ["--incremental"], []))
    trial.note(" ".join(kind))
    with mounted(trial) as disk:
        root = os.path.join(disk.mount, "run")
        cause = break_disk(trial, disk, 600)
        run = train(trial, root, *kind, ok=(0, 1, 75))
        trial.expect(run.status == 0 or cause in run.text, f"the error does not name its cause: {cause}")
        disk.heal()
        check_steps(trial, root)
        train(trial, root, *kind)
        trial.expect(NEWEST in check_steps(trial, root), "on a sound disk, the last step is not saved")
        check_equal(trial, os.path.join(root, NEWEST), os.path.join(trial.inputs["run"], NEWEST))
        trial.clean()


def lost_writes(trial):
    """A disk that loses writes which it reports as done: no wrong value is loaded, and a resume names what it skips."""
    with mounted(trial) as disk:
        root = os.path.join(disk.mount, "run")
        disk.fail((WRITE,), DROPPED, trial.rng.randrange(40), trial.rng.choice((1, 2, 5)))
        train(trial, root, ok=(0, 1))
        trial.note(f"{disk.failures} writes are lost")
        disk.heal()
        steps = sorted(name for name in os.listdir(root) if name.startswith("step-")) if os.path.isdir(root) else []
        bad = [step for step in steps if trial.run("ckpt", "verify", os.path.join(root, step)).status]
        for step in set(steps) - set(bad):
            check_equal(trial, os.path.join(root, step), os.path.join(trial.inputs["run"], step))
        newest_good = max(set(steps) - set(bad), default="")
        resumed = train(trial, root, ok=(0, 1))
        for step in bad:
            trial.expect(step < newest_good or step in resumed.text, f"{step} is skipped without a word")
        trial.expect(resumed.status == 0 or not newest_good, "a run with a good step does not continue")
        if resumed.status == 0:
            check_equal(trial, os.path.join(root, NEWEST), os.path.join(trial.inputs["run"], NEWEST))
        trial.clean()


def conversions(trial):
    """Verification and conversion on a disk that fails: right values, or an error that names it, and no output."""
    name = trial.rng.choice(DIGESTS + CHECKSUMS + PLAIN)
    target = trial.rng.choice(("x.safetensors", "x.pt", "x.npz", "x.gguf", "dcp", "megatron", "hdf5"))
    trial.note(f"{name} to {target}")
    with mounted(trial) as disk:
        source, out = os.path.join(disk.mount, name), os.path.join(disk.mount, "out", target)
        (shutil.copytree if os.path.isdir(trial.inputs[name]) else shutil.copy2)(
            trial.inputs[name], os.path.join(disk.source, name))
        os.mkdir(os.path.join(disk.source, "out"))
        before = snapshot(disk.source)
        cause = break_disk(trial, disk, 60, (READS,))
        verified = trial.run("ckpt", "verify", source)
        trial.expect(verified.status == 0 or cause in verified.text, f"verify does not name its cause: {cause}")
        cause = break_disk(trial, disk, 200)
        flags = ["--to=" + target] if target in ("dcp", "megatron") else []
        converted = trial.run("ckpt", "convert", source, out, *flags, *(["--skip_links"] if name == "plain.h5" else []))
        trial.expect(converted.status == 0 or cause in converted.text, f"convert does not name its cause: {cause}")
        disk.heal()
        changed = [key for key, value in before.items() if key != "out" and snapshot(disk.source).get(key) != value]
        trial.expect(not changed, f"the source has changed: {changed}")
        trial.expect(converted.status == 0 or not os.path.exists(out) or "is complete" in converted.text,
                     "the conversion has failed, and its output is there")
        if os.path.exists(out):
            whole = trial.path("out/values.safetensors")
            trial.run("ckpt", "convert", out, whole, "--model_only", ok=(0,))
            truth, values = read_safetensors(trial.inputs[name + ".truth"]), read_safetensors(whole)
            # Some targets store a tensor under all its names.
            check_values(trial, {key: value for key, value in values.items() if key in truth}, truth)
        trial.clean()


def resumes(trial):
    """A run that continues while the disk fails, or shows late what is there: from a whole step, the newest or an older
    one by name, or not at all, by name; and never from a mixture."""
    whole = trial.copy("run", "whole")
    train(trial, whole, steps=8)
    with mounted(trial) as disk:
        root = os.path.join(disk.mount, "run")
        shutil.copytree(trial.inputs["run"], os.path.join(disk.source, "run"))
        words = [NEWEST]
        if trial.rng.random() < 0.5:
            words.append(break_disk(trial, disk, 300, (READS, READS + WRITES)))
        else:
            late = trial.rng.choice((NEWEST, "step-00000004", "manifest.json", "checkpoint.h5",
                                     "rank-00001-of-00002.h5"))
            view = trial.rng.choice(("hidden", "forgotten"))
            setattr(disk, view, {late})
            trial.note(f"{late} is {view}")
            words.append(late)
        resumed = train(trial, root, steps=8, ok=(0, 1, 75))
        trial.expect(resumed.status == 0 or any(word in resumed.text for word in words),
                     f"the error names none of {words}")
        disk.heal()
        aside = [name for name in os.listdir(root) if ".damaged" in name]
        trial.expect(all(name.split(".")[0] in resumed.text for name in aside), f"{aside} without a word")
        check_steps(trial, root)
        train(trial, root, steps=8)
        check_equal(trial, os.path.join(root, "step-00000008"), os.path.join(whole, "step-00000008"))
        trial.clean()


ATTACKS = [saves, lost_writes, conversions, resumes]

# SPDX-License-Identifier: Apache-2.0
"""Damaged bytes: a flip, a cut or a swap anywhere is found and named, and never becomes a value."""

import os
import shutil

from inputs import CHECKSUMS, DIGESTS, NEWEST, PLAIN, read_safetensors, training
from trial import changes, snapshot


def damage(rng, path, gone=False):
    """Changes one file at or below `path`, by a random kind of damage; with `gone`, the file may also be absent or
    something else afterwards. Returns (file, words)."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names] or [path]
    file = rng.choice(sorted(files))
    if gone and rng.random() < 0.2:
        return file, replace(rng, file)
    with open(file, "rb") as opened:
        before = opened.read()
    data, words = before, ""
    while data == before:
        data, words = damaged(rng, before)
    os.unlink(file)  # another step may hold a link to it
    with open(file, "wb") as opened:
        opened.write(data)
    return file, words


def damaged(rng, data):
    """(other bytes, words); by chance the same bytes."""
    begin = rng.randrange(len(data))
    length = min(rng.choice((1, 8, 512, 4096, 65536)), len(data) - begin)
    end, other = begin + length, rng.randrange(len(data) - length + 1)
    kind = rng.choice(("flip", "flip", "flip", "byte", "zeros", "random", "cut", "longer", "hole", "swap"))
    bit = rng.randrange(8)
    changed = {
        "flip": lambda: data[:begin] + bytes([data[begin] ^ 1 << bit]) + data[begin + 1:],
        "byte": lambda: data[:begin] + rng.randbytes(1) + data[begin + 1:],
        "zeros": lambda: data[:begin] + bytes(length) + data[end:],
        "random": lambda: data[:begin] + rng.randbytes(length) + data[end:],
        "cut": lambda: data[:begin],
        "longer": lambda: data + rng.randbytes(length),
        "hole": lambda: data[:begin] + data[end:],
        "swap": lambda: data[:begin] + data[other:other + length] + data[end:],
    }[kind]()
    return changed, f"{kind} at byte {begin}, bit {bit}, {length} bytes, from {other}"


def replace(rng, file):
    """`file` is absent, or something that is no file of bytes."""
    os.unlink(file)
    kind = rng.choice(("absent", "fifo", "link to nothing", "link to itself", "device", "empty"))
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "empty":
        open(file, "w").close()
    elif kind != "absent":
        os.symlink({"link to nothing": "nowhere", "link to itself": os.path.basename(file),
                    "device": "/dev/zero"}[kind], file)
    return kind


def convert(trial, source, *flags, **limits):
    """Its values in safetensors, or None if they were refused, after which nothing may be left."""
    out = trial.path("out/values.safetensors")
    if trial.run("ckpt", "convert", source, out, "--model_only", *flags, **limits).status == 0:
        return read_safetensors(out)
    trial.check_absent(out)
    return None


def check_values(trial, values, truth):
    wrong = changes(truth, values or truth)
    trial.expect(not wrong, f"converted, exit status 0, with other values than were saved: {wrong[:3]}")


def checkpoint(trial):
    """A checkpoint of ours: the file is named, no wrong value is converted, and repairs are exact."""
    name = trial.rng.choice(DIGESTS)
    source, truth = trial.copy(name), read_safetensors(trial.inputs[name + ".truth"])
    saved = snapshot(source)
    file, words = damage(trial.rng, source, gone=True)
    trial.note(f"{name}: {words} of {file}")
    harmed = snapshot(source)
    trial.keep(source)
    found = trial.run("ckpt", "verify", source, ok=(1,))
    trial.expect(os.path.basename(file) in found.text, "verify does not name the file")
    check_values(trial, convert(trial, source), truth)
    trial.check_kept()
    if trial.run("ckpt", "repair", source).status == 0:
        trial.run("ckpt", "verify", source, ok=(0,))
        trial.expect(snapshot(source).items() >= saved.items(), "repaired, and not as it was saved")
    else:
        trial.expect(snapshot(source) == harmed, "a repair that failed has changed something")


def several_files(trial):
    """As many files of a checkpoint with parity as it has parity files: repaired to the bit."""
    source = trial.copy("parity")
    saved = snapshot(source)
    for name in trial.rng.sample(sorted(name for name in os.listdir(source) if name != "checkpoint.h5"), 2):
        file, words = damage(trial.rng, os.path.join(source, name), gone=True)
        trial.note(f"{words} of {file}")
    trial.run("ckpt", "verify", source, ok=(1,))
    repaired = trial.run("ckpt", "repair", source).status == 0
    # Without a manifest nobody knows which other file is the damaged one.
    trial.expect(repaired or "manifest.json" in trial.notes[0] + trial.notes[1], "two files of two are not repaired")
    trial.expect(not repaired or snapshot(source) == saved, "repaired, and not as it was saved")


def other_formats(trial):
    """Files of other formats: a CRC that they have is compared, and what they say is what is read."""
    name = trial.rng.choice(CHECKSUMS + PLAIN)
    source = trial.copy(name)
    file, words = damage(trial.rng, source, gone=os.path.isdir(source))
    trial.note(f"{name}: {words} of {file}")
    trial.keep(source)
    trial.run("ckpt", "verify", source)
    values = convert(trial, source, *([] if name != "plain.h5" else ["--skip_links"]))
    if name in CHECKSUMS or file.endswith(".distcp"):
        check_values(trial, values, read_safetensors(trial.inputs[name + ".truth"]))
    elif name == "model.safetensors" and values:
        check_values(trial, values, read_safetensors(source))


def newest_step(trial):
    """A run whose newest step is damaged: it continues from the one before, computes the same, and keeps both."""
    root = trial.copy("run")
    newest = os.path.join(root, NEWEST)
    file, words = damage(trial.rng, newest, gone=True)
    trial.note(f"{words} of {file}")
    harmed = snapshot(newest)
    trial.run("train_gpt", *training(trial.inputs, f"--checkpoint_dir={root}"), ok=(0,), mebibytes=1024)
    trial.run("ckpt", "diff", newest, os.path.join(trial.inputs["run"], NEWEST), ok=(0,))
    trial.expect(snapshot(newest + ".damaged") == harmed, "the damaged step is not kept as it was")


def strange_files(trial):
    """A checkpoint with a file that no save wrote, or with one of another save: named, never read as its own."""
    name = trial.rng.choice(("sharded", "local", "parity"))
    source = trial.copy(name)
    names = sorted(os.listdir(source))
    file = trial.rng.choice(names)
    kind = trial.rng.choice(("another of its files", "of another save", "more"))
    if kind == "more":
        file = trial.rng.choice(("rank-00007-of-00003.h5", "parity-00009-of-00010.bin", "notes.txt", "\x1b[2J.h5"))
        shutil.copy2(os.path.join(source, names[0]), os.path.join(source, file))
    elif kind == "of another save":
        other = os.path.join(trial.inputs["other"], NEWEST)
        shutil.copy2(os.path.join(other, trial.rng.choice(sorted(os.listdir(other)))), os.path.join(source, file))
    else:
        shutil.copy2(os.path.join(source, trial.rng.choice([n for n in names if n != file])),
                     os.path.join(source, file))
    trial.note(f"{name}: {file} is {kind}")
    trial.keep(source)
    trial.run("ckpt", "verify", source, ok=(1,))
    check_values(trial, convert(trial, source), read_safetensors(trial.inputs[name + ".truth"]))


ATTACKS = [checkpoint, several_files, other_formats, newest_step, strange_files]

# SPDX-License-Identifier: Apache-2.0
"""Hostile text and numbers wherever a stranger can write them: they are refused, or printed as text."""

import copy
import json
import os
import shutil

from inputs import CONFIG, NEWEST, sealer, training, write_safetensors
from trial import STEERS, Skip

SCRIPT = "<script>alert(7)</script>"
TEXTS = ("\x1b[31mX", "\x1b]0;owned\x07", "\x07", "\r", "a\nb", "\x9b31m", "\x7f", "\u202egnp.5h", "\u2066x", "\u200b",
         "\ufeff", "\u2028", "\ud800", SCRIPT, '"><svg onload=alert(7)>', "'", "%s%n%s", "`touch x`", "$(touch x)",
         "../../../x", "/x", ".", "..", "", " ", "\0", "-x", "--force", "a" * 300, "x/y", "\\", "nan", "\U0001f600")
NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**32 + 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 1.5, 1e300, 1e-300,
           float("nan"), float("inf"), True, None, "x", [], {}, [[[]]])


def hostile(rng):
    return "".join(rng.choice(TEXTS) for _ in range(rng.choice((1, 1, 2, 3))))


def file_name(rng):
    name = hostile(rng).replace("/", "\u2215").replace("\0", "").encode("utf-8", "replace")[:120]
    return name.decode("utf-8", "ignore") if name not in (b"", b".", b"..") else "x"


def check_page(trial, path):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    for text in (SCRIPT, "<svg onload"):
        trial.expect(text not in page, f"{text} of a stranger is in the page")
    steering = STEERS.search(page)
    trial.expect(not steering, f"{steering and steering[0]!a} is raw in the page")


def look(trial, path):
    """Every way to look at `path` prints text, valid JSON or a page without a stranger's scripts."""
    page = trial.path("out/page.html")
    for arguments in (["inspect", path, "--tensors"], ["inspect", path, "--html=" + page], ["verify", path],
                      ["diff", path, path], ["convert", path, trial.path("out/x.pt"), "--force"],
                      ["inspect", path, "--json", "--tensors"], ["verify", path, "--json"]):
        result = trial.run("ckpt", *arguments)
        if "--json" in arguments and result.status == 0:
            result.json()
        if os.path.exists(page):
            check_page(trial, page)


def tensor_names(trial):
    """A safetensors file with hostile names of tensors and metadata."""
    names = {hostile(trial.rng) for _ in range(5)}
    trial.note(f"names: {names!a}")
    path = trial.path("in/x.safetensors")
    metadata = {hostile(trial.rng): hostile(trial.rng)}
    write_safetensors(path, sorted(names), metadata if trial.rng.random() < 0.5 else None)
    trial.keep(path)
    look(trial, path)


def places(value, path=()):
    """Every place of a JSON value, as a tuple of keys."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, path + (key,))


def put(rng, value, path):
    """`value` with something hostile at `path`: another text or number there, or a member more."""
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    old = inner[path[-1]]
    if isinstance(old, dict) and rng.random() < 0.7:
        old[hostile(rng)] = rng.choice((hostile(rng), rng.choice(NUMBERS)))
    elif isinstance(old, list) and rng.random() < 0.7:
        inner[path[-1]] = rng.choice((old * 2, old[::-1], old[1:], old + [rng.choice(NUMBERS)]))
    else:
        inner[path[-1]] = hostile(rng) if isinstance(old, str) and rng.random() < 0.7 else rng.choice(NUMBERS)
    return value, inner[path[-1]]


def manifest(trial):
    """A manifest with a right digest and something hostile at any place: in every command's text, page and JSON."""
    seal = sealer()
    if not seal:
        raise Skip("there is no libxxhash.so.0")
    source = trial.copy(trial.rng.choice(("full", "sharded", "local", "parity", "linked")))
    path = os.path.join(source, "manifest.json")
    with open(path) as file:
        value = json.load(file)
    where = trial.rng.choice([place for place in places(value) if place])
    value, there = put(trial.rng, value, where)
    trial.note(f"{'.'.join(map(str, where))} is {str(there)[:200]!a}")
    with open(path, "wb") as file:
        file.write(seal(value))
    trial.keep(source)
    look(trial, source)
    trial.run("ckpt", "repair", source, "--dry_run")


def directory_names(trial):
    """Hostile names of files and folders in a root of checkpoints: listed as text, and kept."""
    root = trial.path("in/" + file_name(trial.rng))
    shutil.copytree(trial.inputs["run"], root)
    for _ in range(3):
        name = trial.rng.choice((file_name(trial.rng), ".step-00000007.tmp-" + file_name(trial.rng),
                                 "step-00000008" + file_name(trial.rng)))
        place = os.path.join(root, trial.rng.choice(("", NEWEST)), name)
        if not os.path.lexists(place) and len(os.path.basename(place)) < 200:
            trial.note(f"{place!a}")
            os.mkdir(place) if trial.rng.random() < 0.5 else open(place, "w").close()
    trial.keep(root)
    look(trial, root)
    trial.run("ckpt", "prune", root, "--keep_last=1", "--dry_run")
    trial.check_kept()
    if trial.rng.random() < 0.3:
        trial.run("train_gpt", *training(trial.inputs, f"--checkpoint_dir={root}", steps=7), mebibytes=1024)


def config(trial):
    """A hostile config.json: refused by name by train_gpt and simulate, or obeyed within bounds."""
    value = dict(CONFIG)
    for name in trial.rng.sample(sorted(value), 2):
        value[name] = hostile(trial.rng) if isinstance(CONFIG[name], str) else trial.rng.choice(NUMBERS)
    if trial.rng.random() < 0.3:
        value[hostile(trial.rng)] = hostile(trial.rng)
    path = trial.path("in/" + file_name(trial.rng))
    with open(path, "w") as file:
        json.dump(value, file)
    trial.note(f"{value!a}")
    trial.keep(path)
    trial.run("simulate", f"--config={path}", "--ranks=16", "--hosts=2", ok=(0, 1, 2))
    flags = training(trial.inputs, f"--checkpoint_dir={trial.path('out/run')}", nproc=1, steps=1)
    trial.run("train_gpt", *[flag for flag in flags if not flag.startswith("--config")], f"--config={path}",
              mebibytes=4096, limits="-v 8000000", seconds=60)


def flags(trial):
    """Values of simulate's flags that cannot be: refused, or answered soon."""
    names = ("ranks", "hosts", "batch_size", "seq_len", "grad_accum", "link", "disk", "shard_group_size",
             "collective_latency", "achievable", "device")
    values = (0, -1, 1, 7, 2**31 - 1, 2**63 - 1, 2**63, 1e300, "1e400", "nan", "inf", file_name(trial.rng))
    chosen = [f"--{name}={trial.rng.choice(values)}" for name in trial.rng.sample(names, 3)]
    trial.note(f"{chosen!a}")
    trial.run("simulate", f"--config={trial.inputs['config.json']}", "--ranks=8", *chosen, ok=(0, 1, 2))


def metrics(trial):
    """Hostile lines and names of metrics: refused with file and line, or a page without a stranger's scripts."""
    paths = []
    for number in range(trial.rng.randrange(1, 4)):
        paths.append(trial.path(f"in/{number}{file_name(trial.rng)}"))
        line = {"step": 0, "loss": 2.5, "grad_norm": 1.0, "lr": 0.001, "tokens_per_second": 100, "step_seconds": 0.1,
                "peak_bytes": 100}
        with open(paths[-1], "w") as file:
            for step in range(20):
                line["step"] = step
                if trial.rng.random() < 0.05:
                    line[trial.rng.choice(sorted(line) + [hostile(trial.rng)])] = trial.rng.choice(
                        (hostile(trial.rng), trial.rng.choice(NUMBERS)))
                file.write(json.dumps(line) + "\n")
    trial.note(f"{paths!a}")
    trial.keep(*paths)
    page = trial.path("out/page.html")
    if trial.run("report", *paths, "--html=" + page).status == 0:
        check_page(trial, page)


ATTACKS = [tensor_names, manifest, directory_names, config, flags, metrics]

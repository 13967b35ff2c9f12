#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The driver of run.sh, which says what this is: the table of attacks, tried in turns until the time is up."""

import argparse
import glob
import os
import random
import shutil
import sys
import tempfile
import time
import traceback

import damage
import inputs
import jobs
import kills
import limits
import media
import stores
import text
from trial import Broken, Skip, Trial, changes, snapshot

PROGRAMS = {"ckpt": "tools/ckpt", "launch": "tools/launch", "report": "tools/report", "simulate": "tools/simulate",
            "train_gpt": "train/train_gpt"}
# name: function. Each is described by its docstring, and does one try.
TABLE = {f"{module.__name__}.{attack.__name__}": attack for module in (damage, text, kills, jobs, stores, limits, media)
         for attack in module.ATTACKS}


class Tally:
    def __init__(self):
        self.seconds, self.tries, self.failures = 0.0, 0, 0
        self.over = ""  # why there are no more tries


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/attacks/run.sh", allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", metavar="NAME[:TRY]", help="one attack, or one try of it")
    parser.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    name, _, number = (flags.only or "").partition(":")
    if flags.only and (name not in TABLE or number and not number.isdigit()):
        parser.error(f"--only={flags.only}: no such attack; the attacks are {', '.join(TABLE)}")
    return flags, name, number


def attempt(name, number, flags, directory, made):
    """One try. Returns "", or the report of its failure; its files then stay."""
    os.makedirs(directory)
    programs = {program: os.path.join(flags.bin, path) for program, path in PROGRAMS.items()}
    trial = Trial(programs, made, directory, flags.seed, name, number)
    try:
        TABLE[name](trial)
        trial.finish()
    except Skip:
        raise
    except Broken as broken:
        return report(trial, name, number, flags, str(broken))
    except Exception:  # a fault of the attack itself: shown like the others, and the next try follows
        return report(trial, name, number, flags, traceback.format_exc())
    finally:
        trial.clean()
    shutil.rmtree(directory)
    return ""


def report(trial, name, number, flags, failure):
    said = trial.raw
    for log in sorted(glob.glob(glob.escape(trial.dir) + ".log*")):
        with open(log, "rb") as file:
            said += file.read()
    return "\n".join([f"FAILED: {name}:{number}: {failure}", *(f"  {ascii(note)}" for note in trial.notes),
                      f"  command: {ascii(' '.join(trial.last))}", f"  it said: {ascii(said[-600:])}",
                      f"  files: {trial.dir}",
                      f"  repeat: tests/attacks/run.sh --seed={flags.seed} --only={name}:{number}"])


def attack(flags, names, number, work, made):
    """Tries in turns, the attack first that has had the least time, so that each has the same share."""
    tallies = {name: Tally() for name in names}
    deadline = time.monotonic() + flags.minutes * 60
    while time.monotonic() < deadline and any(not tally.over for tally in tallies.values()):
        name = min((name for name in names if not tallies[name].over), key=lambda name: tallies[name].seconds)
        tally, began = tallies[name], time.monotonic()
        this = number if number is not None else tally.tries
        try:
            failure = attempt(name, this, flags, os.path.join(work, f"{name}-{this}"), made)
            tally.tries += 1
            if failure:
                tally.failures += 1
                print(failure, flush=True)
        except Skip as skip:
            tally.over = str(skip)
        tally.seconds += time.monotonic() - began
        if number is not None or tally.failures == 10:
            tally.over = tally.over or "no more tries"
    return tallies


def main(arguments):
    flags, name, number = parse(arguments)
    print(f"attacks: seed {flags.seed}, {flags.minutes:g} minutes", flush=True)
    work = tempfile.mkdtemp(prefix="attacks.")
    tokens = os.path.join(os.path.dirname(__file__), "../testdata/golden/tokens.u16")
    try:
        made = inputs.make({name: os.path.join(flags.bin, path) for name, path in PROGRAMS.items()},
                           os.path.join(work, "inputs"), tokens)
        before = snapshot(os.path.join(work, "inputs"))
        tallies = attack(flags, [name] if name else list(TABLE), int(number) if number else None, work, made)
        changed = changes(before, snapshot(os.path.join(work, "inputs")))
        if changed:
            print(f"FAILED: inputs of the attacks have changed: {changed}")
    finally:
        shutil.rmtree(os.path.join(work, "inputs"), ignore_errors=True)
    for name, tally in tallies.items():
        print(f"{name:28} {tally.tries:5} tries  {tally.failures:3} failed  {tally.seconds:5.0f} s"
              + (f"  {tally.over}" if tally.over else ""))
    failures = sum(tally.failures for tally in tallies.values()) + bool(changed)
    tries = sum(tally.tries for tally in tallies.values())
    if not failures:
        shutil.rmtree(work, ignore_errors=True)
    print(f"attacks: {tries} tries of {sum(tally.tries > 0 for tally in tallies.values())} attacks, {failures} failed, "
          f"seed {flags.seed}")
    return 1 if failures or not tries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

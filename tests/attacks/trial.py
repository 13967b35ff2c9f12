# SPDX-License-Identifier: Apache-2.0
"""One try of one attack: its random numbers, its directory, the programs that it runs, and the promises that hold for
every program whatever the input: it ends in time, in bounded memory, by an exit status of its own and not by a signal;
a failure says something; no byte of a stranger steers the terminal; a source keeps every byte; nothing is left."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import threading
import time

MARK = "FSDP_ATTACK"  # in the environment of every process of a try, so that one which outlives it is found

# What a terminal obeys or shows as something else: C0 and C1 controls, directions, and characters without a width.
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
# Not the HDF5 library in its process of its own, whose death is the report of a damaged file.
CRASHED = re.compile("terminate called|std::bad_alloc|(?<!library died of it \\()Segmentation|Check failed|Assertion"
                     "|Sanitizer")


class Broken(Exception):
    """A promise that does not hold."""


class Crashed(Broken):
    """A program has ended by a fault of its own."""


class Skip(Exception):
    """A requirement of the attack is missing here."""


class Result:
    def __init__(self, status, raw):
        self.status, self.raw, self.text = status, raw, raw.decode("utf-8", "replace")

    def json(self):
        """The object that --json printed, among the lines of stderr."""
        try:
            return json.JSONDecoder().raw_decode(self.text[self.text.index("{"):])[0]
        except ValueError as error:
            raise Broken(f"this is no JSON: {error}") from error


def snapshot(path):
    """{name: what it is}: type, permissions and contents of everything at and below `path`, links not followed."""
    def describe(name):
        info = os.lstat(name)
        if stat.S_ISLNK(info.st_mode):
            return "link", os.readlink(name)
        if stat.S_ISREG(info.st_mode):
            with open(name, "rb") as file:
                return info.st_mode, hashlib.sha256(file.read()).hexdigest()
        return info.st_mode, ""

    if not os.path.lexists(path):
        return {}
    found = {".": describe(path)}
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            name = os.path.join(folder, name)
            found[os.path.relpath(name, path)] = describe(name)
    return found


def changes(before, after):
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


class Trial:
    """Files are in `dir`, the working directory and HOME of every program: inputs in in/, outputs in out/, and TMPDIR,
    tmp/, must be empty at the end."""

    def __init__(self, programs, inputs, directory, seed, name, number):
        self.programs, self.inputs, self.dir = programs, inputs, directory
        self.rng = random.Random(f"{seed} {name} {number}")
        self.mark = f"{os.getpid()}-{name}-{number}"
        self.notes, self.kept, self.last, self.raw = [], {}, [], b""
        for name in ("in", "out", "tmp"):
            os.makedirs(self.path(name))
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "FSDP_"))}
        self.environment |= {MARK: self.mark, "HOME": directory, "TMPDIR": self.path("tmp")}

    def path(self, name):
        return os.path.join(self.dir, name)

    def note(self, text):
        """What the attack did, for the report of a failure."""
        self.notes.append(text)

    def copy(self, name, to=None):
        """A copy of the input `name` in in/, which the attack may damage."""
        source, copied = self.inputs[name], self.path(os.path.join("in", to or name))
        os.makedirs(os.path.dirname(copied), exist_ok=True)
        (shutil.copytree if os.path.isdir(source) else shutil.copy2)(source, copied)
        return copied

    def keep(self, *paths):
        """From now on nothing may change these."""
        self.kept |= {path: snapshot(path) for path in paths}

    def expect(self, condition, text):
        if not condition:
            raise Broken(text)

    def start(self, program, *arguments, environment=None, limits="", output=None):
        """A running program, the leader of its process group. `limits` are of ulimit: "-n 64"."""
        command = [self.programs[program], *map(str, arguments)]
        self.last = command
        if limits:
            command = ["sh", "-c", f'ulimit {limits}; exec "$@"', "sh", *command]
        return subprocess.Popen(command, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=output or subprocess.DEVNULL,
                                stderr=subprocess.STDOUT, env=self.environment | (environment or {}),
                                start_new_session=True)

    def run(self, program, *arguments, ok=(0, 1), seconds=30, mebibytes=192, environment=None, limits=""):
        """Runs to the end, checks the promises of every program, and that the exit status is in `ok`."""
        with open(self.dir + ".output", "w+b") as output:
            began = time.monotonic()
            process = self.start(program, *arguments, environment=environment, limits=limits, output=output)
            late = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
            late.start()
            _, status, usage = os.wait4(process.pid, 0)
            late.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            took = time.monotonic() - began
            output.seek(0)
            result = Result(process.returncode, output.read(4 << 20))
        self.raw = result.raw
        self.expect(took < seconds, f"still running after {seconds} s")
        self.check_text(result.text)
        self.expect(result.status in ok, f"exit status {result.status}, expected one of {ok}")
        self.expect(result.status == 0 or result.text.strip(), f"exit status {result.status} without a word")
        peak = usage.ru_maxrss >> 10
        self.expect(peak < mebibytes, f"{peak} MiB of memory, expected less than {mebibytes}")
        return result

    def check_text(self, text):
        steering = STEERS.search(text)
        self.expect(not steering, f"{steering and steering[0]!a} reaches the terminal")
        crash = CRASHED.search(text)
        if crash:
            raise Crashed(f"the program has crashed: {crash[0]}")

    def check_absent(self, path):
        """Neither `path` nor a hidden file of an unfinished write beside it."""
        folder, name = os.path.split(path)
        left = [other for other in os.listdir(folder) if other == name or other.startswith(f".{name}.")]
        self.expect(not left, f"a failed program leaves {left}")

    def check_kept(self):
        """Nothing has changed what was kept; it may change from now on."""
        for path, before in self.kept.items():
            changed = changes(before, snapshot(path))
            self.expect(not changed, f"{path} has changed: {changed}")
        self.kept = {}

    def processes(self):
        """Processes of this try that still run."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if f"{MARK}={self.mark}\0".encode() in file.read():
                        found.append(int(pid))
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def finish(self):
        """After the attack: what was kept is as it was, and no file and no process is left."""
        self.check_kept()
        left = os.listdir(self.path("tmp"))
        self.expect(not left, f"these are left in TMPDIR: {left}")
        self.expect(not self.ended(3), f"these processes are left: {self.processes()}")

    def ended(self, seconds):
        """The processes of this try that still run after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()

    def clean(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

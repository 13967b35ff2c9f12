# SPDX-License-Identifier: Apache-2.0
"""How gpu_check.py runs programs: each with its libraries and its own time limit, so that a hang or a failure stops
nothing else. Standard library only."""

import glob
import importlib.util
import json
import os
import pathlib
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TAIL = 40  # lines of output that a row of a failure keeps


class Failed(Exception):
    """An error of one program, with its last lines of output."""


def library_folders():
    """The bundle's, PyTorch's and its dependencies from pip, and the toolkit's."""
    packages = dict.fromkeys([sysconfig.get_paths()["purelib"], *site.getsitepackages(), site.getusersitepackages()])
    pip = [folder for package in packages for folder in sorted(glob.glob(f"{package}/nvidia/*/lib"))]
    pip += [f"{package}/torch/lib" for package in packages]
    toolkit = ["/usr/local/cuda/lib64", *sorted(glob.glob("/usr/local/cuda-*/lib64"), reverse=True)]
    return [folder for folder in [str(HERE / "lib"), *pip, *toolkit] if os.path.isdir(folder)]


def environment(more=None):
    paths = [*library_folders(), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path), **(more or {})}


def kill_group(process):
    """Ends a program and all processes that it started. One that the GPU's driver does not let go is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass


def run(command, timeout, scratch, more_environment=None):
    """(exit status, seconds, lines of output); 124 after `timeout`, when it and all its processes are killed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:  # a pipe would wait for children that are left
        try:
            process = subprocess.Popen([str(part) for part in command], env=environment(more_environment), cwd=scratch,
                                       stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        except OSError as error:
            return 127, 0.0, [str(error)]
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = 124
        kill_group(process)  # ranks that outlived their launcher
        output.seek(0)
        return status, time.monotonic() - began, output.read().splitlines()


def output_of(command, timeout, scratch, more_environment=None):
    """The lines of a program that must exit with success."""
    status, took, output = run(command, timeout, scratch, more_environment)
    if status != 0:
        why = f"not done after {took:.0f} s" if status == 124 else f"exit status {status}"
        raise Failed("\n".join([why, *output[-TAIL:]]))
    return output


def json_lines(output):
    return [json.loads(line) for line in output if line.startswith("{") and line.endswith("}")]


class Background:
    """Runs programs one after the other, concurrently with others; their output goes to files."""

    def __init__(self, commands, scratch, priority=10):
        self.commands, self.scratch, self.priority = commands, scratch, priority
        self.process, self.stopped, self.statuses = None, threading.Event(), []
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        for index, command in enumerate(self.commands):
            with open(self.scratch / f"background-{id(self)}-{index}.log", "w", encoding="utf-8") as log:
                with self.lock:
                    if self.stopped.is_set():
                        return
                    self.process = subprocess.Popen(["nice", "-n", str(self.priority), *map(str, command)],
                                                    env=environment(), cwd=self.scratch, stdout=log, stderr=log,
                                                    stdin=subprocess.DEVNULL, start_new_session=True)
                self.statuses.append(self.process.wait())

    def wait(self, timeout):
        """Whether all of them are done after `timeout` seconds at most."""
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def stop(self):
        """Ends the running one; the rest do not start."""
        with self.lock:
            self.stopped.set()
            if self.process is not None and self.process.poll() is None:
                kill_group(self.process)
        self.thread.join(10)


def find_toolkit_program(name):
    for folder in ["/usr/local/cuda/bin", *sorted(glob.glob("/usr/local/cuda-*/bin"), reverse=True),
                   *os.environ.get("PATH", "").split(":")]:
        if os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    return None


def has_gpu():
    status, _, output = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], 30, HERE)
    return status == 0 and any(line.strip() for line in output)


def has_torch():
    return importlib.util.find_spec("torch") is not None


def machine():
    """The machine, driver and libraries: numbers mean nothing without them."""
    def lines(command):
        status, _, output = run(command, 60, HERE)
        return output if status == 0 and output else ["absent"]

    torch = lines([sys.executable, "-c", "import torch; cuda = torch.version.cuda; print(torch.__version__, "
                   "'cudnn', torch.backends.cudnn.version(), 'nccl', torch.cuda.nccl.version() if cuda else None)"])[-1]
    glibc = HERE / "GLIBC"
    wanted = glibc.read_text().strip() if glibc.exists() else "unknown"
    query = "name,memory.total,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    return dict(gpu=lines(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])[0],
                nvcc=lines(["nvcc", "--version"])[-1], torch=torch, cores=os.cpu_count(),
                glibc=f"{os.confstr('CS_GNU_LIBC_VERSION')}, the programs want {wanted}")

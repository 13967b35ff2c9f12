# SPDX-License-Identifier: Apache-2.0
"""Interpreters that exit, fork or are killed while a thread saves."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed.checkpoint as dcp

import fsdp_checkpoint
from fsdp_checkpoint.torch import Reader

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cases import Case  # noqa: E402

# Each exits while another thread saves; it must not end by a signal, and must not lose the save.
EXITS = {
    "async_save without result()": """
future = dcp.async_save(state, storage_writer=Writer(path))
sys.exit(0)
""",
    "an exception after async_save": """
future = dcp.async_save(state, storage_writer=Writer(path))
raise RuntimeError("no thread waits for the save")
""",
    "a daemon thread": """
threading.Thread(target=dcp.save, args=(state,), kwargs={"storage_writer": Lasting(path)}, daemon=True).start()
begun.wait()
sys.exit(0)
""",
    "a fork": """
threading.Thread(target=dcp.save, args=(state,), kwargs={"storage_writer": Lasting(path)}, daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
}
EXITS_BEGIN = """
import os, sys, threading, time, torch, torch.distributed.checkpoint as dcp
from fsdp_checkpoint import _library
from fsdp_checkpoint.torch import Writer
path = sys.argv[1]
state = {"w": torch.full((1 << 20,), 3.0)}
begun = threading.Event()
fsdp_save = _library.library.fsdp_save
def slow_save(*arguments):
    begun.set()
    time.sleep(2)
    return fsdp_save(*arguments)
_library.library.fsdp_save = slow_save
class Lasting(Writer):
    # PyTorch's own code, which comes next, aborts the process if the interpreter ends a thread in it.
    def write_data(self, *arguments):
        super().write_data(*arguments)
        time.sleep(60)
"""

# A thread that C has called Python from, when the interpreter is past the point of ending it.
CALLED_BACK_TOO_LATE = """
import builtins, ctypes, sys, threading
from fsdp_checkpoint import _library
sleep = ctypes.CDLL(None).usleep  # without a return to Python in between
class Slow:
    def __del__(self, sleep=sleep):
        sleep(1000000)
builtins.slow = Slow()
begun = threading.Event()
@_library.Gather
def gather(context, blob, size, take, sink):
    begun.set()
    sleep(300000)
    return 0
def save():
    state = ctypes.c_void_p()
    _library.library.fsdp_state_create(_library.SHARDED, ctypes.byref(state))
    group = _library.options(_library.Group, rank=0, world_size=2, gather=gather)
    _library.library.fsdp_save(state, sys.argv[1].encode(), 1, group, None, None)
threading.Thread(target=save, daemon=True).start()
begun.wait()
"""


# Children forked while a thread saves; they exit as any program does.
FORK_OFTEN = """
import ctypes, os, signal, sys, threading
from fsdp_checkpoint import _library
library = _library.library
values = ctypes.create_string_buffer(1 << 20)
is_over = False
def save():
    step = 0
    while not is_over:
        step += 1
        state = ctypes.c_void_p()
        library.fsdp_state_create(_library.SHARDED, ctypes.byref(state))
        shard = (_library.Shard * 1)(_library.Shard(0, 1 << 18, ctypes.addressof(values)))
        library.fsdp_state_add_tensor(state, b"model/w", 1, 1, (ctypes.c_int64 * 1)(1 << 18), shard, 1)
        options = _library.options(_library.SaveOptions, overwrite=1)
        library.fsdp_save(state, sys.argv[1].encode(), step % 5 + 1, None, options, None)
        library.fsdp_state_free(state)
thread = threading.Thread(target=save)
thread.start()
codes = []
for _ in range(300):
    child = os.fork()
    if child == 0:
        is_over = True
        signal.alarm(60)
        sys.exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if codes[-1] != 0:
        break
is_over = True
thread.join()
assert set(codes) == {0}, codes
"""


class ExitTest(Case):
    def test_a_child_that_is_forked_while_a_thread_saves_exits(self):
        # From 3.12 on Python warns of os.fork in a process with threads.
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_OFTEN, self.root]
        done = subprocess.run(command, capture_output=True, timeout=300)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_an_interpreter_that_exits_finishes_the_saves_of_its_threads(self):
        for name, program in EXITS.items():
            with self.subTest(name):
                path = os.path.join(tempfile.mkdtemp(dir=self.root), "step-00000001")
                command = [sys.executable, "-c", EXITS_BEGIN + program, path]
                done = subprocess.run(command, capture_output=True, timeout=120)
                self.assertEqual(done.returncode, 1 if "exception" in name else 0, done.stderr)
                fsdp_checkpoint.verify(path)
                with fsdp_checkpoint.open(path) as checkpoint:
                    self.assertTrue((checkpoint["model/w"] == 3).all())

    def test_a_thread_that_the_interpreter_ends_in_a_callback_does_not_end_the_process(self):
        command = [sys.executable, "-c", CALLED_BACK_TOO_LATE, self.root]
        done = subprocess.run(command, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


SAVE_FOREVER = """
import sys, torch, torch.distributed.checkpoint as dcp
from fsdp_checkpoint.torch import Writer
print("ready", flush=True)
for step in range(1, 1000):
    dcp.save({"w": torch.full((1 << 20,), float(step))}, storage_writer=Writer(f"{sys.argv[1]}/step-{step:08}"))
"""


class KillTest(Case):
    def test_a_process_that_is_killed_while_it_saves_leaves_whole_checkpoints_alone(self):
        generator = random.Random(7)
        for round_number in range(8):
            root = f"{self.root}/{round_number}"
            child = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, root], stdout=subprocess.PIPE, text=True)
            child.stdout.readline()
            deadline = time.monotonic() + 60
            while not os.path.exists(root + "/step-00000001") and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(generator.random() * 0.2)
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
            steps = sorted(name for name in os.listdir(root) if name.startswith("step-"))
            self.assertTrue(steps)
            for name in steps:
                fsdp_checkpoint.verify(f"{root}/{name}")
            wanted = {"w": torch.zeros(1 << 20)}
            dcp.load(wanted, storage_reader=Reader(root))
            self.assertTrue(torch.equal(wanted["w"], torch.full((1 << 20,), float(int(steps[-1][5:])))))


if __name__ == "__main__":
    unittest.main(verbosity=2)

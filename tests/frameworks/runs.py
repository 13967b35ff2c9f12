# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a section of docs/frameworks.md: the first is killed after a save, the second continues on other
ranks, the rest convert."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import page

import fsdp_checkpoint

_RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
_SECONDS = 240  # of one run

STEPS = 12
SAVED = (3, 6, 9, 12)
KILLED_AT = 8  # after two saves, and between two

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",
    "CUDA_VISIBLE_DEVICES": "",
}


class FrameworkCase(unittest.TestCase):
    """The section `section` of the page. `environment` is what a framework's own launcher would set."""

    section = ""
    environment = {}

    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)

    def directory(self, name):
        path = os.path.join(self.root, name)
        os.makedirs(path, exist_ok=True)
        return path

    def launch(self, command, name, kill_at=None):
        """Runs a torchrun command of the page in the directory `name`. Returns its exit status, output, and losses by
        step."""
        ranks, example, *arguments = shlex.split(command)[1:]
        program = [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks, _RANK]
        environment = {**os.environ, **ENVIRONMENT, **self.environment}
        if kill_at is not None:
            environment["KILL_AT"] = f"step {kill_at}:"
        process = subprocess.Popen(
            [*program, str(page.EXAMPLES / example), *arguments],
            cwd=self.directory(name),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output = process.communicate(timeout=_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # torchrun ends its ranks
            self.fail(f"{command} still runs after {_SECONDS} s:\n{process.communicate()[0]}")
        lines = re.findall(r"^step (\d+): loss (\S+)$", output, re.MULTILINE)
        return process.returncode, output, {int(step): float(loss) for step, loss in lines}

    def run_page(self):
        """Kills, continues and converts, as the page says; compares with a run that is never stopped. Returns the
        directory with the results, and that of the other run's."""
        first, second, *conversions = page.commands(self.section)
        status, output, expected = self.launch(first, "never_stopped")
        self.assertEqual(status, 0, output)
        self.assertEqual(sorted(expected), list(range(1, STEPS + 1)), output)

        status, output, before = self.launch(first, "killed", kill_at=KILLED_AT)
        self.assertNotEqual(status, 0, output)
        self.assertIn("SIGKILL", output)
        self.assertEqual(max(before), KILLED_AT, output)

        status, output, after = self.launch(second, "killed")
        self.assertEqual(status, 0, output)
        self.assertIn(min(after, default=0) - 1, SAVED[:2], f"it has not continued after a save: {output}")
        self.assertEqual(sorted(after), list(range(min(after), STEPS + 1)), output)
        self.assert_close(before, expected)
        self.assert_close(after, expected)

        for name in ("killed", "never_stopped"):
            for command in conversions:
                subprocess.run(shlex.split(command), cwd=self.directory(name), check=True)
        return self.directory("killed"), self.directory("never_stopped")

    def assert_close(self, losses, expected):
        """The same up to rounding: other ranks sum in another order."""
        for step, loss in losses.items():
            self.assertLess(abs(loss - expected[step]), 2e-4 * abs(expected[step]), f"step {step}: {losses} {expected}")

    def assert_same_weights(self, file, shapes):
        """The converted weights of both runs are those of a model with these shapes, and equal up to rounding."""
        with fsdp_checkpoint.open(os.path.join(self.directory("killed"), file)) as a:
            with fsdp_checkpoint.open(os.path.join(self.directory("never_stopped"), file)) as b:
                weights, others = a.state_dict(), b.state_dict()
        self.assertEqual({name: tuple(weight.shape) for name, weight in weights.items()}, shapes)
        for name, weight in weights.items():
            difference = (weight - others[name]).abs().max().item()
            self.assertLess(difference, 2e-3, name)


def small_model(prefix=""):
    """The shapes of the examples' model."""
    shapes = {"0.weight": (33, 10), "0.bias": (33,), "2.weight": (10, 33), "2.bias": (10,)}
    return {prefix + name: shape for name, shape in shapes.items()}

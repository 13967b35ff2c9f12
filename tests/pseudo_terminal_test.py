#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs as a person meets them: on a pseudo-terminal of 50 and 120 columns, with ctrl-C, a full disk as stdout,
NO_COLOR, and the spellings of other command lines."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

PROGRAMS = {name: os.path.abspath(path) for name, path in (
    ("ckpt", "tools/ckpt"), ("launch", "tools/launch"), ("report", "tools/report"), ("simulate", "tools/simulate"),
    ("train_gpt", "train/train_gpt"))}
CKPT = ("inspect", "verify", "convert", "merge", "view", "diff", "prune", "repair", "push", "pull")
SCRATCH = os.environ["TEST_TMPDIR"]
RED = "\x1b[31m"

# What each program is asked for on a full disk: it prints a little, and nothing else goes wrong.
PRINTS = {
    "ckpt": [["inspect", "model.safetensors"], ["inspect", "model.safetensors", "--json"], ["verify", "model.safetensors"]],
    "launch": [["--nproc=1", "--", "/bin/echo", "x"]],
    "report": [["metrics.jsonl", "--html=page.html"]],
    "simulate": [[], ["--json"]],
    "train_gpt": [["--print_schedule", "--nproc=1"]],
}


def write_model(path, nbytes):
    """A safetensors file of one tensor of zeros, which take no room on the disk."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)


class Terminal:
    """A program on a pseudo-terminal, which is its controlling terminal: ctrl-C reaches it as a signal."""

    def __init__(self, command, columns, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        environment.update({"TERM": "xterm", **variables})
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            # The size must be there when the program starts.
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.chdir(SCRATCH)
            os.execve(command[0], command, environment)

    def read(self, seconds):
        """Takes what comes within that time; False at the end of the output."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:  # EIO: the program has ended
            data = b""
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self, seconds=60):
        """The exit status as a shell has it."""
        deadline = time.monotonic() + seconds
        while self.read(0.1):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"still running after {seconds} s: {self.text[-1000:]}")
        os.close(self.descriptor)
        status = os.waitpid(self.pid, 0)[1]
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def press_ctrl_c(self):
        os.write(self.descriptor, b"\x03")


def on_terminal(command, columns=80, **variables):
    """(exit status, what the terminal shows), lines ended by a newline only."""
    terminal = Terminal(command, columns, **variables)
    return terminal.wait(), terminal.text.replace("\r\n", "\n")


def run(command, **options):
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, cwd=SCRATCH, **options)


def processes(command_line):
    """The numbers of the processes with that command line."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                found += [number] if file.read() == command_line else []
        except OSError:  # it has ended
            pass
    return found


class HelpTest(unittest.TestCase):
    def helps(self):
        for name, path in PROGRAMS.items():
            yield name, [path, "--help"]
        for name in CKPT:
            yield f"ckpt {name}", [PROGRAMS["ckpt"], name, "--help"]

    def test_fits_the_terminal(self):
        for name, command in self.helps():
            for columns, most in ((50, 50), (120, 100)):
                status, text = on_terminal(command, columns)
                self.assertEqual(status, 0, name)
                # A word is never cut: a synopsis may have a long one.
                long = [line for line in text.splitlines() if len(line) > most and " " in line.strip()]
                self.assertEqual(long, [], name)
                self.assertNotIn("\x1b", text, name)
            self.assertTrue(any(len(line) > 80 for line in text.splitlines()), f"{name} leaves half of the width unused")

    def test_says_the_same_in_every_spelling(self):
        for name, path in PROGRAMS.items():
            wanted = run([path, "--help"])
            self.assertTrue(wanted.stdout.startswith(f"usage: {name} "), wanted.stdout[:80])
            for spelling in ("-h", "help", "-help"):
                found = run([path, spelling])
                self.assertEqual((found.returncode, found.stdout), (0, wanted.stdout), f"{name} {spelling}")
            version = run([path, "--version"])
            self.assertRegex(version.stdout, rf"^{name} \d+\.\d+\.\d+\n$")
            for spelling in ("-V", "version"):
                self.assertEqual(run([path, spelling]).stdout, version.stdout, f"{name} {spelling}")

    def test_has_examples_exit_status_and_environment(self):
        for name, command in self.helps():
            text = run(command).stdout
            self.assertRegex(text, r"\nexit status: ", name)
            self.assertRegex(text, r"\nenvironment: ", name)
            if name == "ckpt":  # its subcommands have them
                continue
            examples = text.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
            starts = [line for line in examples if line.startswith(f"  {name} ")]
            self.assertGreaterEqual(len(starts), 2, f"{name}: {examples}")


class MistakeTest(unittest.TestCase):
    def test_a_misspelt_flag_is_corrected(self):
        for name, typed, meant in (
                ("ckpt", ["inspect", "x", "--jsn"], "--json"), ("ckpt", ["inspct", "x"], "inspect"),
                ("launch", ["--nproc-per-node=2", "--", "x"], "--nproc"), ("report", ["m.jsonl", "--htm=x"], "--html"),
                ("simulate", ["--rank=8"], "--ranks"), ("train_gpt", ["--step=4"], "--steps")):
            found = run([PROGRAMS[name], *typed])
            self.assertEqual((found.returncode, found.stdout), (2, ""), name)
            self.assertIn(f"(did you mean {meant}?)", found.stderr)
            wrong = [word for word in typed if word == "inspct" or word.startswith("--")][0]
            self.assertIn(wrong.partition("=")[0], found.stderr)

    def test_dashes_are_underscores(self):
        for name, typed in (("simulate", ["--seq-len=1024", "--batch-size=2"]),
                            ("launch", ["--nproc=1", "--run-id=x", "--", "/bin/true"]),
                            ("train_gpt", ["--print-schedule", "--nproc=1", "--no-limit-all-gathers"])):
            found = run([PROGRAMS[name], *typed])
            self.assertEqual((found.returncode, found.stderr), (0, ""), name)

    def test_dtypes_have_the_names_of_other_programs(self):
        for name, typed in (("simulate", ["--dtype=bf16", "--reduce_dtype=torch.float32"]),
                            ("train_gpt", ["--print_schedule", "--nproc=1", "--param_dtype=bf16", "--dtype=fp32"])):
            found = run([PROGRAMS[name], *typed])
            self.assertEqual((found.returncode, found.stderr), (0, ""), name)

    def test_a_wrong_value_is_answered_with_what_was_expected(self):
        for name, typed, message in (
                ("ckpt", ["convert", "a", "b", "--world_size=two"], "--world_size=two, expected a whole number;"),
                ("launch", ["--nproc=auto", "--", "x"], "--nproc=auto, expected a whole number;"),
                ("launch", ["--timeout=5", "--", "x"], "--timeout=5, expected a duration such as 90s, 5m or 2h;"),
                ("launch", ["--nproc=2"], "a program after -- is missing;"),
                ("launch", ["--", "x"], "--nproc is missing"),
                ("simulate", ["--published=x", "--json"], "--published makes a table of text only"),
                ("simulate", ["--batch_size=1.5"], "--batch_size=1.5, expected a whole number;"),
                ("train_gpt", ["--limit_all_gathers=no way"], "--limit_all_gathers=no way, expected true or false;"),
                ("train_gpt", ["--help=steps"], "flag --help takes no value;")):
            found = run([PROGRAMS[name], *typed])
            self.assertEqual(found.returncode, 2, found)
            self.assertIn(f"{name}", found.stderr)
            self.assertIn(message, found.stderr)

    def test_json_has_one_form(self):
        for command in (["ckpt", "verify", "absent", "--json"], ["ckpt", "inspect", "absent", "--json"],
                        ["ckpt", "convert", "absent", "x.pt", "--json"], ["ckpt", "diff", "absent", "absent", "--json"],
                        ["ckpt", "prune", "absent", "--keep_last=1", "--json"], ["ckpt", "repair", "absent", "--json"],
                        ["ckpt", "view", "absent", "x.h5", "--json"], ["ckpt", "push", "absent", "s3://models/x", "--json"],
                        ["ckpt", "inspect", "--json"], ["ckpt", "inspect", "x", "--json", "--colour"],
                        ["simulate", "--json", "--colour"], ["simulate", "--ranks=many", "--json"],
                        ["simulate", "--json", "--config=absent.json"], ["simulate", "--ranks=0", "--json"]):
            found = run([PROGRAMS[command[0]], *command[1:]])
            self.assertIn(found.returncode, (1, 2), command)
            result = json.loads(found.stdout)
            self.assertEqual(result["problems"], [result["problem"]], command)
            self.assertNotEqual(found.stderr, "", command)


class StdoutTest(unittest.TestCase):
    def setUp(self):
        write_model(f"{SCRATCH}/model.safetensors", 64)
        with open(f"{SCRATCH}/metrics.jsonl", "w", encoding="utf-8") as file:
            file.write('{"step":0,"loss":2.5,"grad_norm":1.0,"lr":0.001,"tokens_per_second":10,"step_seconds":1,'
                       '"peak_bytes":1}\n')

    def test_a_full_disk_is_a_failure(self):
        for name, lines in PRINTS.items():
            for arguments in [["--help"], *lines]:
                command = [PROGRAMS[name], *arguments]
                self.assertEqual(run(command).returncode, 0, command)
                with open("/dev/full", "w", encoding="utf-8") as full:
                    found = run(command, stdout=full)
                self.assertEqual(found.returncode, 1, command)
                self.assertIn(f"{name}: stdout: ", found.stderr, command)

    def test_a_closed_stdout_is_a_failure(self):
        """Regression: the next file had the number of stdout, and launch waited for it for ever."""
        for name, lines in PRINTS.items():
            for arguments in lines:
                found = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&- <&-', "sh", PROGRAMS[name], *arguments],
                                       stderr=subprocess.PIPE, text=True, timeout=120, cwd=SCRATCH)
                self.assertEqual(found.returncode, 1, arguments)
                self.assertIn(f"{name}: stdout: Bad file descriptor", found.stderr)

    def test_a_closed_stdout_is_no_other_file(self):
        """Regression: the log of a run was written into its metrics."""
        run(["/bin/sh", "-c", 'exec "$@" >&-', "sh", PROGRAMS["train_gpt"], "--nproc=1", "--steps=2", "--seq_len=16",
             "--batch_size=1", "--metrics=closed.jsonl"])
        with open(f"{SCRATCH}/closed.jsonl", encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["step"] for line in file], [0, 1])

    def test_colour_is_for_terminals_only(self):
        ckpt = PROGRAMS["ckpt"]
        # A name of its own for each test: they may run in any order.
        run([ckpt, "convert", "model.safetensors", "damaged", "--force"], check=True)
        with open(f"{SCRATCH}/damaged/checkpoint.h5", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        command = [ckpt, "verify", "damaged"]
        status, text = on_terminal(command)
        self.assertEqual(status, 1)
        self.assertIn(f"{RED}damaged: ", text)
        for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn("\x1b[3", on_terminal(command, **variables)[1])
        self.assertIn(RED, on_terminal(command, NO_COLOR="")[1])  # no-color.org: if it is not empty
        self.assertNotIn("\x1b", run(command).stdout)


class ProgressTest(unittest.TestCase):
    """The bar of a command that takes a while."""

    def lines(self, columns):
        for gigabytes in (3, 12, 48):  # a sparse file; a fast machine is through before the first bar
            write_model(f"{SCRATCH}/large.safetensors", gigabytes << 30)
            status, text = on_terminal([PROGRAMS["ckpt"], "verify", "large.safetensors"], columns)
            self.assertEqual(status, 0, text)
            # Each redraw begins with a return and ends with the command that clears the rest of the line.
            redraws = re.findall(r"\r([^\r\n]*)\x1b\[K", text)
            if len(redraws) > 1:
                break
        self.assertGreater(len(redraws), 1, "too fast to see a bar")
        for redraw in redraws:
            self.assertLess(len(redraw), columns, redraw)
        self.assertRegex(redraws[-1], "100%")
        return redraws

    def test_is_not_for_a_terminal_without_commands(self):
        write_model(f"{SCRATCH}/large.safetensors", 12 << 30)
        status, text = on_terminal([PROGRAMS["ckpt"], "verify", "large.safetensors"], TERM="dumb")
        self.assertEqual(status, 0, text)
        self.assertNotRegex(text, "[\r\x1b]")

    def test_is_one_line_of_any_width(self):
        self.assertTrue(all("[" not in line for line in self.lines(50)))
        self.assertTrue(all(re.match(r"verify \[=* *\] +\d+%", line) for line in self.lines(120)))


class InterruptTest(unittest.TestCase):
    """ctrl-C at the keyboard: the program ends by the signal, and nothing half-written is left."""

    def interrupt(self, command, has_begun):
        terminal = Terminal(command, 80)
        deadline = time.monotonic() + 60
        while not has_begun(terminal) and time.monotonic() < deadline:
            self.assertTrue(terminal.read(0.002), terminal.text)
        terminal.press_ctrl_c()
        self.assertEqual(terminal.wait(), 128 + signal.SIGINT, terminal.text)
        return terminal.text

    def test_a_conversion_leaves_nothing(self):
        write_model(f"{SCRATCH}/huge.safetensors", 4 << 30)
        outputs = f"{SCRATCH}/outputs"
        os.makedirs(outputs)
        for name in ("a.safetensors", "a.pt", "a.h5", "directory"):
            text = self.interrupt([PROGRAMS["ckpt"], "convert", "huge.safetensors", f"outputs/{name}"],
                                  lambda terminal: "%" in terminal.text and os.listdir(outputs))
            self.assertIn(f"interrupted: outputs/{name} was not made, and nothing of it is left", text)
            self.assertEqual(os.listdir(outputs), [], name)

    def test_launch_stops_its_ranks(self):
        # Their name is in no other process.
        text = self.interrupt([PROGRAMS["launch"], "--nproc=2", "--", "/bin/sh", "-c", "echo started; sleep 987"],
                              lambda terminal: terminal.text.count("started") == 2)
        self.assertIn("launch: ", text)
        deadline = time.monotonic() + 10  # the kernel ends a killed process when it likes
        while processes(b"sleep\x00987\x00") and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(processes(b"sleep\x00987\x00"), [])

    def test_training_leaves_no_half_written_step(self):
        os.makedirs(f"{SCRATCH}/runs")
        self.interrupt([PROGRAMS["train_gpt"], "--nproc=2", "--steps=100000", "--checkpoint_dir=runs",
                        "--checkpoint_every=1", "--keep_last=2"],
                       lambda terminal: any(name.startswith("step-") for name in os.listdir(f"{SCRATCH}/runs")))
        self.assertTrue(all(re.fullmatch(r"step-\d{8}", name) for name in os.listdir(f"{SCRATCH}/runs")),
                        os.listdir(f"{SCRATCH}/runs"))


if __name__ == "__main__":
    unittest.main()

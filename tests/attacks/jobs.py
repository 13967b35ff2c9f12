# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks: stopped ranks, strangers on their ports, and ranks that were given different things."""

import ctypes.util
import json
import os
import shutil
import signal
import socket
import threading
import time

from damage import damage
from inputs import CONFIG, NEWEST, training
from kills import check_steps, environment, wait_for_ranks
from trial import Skip


class Job:
    """Ranks over `net`, as between hosts, or `shm`, that train until they are ended. In a `with`, which ends them."""

    def __init__(self, trial, limits="", backend="net"):
        if backend == "net" and not ctypes.util.find_library("ucp"):
            raise Skip("there is no libucp.so.0 (Debian: libucx0)")
        self.trial, self.root = trial, trial.path("out/run")
        flags = training(trial.inputs, f"--checkpoint_dir={self.root}", "--checkpoint_every=5", "--keep_last=2",
                         steps=1000000, backend=backend)
        self.log = open(trial.dir + ".log", "w+b")
        self.process = trial.start("launch", "--nproc=2", "--", trial.programs["train_gpt"], *flags, output=self.log,
                                   limits=limits)

    def __enter__(self):
        self.ranks = wait_for_ranks(self.trial, self.process, 2)
        return self

    def __exit__(self, *_):
        self.trial.clean()
        self.process.wait()
        self.log.close()

    def text(self):
        self.log.seek(0)
        self.trial.raw = self.log.read()
        text = self.trial.raw.decode("utf-8", "replace")
        self.trial.check_text(text)
        return text

    def advances(self, seconds=20):
        """True once a step is saved that was not there."""
        newest = max(os.listdir(self.root), default="")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if max((name for name in os.listdir(self.root) if name.startswith("step-")), default="") > newest:
                return True
            time.sleep(0.05)
        return False


def stopped_rank(trial):
    """A rank is stopped: the others name it and end with status 75 within 15 s, and no step is torn."""
    backend = "net" if trial.rng.random() < 0.5 and ctypes.util.find_library("ucp") else "shm"
    trial.note(f"backend {backend}")
    with Job(trial, backend=backend) as job:
        time.sleep(trial.rng.random() * 0.5)
        number = trial.rng.randrange(2)
        os.kill(job.ranks[number], signal.SIGSTOP)
        began = time.monotonic()
        others = [pid for pid in job.ranks if pid != job.ranks[number]]
        while any(environment(pid) for pid in others) and time.monotonic() < began + 15:
            time.sleep(0.05)
        trial.note(f"rank {number} is stopped; the other has ended after {time.monotonic() - began:.1f} s")
        trial.expect(not any(map(environment, others)), "the other rank still waits after 15 s")
        os.kill(job.ranks[number], signal.SIGCONT)
        trial.expect(not trial.ended(45), "the launcher still runs")
        trial.expect(f"rank {number}" in job.text(), f"rank {number} is not named")
        trial.expect(job.process.wait() == 75, f"exit status {job.process.returncode}, expected 75")
        check_steps(trial, job.root)


def listening(pids):
    """(address, port) of every TCP socket on which these processes listen."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                pass  # closed meanwhile
    found = []
    for family, table in ((socket.AF_INET, "/proc/net/tcp"), (socket.AF_INET6, "/proc/net/tcp6")):
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                address, port = row[1].split(":")
                words = b"".join(bytes.fromhex(address[i:i + 8])[::-1] for i in range(0, len(address), 8))
                found.append((family, socket.inet_ntop(family, words), int(port, 16)))
    return found


def strangers(trial):
    """Idle connections and garbage on every port of a job whose ranks may open few files: training goes on."""
    limit = trial.rng.choice((256, 512, 1024))
    with Job(trial, limits=f"-n {limit}") as job:
        ports = listening(trial.processes())
        idle = trial.rng.choice((0, limit * 2))
        trial.note(f"{limit} files; {idle} idle connections and garbage on {ports}")
        connections = []
        for number in range(idle):
            connections += connect(ports[number % len(ports):][:1]) if ports else []
        for _ in range(20):
            for connection in connect(ports):
                try:
                    connection.sendall(trial.rng.choice((b"\xff" * 8, b"\0" * 8, b"GET / HTTP/1.1\r\n\r\n", b""))
                                       + trial.rng.randbytes(trial.rng.choice((1, 100, 10000))))
                except OSError:
                    pass  # it has been closed
                connections.append(connection)
        try:
            trial.expect(job.advances() and job.advances(), "training does not go on")
        finally:
            job.text()
            for connection in connections:
                connection.close()
        trial.expect(job.process.poll() is None, f"the job has ended with {job.process.returncode}")


def early_strangers(trial):
    """Idle connections on every port of a job as soon as it is open, while its ranks meet: the job begins."""
    limit = trial.rng.choice((256, 512))
    job, connections, begins = Job(trial, limits=f"-n {limit}"), [], threading.Event()

    def flood():
        seen = set()
        while not begins.is_set():
            try:
                places = set(listening(trial.processes())) - seen
            except OSError:
                continue  # a process has ended meanwhile
            for place in places:
                seen.add(place)
                connections.extend(connection for _ in range(limit * 2) for connection in connect([place]))
            time.sleep(0.01)

    stranger = threading.Thread(target=flood)
    stranger.start()
    try:
        with job:
            begins.set()
            trial.note(f"{limit} files; {len(connections)} idle connections")
            trial.expect(job.advances(), "training does not go on")
            job.text()
    finally:
        begins.set()
        stranger.join()
        for connection in connections:
            connection.close()


def connect(ports):
    connections = []
    for family, address, port in ports:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(1)
        try:
            connection.connect((address, port))
            connections.append(connection)
        except OSError:
            connection.close()  # the port is closed, or its queue is full: not the job's fault
    return connections


def run_ranks(trial, flags, seconds=30):
    """Two ranks started by hand, each with its own flags. Returns exit statuses and texts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = [open(f"{trial.dir}.log{rank}", "w+b") for rank in range(2)]
    ranks = [trial.start("train_gpt", *flags[rank], output=logs[rank],
                         environment={"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                                      "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
             for rank in range(2)]
    left = trial.ended(seconds)
    texts = []
    for log in logs:
        with log:
            log.seek(0)
            texts.append(log.read().decode("utf-8", "replace"))
        trial.check_text(texts[-1])
    trial.raw = "\n".join(texts).encode()
    trial.expect(not left, f"{left} still run after {seconds} s")
    return [rank.wait() for rank in ranks], texts


def different_files(trial):
    """Ranks to which one flag gives different files: refused before a step, and the rank is named."""
    flag = trial.rng.choice(("init_from", "resume", "tokens", "config"))
    first, second = trial.path("in/first"), trial.path("in/second")
    name = {"tokens": "tokens.u16", "config": "config.json", "resume": "run", "init_from": trial.rng.choice(
        ("run", "model.safetensors", "model.pt", "model.npz", "dcp", "hub", "model.gguf", "megatron"))}[flag]
    source = other = trial.inputs[name]
    if name == "run":
        source = os.path.join(source, NEWEST)
        other = trial.rng.choice((os.path.join(trial.inputs["other"], NEWEST), source[:-1] + "4"))
    for path, from_ in ((first, source), (second, other)):
        (shutil.copytree if os.path.isdir(from_) else shutil.copy2)(from_, path)
    if flag == "config":
        with open(second, "w") as file:
            json.dump(CONFIG | trial.rng.choice(({"n_head": 2}, {"layer_norm_epsilon": 1e-6}, {"n_layer": 1})), file)
    elif other == source:
        file, words = damage(trial.rng, second)
        trial.note(f"{words} of {file}")
    trial.note(f"--{flag} is {source} and {other}")
    statuses, texts = run_ranks(trial, [
        [f for f in training(trial.inputs, "--run_id=R", f"--checkpoint_dir={trial.path('out/run')}", steps=8)
         if not f.startswith(f"--{flag}=")] + [f"--{flag}={path}"] for path in (first, second)])
    trial.expect(all(statuses), f"exit statuses {statuses} with different --{flag}")
    trial.expect(not os.path.exists(trial.path("out/run")) or not os.listdir(trial.path("out/run")), "a step is saved")
    trial.expect(not any("step 0 of" in text for text in texts), "a step was trained")
    trial.expect("rank 1" in texts[0] + texts[1], "rank 1 is not named")


def different_flags(trial):
    """Ranks that differ in one flag which changes the results: refused by its name."""
    name, value = trial.rng.choice((("lr", 0.1), ("seed", 5), ("weight_decay", 0.5), ("beta2", 0.5), ("steps", 9),
                                    ("seq_len", 8), ("checkpoint_every", 7), ("param_dtype", "bfloat16"),
                                    ("state_dict_type", "full"), ("warmup_steps", 3), ("max_grad_norm", 0.01)))
    trial.note(f"--{name}={value}")
    flags = [training(trial.inputs, "--run_id=R", f"--checkpoint_dir={trial.path('out/run')}") for _ in range(2)]
    flags[1] = [flag for flag in flags[1] if not flag.startswith(f"--{name}=")] + [f"--{name}={value}"]
    statuses, texts = run_ranks(trial, flags)
    trial.expect(all(statuses), f"exit statuses {statuses} with a different --{name}")
    trial.expect(any(name in text for text in texts), f"--{name} is not named")


ATTACKS = [stopped_rank, strangers, early_strangers, different_files, different_flags]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of upload_benchmark.sh, whose header defines the figures.

  upload_table.py link HOST PORT             bytes per second of 64 MB through a plain socket
  upload_table.py send HOST PORT CHECKPOINT METRICS
                                             the files of CHECKPOINT through a plain socket, from the first line of METRICS
                                             on; prints the number of bytes and of seconds
  upload_table.py table WORK ROUNDS RATE     the figures; exit status 3 if a goal was missed
"""

import json
import os
import pathlib
import re
import socket
import statistics
import sys
import time

WARMUP = 3


def link(host, port):
    piece, count = bytes(1 << 20), 64
    with socket.create_connection((host, int(port))) as connection:
        begin = time.perf_counter()
        for _ in range(count):
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        if int(connection.recv(64)) != count << 20:
            sys.exit("upload_table.py: the link lost bytes")
        print((count << 20) / (time.perf_counter() - begin))


def send(host, port, checkpoint, metrics):
    metrics = pathlib.Path(metrics)
    limit = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size):
        if time.monotonic() > limit:
            sys.exit(f"upload_table.py: {metrics} has no line after 60 s")
        time.sleep(0.01)
    begin, count = time.perf_counter(), 0
    with socket.create_connection((host, int(port))) as connection:
        for path in sorted(pathlib.Path(checkpoint).rglob("*.h5")):
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                offset = 0
                while offset < size:
                    offset += os.sendfile(connection.fileno(), file.fileno(), offset, size - offset)
                count += size
        connection.shutdown(socket.SHUT_WR)
        if int(connection.recv(64)) != count:
            sys.exit("upload_table.py: the link lost bytes")
    print(count, time.perf_counter() - begin)


def seconds_of(text):
    """Abseil's durations: 1h2m3.5s, 875ms."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|h|m|s)", text))


def uploads(log):
    """(bytes, seconds) of each upload that a run reports."""
    return [(int(nbytes), seconds_of(took))
            for nbytes, took in re.findall(r"^uploaded \S+, (\d+) bytes in (\S+)$", log.read_text(), re.MULTILINE)]


def steps(metrics):
    return [json.loads(line)["step_seconds"] for line in metrics.read_text().splitlines()]


def steps_within(seconds, limit):
    """How many of the steps have ended after `limit` seconds."""
    ended, total = 0, 0.0
    for step in seconds:
        total += step
        ended += total < limit
    return ended


def slowed(beside, alone, seconds):
    """(count, ratio of means, ratio of medians) of the steps that ended within `seconds`, over as many of `alone`."""
    count = steps_within(beside, seconds)
    if count <= WARMUP:
        sys.exit(f"upload_table.py: {count} steps ended while the bytes were sent, expected more")
    beside, alone = beside[WARMUP:count], alone[WARMUP:count]
    return (count, statistics.mean(beside) / statistics.mean(alone), statistics.median(beside) / statistics.median(alone))


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def table(work, rounds, rate):
    work = pathlib.Path(work)
    links = [float(line) for line in (work / "links").read_text().split()]
    training, waiting, largest = [], [], 0
    by_upload, by_socket = [], []
    for number in range(1, int(rounds) + 1):
        done = uploads(work / f"with-{number}.log")
        if len(done) != 2:
            sys.exit(f"upload_table.py: round {number}: {len(done)} uploads are reported, expected 2")
        for shares, (nbytes, took) in zip((training, waiting), done):
            shares.append(nbytes / took / links[number - 1])
            largest = max(largest, nbytes)
        alone = steps(work / f"without-{number}.jsonl")
        by_upload.append(slowed(steps(work / f"with-{number}.jsonl"), alone, done[0][1]))
        sent = (work / f"socket-{number}.sent").read_text().split()
        by_socket.append(slowed(steps(work / f"socket-{number}.jsonl"), alone, float(sent[1])))

    def row(index):
        upload, plain = [[one[index] for one in of] for of in (by_upload, by_socket)]
        return f"{spread(upload)}, with a plain socket {spread(plain)}"

    print(f"\nlink {rate}, by a plain socket {statistics.median(links) * 8e-6:.1f} Mbit/s; {rounds} rounds, {largest} bytes, "
          f"{min(one[0] for one in by_upload)} to {max(one[0] for one in by_upload)} steps during an upload")
    print(f"upload / link, while training   {spread(training)}, goal at least 0.9")
    print(f"upload / link, while waiting    {spread(waiting)}")
    print(f"steps slowed, of means          {row(1)}, goal at most 1.03")
    print(f"steps slowed, of medians        {row(2)}")
    missed = statistics.median(training) < 0.9 or statistics.median(one[1] for one in by_upload) > 1.03
    print("a goal was MISSED" if missed else "both goals held")
    sys.exit(3 if missed else 0)


def main():
    if sys.argv[1] == "link":
        return link(*sys.argv[2:])
    if sys.argv[1] == "send":
        return send(*sys.argv[2:])
    return table(*sys.argv[2:])


main()

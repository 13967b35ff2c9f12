#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of upload_benchmark.sh that are arithmetic; its head says what the figures are.

  upload_table.py link HOST PORT             bytes per second of 64 MB through a plain socket
  upload_table.py table WORK ROUNDS RATE     the figures; exit status 3 if a goal was missed
"""

import json
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


def table(work, rounds, rate):
    work = pathlib.Path(work)
    links = [float(line) for line in (work / "links").read_text().split()]
    training, waiting, means, medians, counts, largest = [], [], [], [], [], 0
    for number in range(1, int(rounds) + 1):
        done = uploads(work / f"with-{number}.log")
        if len(done) != 2:
            sys.exit(f"upload_table.py: round {number}: {len(done)} uploads are reported, expected 2")
        for shares, (nbytes, took) in zip((training, waiting), done):
            shares.append(nbytes / took / links[number - 1])
            largest = max(largest, nbytes)
        beside, alone = steps(work / f"with-{number}.jsonl"), steps(work / f"without-{number}.jsonl")
        count = steps_within(beside, done[0][1])
        if count <= WARMUP:
            sys.exit(f"upload_table.py: round {number}: {count} steps ended during the upload, expected more")
        counts.append(count)
        means.append(statistics.mean(beside[WARMUP:count]) / statistics.mean(alone[WARMUP:count]))
        medians.append(statistics.median(beside[WARMUP:count]) / statistics.median(alone[WARMUP:count]))

    def spread(values):
        return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"

    print(f"\nlink {rate}, by a plain socket {statistics.median(links) * 8e-6:.1f} Mbit/s; {rounds} rounds, {largest} bytes, "
          f"{min(counts)} to {max(counts)} steps during an upload")
    print(f"upload / link, while training   {spread(training)}, goal at least 0.9")
    print(f"upload / link, while waiting    {spread(waiting)}")
    print(f"steps slowed, of means          {spread(means)}, goal at most 1.03")
    print(f"steps slowed, of medians        {spread(medians)}")
    missed = statistics.median(training) < 0.9 or statistics.median(means) > 1.03
    print("a goal was MISSED" if missed else "both goals held")
    sys.exit(3 if missed else 0)


def main():
    if sys.argv[1] == "link":
        return link(*sys.argv[2:])
    return table(*sys.argv[2:])


main()

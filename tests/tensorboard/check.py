#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares TensorBoard's view of a directory of event files with a metrics file of the same run.

  check.py EVENTS METRICS

By its own reader (EventAccumulator), then by its server over HTTP, as a browser requests it.
"""

import json
import struct
import subprocess
import sys
import time
import urllib.request

import tensorboard
from tensorboard.backend.event_processing import event_accumulator

CURVES = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr",
          "speed/tokens_per_second": "tokens_per_second", "memory/peak_bytes": "peak_bytes",
          "speed/hidden_share": "hidden_share"}


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def check_reader(directory, steps):
    events = event_accumulator.EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    for tag, name in CURVES.items():
        got = [(event.step, event.value) for event in events.Scalars(tag)]
        want = [(step, as_float(line[name])) for step, line in sorted(steps.items())]
        assert got == want, f"{tag}: {got} != {want}"
    texts = {tag: [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(tag)]
             for tag in ("checkpoint", "restart")}
    # At a restart this reader forgets only scalars, so the marks of the first run stay.
    assert [step for step, _ in texts["checkpoint"]] == [3, 7, 9, 7, 11], texts
    assert len(texts["restart"]) == 1 and texts["restart"][0][0] == 4, texts
    assert "step-00000004 on 2 ranks" in texts["restart"][0][1], texts
    return texts


def ask(url, server):
    deadline = time.time() + 60
    while True:
        try:
            with urllib.request.urlopen(url) as reply:
                return json.load(reply)
        except OSError:
            if time.time() > deadline or server.poll() is not None:
                raise
            time.sleep(0.2)


def check_server(directory, steps):
    server = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", directory, "--port", "0", "--host",
                               "127.0.0.1", "--load_fast=false"], stderr=subprocess.PIPE, text=True)
    try:
        address = next(word for line in server.stderr for word in line.split() if word.startswith("http://127.0.0.1"))
        for _ in range(100):
            tags = ask(address + "data/plugin/scalars/tags", server).get(".", {})
            if set(CURVES) <= set(tags):
                break
            time.sleep(0.2)
        assert set(CURVES) <= set(tags), tags
        points = ask(address + "data/plugin/scalars/scalars?run=.&tag=train%2Floss", server)
        assert [point[1] for point in points] == sorted(steps), points
        marks = ask(address + "data/plugin/text/tags", server)
        assert set(marks["."]) == {"checkpoint", "restart"}, marks
    finally:
        server.terminate()
        server.wait()


def main():
    directory, metrics = sys.argv[1:]
    with open(metrics, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    steps = {line["step"]: line for line in lines}
    assert len(lines) > len(steps), "no step was trained twice"
    texts = check_reader(directory, steps)
    check_server(directory, steps)
    print(f"tensorboard {tensorboard.version.VERSION}: {len(CURVES)} curves of {len(steps)} steps, of which "
          f"{len(lines) - len(steps)} were trained twice; {sum(map(len, texts.values()))} marks; PASSED")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws one step of a rank from a trace that train_gpt --trace wrote, as text: a line per stream, time to the right.

  draw_trace.py trace.json [--rank=0] [--step=-1] [--columns=110]

--step counts from 0, or from the end when negative; a step ends with its optimizer. Standard library only.
"""

import argparse
import json
import sys

LETTERS = {"all_gather": "G", "reduce_scatter": "R", "all_reduce": "A", "forward": "F", "backward": "B"}
OTHERS = {"loss": "L", "clip_grad_norm": "C", "optimizer": "O"}


def read_spans(path, rank):
    """{stream: [(begin, end, name)]} of one rank, in milliseconds, each sorted by time."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    events = [event for event in events if event["pid"] == rank]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            begin = event["ts"] / 1000
            spans[names[event["tid"]]].append((begin, begin + event["dur"] / 1000, event["name"]))
    return {name: sorted(row) for name, row in spans.items()}


def step_window(spans, step):
    ends = [end for row in spans.values() for _, end, name in row if name == "optimizer"]
    if not -len(ends) <= step < len(ends):
        sys.exit(f"draw_trace.py: the trace has {len(ends)} steps")
    step %= len(ends)
    begin = ends[step - 1] if step else min(row[0][0] for row in spans.values() if row)
    return begin, ends[step]


def label(name, units):
    """Two characters: the kind of work and the unit's number, r for the root."""
    what, _, unit = name.partition(" ")
    if what in OTHERS:
        return OTHERS[what] * 2
    return LETTERS.get(what, "?") + ("r" if unit == "root" else str(units.index(unit) % 10))


def draw_row(row, begin, end, columns, units):
    line = [" "] * columns
    scale = columns / (end - begin)
    for start, stop, name in sorted(row, key=lambda span: span[0] - span[1]):  # longest first, under the others
        first, last = int((start - begin) * scale), int((stop - begin) * scale)
        text = label(name, units)
        for column in range(first, min(max(last, first + 2), columns)):
            line[column] = text[column - first] if column - first < 2 else "-"
    return "".join(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--step", type=int, default=-1)
    parser.add_argument("--columns", type=int, default=110)
    args = parser.parse_args()
    spans = read_spans(args.trace, args.rank)
    if not spans:
        sys.exit(f"draw_trace.py: {args.trace} has no rank {args.rank}")
    begin, end = step_window(spans, args.step)
    names = {name.partition(" ")[2] for row in spans.values() for _, _, name in row} - {"", "root"}
    units = sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in name.split(".")])
    print(f"rank {args.rank}, one step of {end - begin:.1f} ms; one column is {(end - begin) / args.columns:.2f} ms")
    for stream in ("unshard", "compute", "post_backward", "all_reduce"):
        row = [span for span in spans.get(stream, []) if span[0] >= begin and span[1] <= end]
        if row:
            print(f"{stream:>13} |{draw_row(row, begin, end, args.columns, units)}|")
    busy = sum(stop - start for start, stop, name in spans.get("unshard", []) + spans.get("post_backward", [])
               if start >= begin and stop <= end)
    print(f"  r root, {', '.join(f'{i % 10} {unit}' for i, unit in enumerate(units))}; collectives {busy:.1f} ms")


if __name__ == "__main__":
    main()

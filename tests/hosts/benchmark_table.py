#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The measurements of benchmark.sh, as a table with the goals.

  benchmark_table.py note ROUND LAYOUT WHO LOAD < OUTPUT   lines of JSON from the output of one program
  benchmark_table.py table RATE < LINES                    the table; exit status 3 if a goal was missed

Times are milliseconds of one collective, the slowest rank's, the median over rounds. A ratio is the median over rounds of
the ratio within a round, with its lowest and highest.

  wire   plain sockets between the hosts, both ways at the same time: for as many bytes as the route puts on a host's
  link; for 4 KiB: as many bytes there and back (a ping-pong). Measured in turn with ours, batch by batch
  wire'  ours / wire
  gloo'  Gloo / ours, mpi': Open MPI / ours
"""

import json
import statistics
import sys

SMALL = 4 << 10

# (layouts, operation, smallest size, which ratio, goal): ours / wire at most, peers / ours at least.
LIMITED = [
    ({"2x1", "2x2"}, "all_gather", 16 << 20, "wire", 1.08),
    ({"2x1", "2x2"}, "reduce_scatter", 16 << 20, "wire", 1.15),
    ({"2x4"}, "reduce_scatter", 16 << 20, "wire", 1.2),
    ({"2x1", "2x2"}, "all_gather", 16 << 20, "gloo", 2),
    ({"2x1", "2x2"}, "reduce_scatter", 16 << 20, "gloo", 2),
    ({"2x1", "2x2"}, "all_gather", 16 << 20, "mpi", 2),
    ({"2x1", "2x2"}, "reduce_scatter", 16 << 20, "mpi", 2),
    ({"2x1"}, "all_gather", SMALL, "wire", 2),
]
UNLIMITED = [
    ({"2x1"}, "all_gather", 256 << 20, "wire", 1.25),  # 0.8 of the speed of sockets
    ({"2x1"}, "all_gather", SMALL, "wire", 2),
]


def note(number, layout, who, load):
    """Ours prints an object with rows, the others one row per line; both begin a line with a brace."""
    text = sys.stdin.read()
    decoder, rows, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        found, end = decoder.raw_decode(text, at)
        rows += found.get("rows", [found])
        at = text.find("{", end)
    if not rows:
        sys.exit("benchmark_table.py: no rows")
    for row in rows:
        print(json.dumps({"round": int(number), "layout": layout, "who": who, "load": float(load), "op": row["op"],
                          "bytes": row["bytes"], "ms": row["time_us"] / 1e3,
                          "share": row.get("share_of_limit"), "floor": row.get("floor_us", 0) / 1e3}))


def goal_of(goals, layout, op, nbytes, which):
    for layouts, goal_op, least, goal_which, goal in goals:
        if layout in layouts and op == goal_op and which == goal_which and (
                nbytes == SMALL if least == SMALL else nbytes >= least):
            return goal
    return None


class Table:
    def __init__(self, lines, goals):
        self.goals, self.missed, self.held = goals, 0, 0
        self.rows = {}  # (layout, op, bytes) -> who -> round -> row
        for row in lines:
            key = (row["layout"], row["op"], row["bytes"])
            self.rows.setdefault(key, {}).setdefault(row["who"], {})[row["round"]] = row

    def ratio(self, key, which, ratios):
        """The cell: the median, its range, and the goal if there is one."""
        if not ratios:
            return "-"
        median = statistics.median(ratios)
        cell = f"{median:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        goal = goal_of(self.goals, *key, which)
        if goal is None:
            return cell
        ok = median <= goal if which == "wire" else median >= goal
        self.held += ok
        self.missed += not ok
        return f"{cell} {'<=' if which == 'wire' else '>='} {goal} {'held' if ok else 'MISSED'}"

    def line(self, key):
        by_who = self.rows[key]
        ours = by_who["ours"]
        times = {who: statistics.median(row["ms"] for row in rows.values()) for who, rows in by_who.items()}
        ratios = {"wire": [1 / row["share"] for row in ours.values()]}
        for who in ("gloo", "mpi"):
            rows = by_who.get(who, {})
            ratios[who] = [rows[r]["ms"] / ours[r]["ms"] for r in ours if r in rows]
        layout, op, nbytes = key
        size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
        floor = statistics.median(row["floor"] for row in ours.values())
        cells = [layout, op, size] + [f"{x:.4g}" for x in (floor, times["ours"])]
        cells += [f"{times[who]:.4g}" if who in times else "-" for who in ("gloo", "mpi")]
        return cells + [self.ratio(key, who, ratios[who]) for who in ("wire", "gloo", "mpi")]

    def write(self):
        print("| hosts x ranks | collective | S | wire | ours | Gloo | Open MPI | wire' | gloo' | mpi' |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for key in self.rows:
            if "ours" in self.rows[key]:
                print("| " + " | ".join(self.line(key)) + " |")


def main():
    if sys.argv[1] == "note":
        return note(*sys.argv[2:])
    lines = [json.loads(line) for line in sys.stdin]
    loads = [row["load"] for row in lines]
    table = Table(lines, UNLIMITED if sys.argv[2] == "none" else LIMITED)
    print(f"\nlink {sys.argv[2]}, {max(row['round'] for row in lines)} rounds, load average {min(loads)} to {max(loads)}\n")
    table.write()
    print(f"\n{table.held} goals held, {table.missed} missed")
    sys.exit(3 if table.missed else 0)


main()

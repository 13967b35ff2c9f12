#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the tables of docs/benchmarks.md and docs/formats.md that have peers in the same run as one picture.

  tools/plot_benchmarks.py            writes docs/benchmarks.svg
  tools/plot_benchmarks.py --check    exits with 1 unless docs/benchmarks.svg equals the picture of the tables

Bars are the numbers of the pages: nothing is measured or computed here except, for a step, the ratio of two cells.
Standard library only.
"""

import html
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
FORMATS = DOCS / "formats.md"

# Title, meaning of the bars, and the rows: a label, the beginning of the table's row, and the column of the number.
CHECKPOINTS = [
    ("Save", "time / time of one flat file, lower is better", [
        ("ours, SHARDED", "| `save, SHARDED` |"), ("HDF5's H5Dwrite", "| `save, H5Dwrite` |"),
        ("h5py", "| `save, h5py` |"), ("torch.save", "| `save, torch` |"),
        ("torch.distributed.checkpoint", "| `save, dcp` |")]),
    ("Load, cold", "time / time of the flat file's read, lower is better", [
        ("ours, digests verified", "| `load cold, verified` |"), ("HDF5's H5Dread", "| `load cold, H5Dread`"),
        ("h5py", "| `load cold, h5py`"), ("torch.load", "| `load cold, torch`"),
        ("torch.distributed.checkpoint", "| `load cold, dcp`")]),
    ("Load, warm", "the same from the page cache", [
        ("ours, digests verified", "| `load warm, verified` |"), ("HDF5's H5Dread", "| `load warm, H5Dread`"),
        ("h5py", "| `load warm, h5py`"), ("torch.load", "| `load warm, torch`"),
        ("torch.distributed.checkpoint", "| `load warm, dcp`")]),
]
# From docs/formats.md, with their peers; column 1 is seconds.
CONVERSIONS = [
    ("Convert 2 GB, DCP to a torch file", "seconds, lower is better", [
        ("ours", "| DCP to torch, ours |"), ("torch's format_utils", "| DCP to torch, `format_utils` |")]),
    ("Convert 2 GB, a torch file to DCP", "seconds, lower is better", [
        ("ours", "| torch to DCP, ours |"), ("torch's format_utils", "| torch to DCP, `format_utils` |")]),
]
STEPS = [(f"{model}, {dtype}", f"| {model}, {dtype}, 2 ranks |")
         for model in ("tiny", "small") for dtype in ("float32", "bfloat16")]

LABEL, BAR, ROW, HEAD, WIDTH = 210, 360, 20, 46, 640
STYLE = """text { font: 13px system-ui, sans-serif; fill: #1d2129; } .soft { fill: #667085; font-size: 12px; }
.title { font-weight: 600; } .ours { fill: #2f6fde; } .peer { fill: #b6bdc8; }
@media (prefers-color-scheme: dark) { text { fill: #e8eaee; } .soft { fill: #98a1b0; } .peer { fill: #5a6372; } }"""


def cells(page, beginning):
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(beginning)]
    if len(rows) != 1:
        sys.exit(f"plot_benchmarks.py: {page.name} has {len(rows)} rows that begin with {beginning!r}, expected 1")
    return [cell.strip() for cell in rows[0].strip().strip("|").split("|")]


def number(page, beginning, column):
    cell = cells(page, beginning)[column]
    match = re.match(r"[0-9.]+", cell)
    if not match:
        sys.exit(f"plot_benchmarks.py: {page.name}: column {column} of the row {beginning!r} is {cell!r}, no number")
    return float(match.group())


def panels():
    """[(title, unit, [(label, value)])]; the first bar of each is ours."""
    found = [(title, unit, [(label, number(PAGE, row, 1)) for label, row in rows]) for title, unit, rows in CHECKPOINTS]
    found += [(title, unit, [(label, number(FORMATS, row, 1)) for label, row in rows]) for title, unit, rows in CONVERSIONS]
    for label, row in STEPS:
        found.append((f"A training step, GPT-2 {label}, 2 ranks", "tokens per second, higher is better",
                      [("ours", number(PAGE, row, 1)), ("PyTorch DDP", number(PAGE, row, 3)),
                       ("PyTorch FSDP1", number(PAGE, row, 4)), ("PyTorch FSDP2", number(PAGE, row, 5))]))
    return found


def draw():
    y, parts = 8, []
    for title, unit, bars in panels():
        parts.append(f'<text class="title" x="8" y="{y + 14}">{html.escape(title)}</text>')
        parts.append(f'<text class="soft" x="8" y="{y + 32}">{html.escape(unit)}</text>')
        y += HEAD - 4
        largest = max(value for _, value in bars)
        for i, (label, value) in enumerate(bars):
            width = BAR * value / largest
            parts.append(f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>'
                         f'<rect class="{"peer" if i else "ours"}" x="{LABEL}" y="{y + 2}" width="{width:.1f}" '
                         f'height="{ROW - 6}"/><text class="soft" x="{LABEL + width + 6:.1f}" y="{y + 13}">{value:g}</text>')
            y += ROW
        y += 12
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">\n'
            f"<title>Saves, loads, conversions and training steps with their peers</title>\n<style>{STYLE}</style>\n"
            + "\n".join(parts) + "\n</svg>\n")


def main():
    svg = draw()
    path = PAGE.with_suffix(".svg")
    if sys.argv[1:] == ["--check"]:
        if path.exists() and path.read_text(encoding="utf-8") == svg:
            return 0
        print("docs/benchmarks.svg is not what the tables give: run tools/plot_benchmarks.py", file=sys.stderr)
        return 1
    if sys.argv[1:]:
        sys.exit(__doc__)
    path.write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

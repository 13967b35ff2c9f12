#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pictures of README: the upper parts of two pages, as a headless Chromium shows them.

  pictures.py QUICKSTART_DIR            makes docs/report.png and docs/inspect.png
  pictures.py QUICKSTART_DIR --check    exits with 1 unless they show the pages that the programs make today

QUICKSTART_DIR is what //examples:quickstart left (--output_dir); its report.html is the first page, and ckpt inspect of
its last checkpoint makes the second. Numbers and fonts differ from machine to machine, so pixels are not compared: a
picture has the digest of its page in it, without the numbers, and the check compares that. Standard library only.
"""

import hashlib
import pathlib
import re
import struct
import subprocess
import sys
import zlib

import chromium

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 1280, 1010
SHOWN_DIR = "/home/you/quickstart"
MAX_BYTES = 150_000
KEY = b"Page"


def skeleton(html):
    """The parts of a page that change only when its code does."""
    html = re.sub(r"<svg.*?</svg>", "<svg>", html, flags=re.S)
    html = re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.S)
    html = re.sub(r"<dl.*?</dl>|<bdi>.*?</bdi>|<title>.*?</title>", "", html, flags=re.S)
    html = re.sub(r' (title|data-v)="[^"]*"', "", html)
    return re.sub(r">[^<]*\d[^<]*<", ">#<", html)


def digest_of(page):
    return hashlib.sha256(skeleton(page.read_text(encoding="utf-8")).encode()).hexdigest()


def write_shown(page, output, shown):
    """A copy of a page in which the files are in SHOWN_DIR."""
    html = page.read_text(encoding="utf-8")
    for path, instead in ((str(output.resolve()), SHOWN_DIR),
                          (str(output.resolve()).replace("/", "/<wbr>"), SHOWN_DIR.replace("/", "/<wbr>"))):
        html = html.replace(path, instead)
    shown.write_text(html.replace(f"<bdi>{output.resolve().name}</bdi>", "<bdi>quickstart</bdi>"), encoding="utf-8")


def chunks(png):
    """[(type, data)] of a PNG."""
    found, at = [], 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at:at + 4])
        found.append((png[at + 4:at + 8], png[at + 8:at + 8 + length]))
        at += length + 12
    return found


def joined(parts):
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts)


def recorded_digest(picture):
    for kind, data in chunks(picture.read_bytes()) if picture.exists() else []:
        if kind == b"tEXt" and data.startswith(KEY + b"\0"):
            return data[len(KEY) + 1:].decode()
    return "none"


def record_digest(picture, digest):
    parts = chunks(picture.read_bytes())
    picture.write_bytes(joined(parts[:1] + [(b"tEXt", KEY + b"\0" + digest.encode())] + parts[1:]))


def main():
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    operands = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if len(operands) != 1 or options not in ([], ["--check"]):
        sys.exit(__doc__)
    output = pathlib.Path(operands[0])
    inspected = output / "inspect.html"
    subprocess.run([ROOT / "bazel-bin/tools/ckpt", "inspect", output / "checkpoints" / "step-00000240",
                    f"--html={inspected}"], check=True, stdout=subprocess.DEVNULL)
    pages = {ROOT / "docs/report.png": output / "report.html", ROOT / "docs/inspect.png": inspected}
    if options:
        stale = [picture for picture, page in pages.items() if recorded_digest(picture) != digest_of(page)]
        for picture in stale:
            print(f"{picture.relative_to(ROOT)} does not show today's page; make it again: "
                  "tools/page/pictures.py QUICKSTART_DIR")
        sys.exit(1 if stale else 0)
    with chromium.Browser(chromium.find_chromium()) as browser:
        for picture, page in pages.items():
            shown = output / "shown.html"
            write_shown(page, output, shown)
            browser.open(shown.resolve().as_uri(), WIDTH, HEIGHT).screenshot(picture)
            shown.unlink()
            record_digest(picture, digest_of(page))
            size = picture.stat().st_size
            print(f"{picture.relative_to(ROOT)}: {size} bytes")
            if size > MAX_BYTES:
                sys.exit(f"expected at most {MAX_BYTES}")


if __name__ == "__main__":
    main()

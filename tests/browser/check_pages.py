#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_pages.py CHROMIUM PAGE.html... [--screenshots=DIR]

Opens each page in a headless Chromium at the widths of a phone, a tablet and a desktop, light and dark, and checks it
as a person would look at it: no error, no dialog, no horizontal scrolling, text of a readable size, with contrast and
inside the window, each label next to its own drawing; tables that can be searched and sorted, curves that can be
smoothed, maps that show their numbers. Then breaks a page in each of these ways, which must be found. Prints the
faults; exits with 1 if there is one.
"""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "page"))
from chromium import Browser  # noqa: E402

SIZES = {"phone": (390, 844), "tablet": (768, 1024), "desktop": (1280, 900)}
LEAST_TEXT = 11  # pixels; exponents and such may have LEAST_SMALL
LEAST_SMALL = 9
LEAST_CONTRAST = 4.5

# A list of sentences about what is wrong, from inside the page.
LOOK = r"""
(() => {
  const faults = [], width = innerWidth;
  if (document.documentElement.scrollWidth > width) {
    faults.push("is " + document.documentElement.scrollWidth + " px wide in a window of " + width);
  }
  const luminance = color => {
    const [r, g, b] = color.match(/[\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backgroundOf = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0(\.\d+)?\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, text = node.textContent.trim();
    if (text === "" || ["SCRIPT", "STYLE", "title", "OPTION"].includes(element.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) continue;
    const style = getComputedStyle(element), svg = element.ownerSVGElement;
    const scale = svg && element.getScreenCTM ? element.getScreenCTM().a : 1;
    const size = parseFloat(style.fontSize) * scale, least = element.closest(".sup") ? LEAST_SMALL : LEAST_TEXT;
    const shown = JSON.stringify(text.slice(0, 40));
    if (size < least) faults.push(shown + " has " + size.toFixed(1) + " px, expected " + least);
    if ((box.left < -0.5 || box.right > width + 0.5) && !element.closest(".scroll")) {
      faults.push(shown + " goes from " + box.left.toFixed(0) + " to " + box.right.toFixed(0) + " px");
    }
    const color = svg ? style.fill : style.color, key = color + element.className + backgroundOf(element);
    if (seen.has(key) || !color.startsWith("rgb")) continue;
    seen.add(key);
    const [x, y] = [luminance(color), luminance(backgroundOf(element))].sort((a, b) => b - a);
    const contrast = (x + 0.05) / (y + 0.05);
    if (contrast < LEAST_CONTRAST) faults.push(shown + " has a contrast of " + contrast.toFixed(2));
  }
  const rows = [...document.querySelectorAll(".row")].filter(row => row.querySelector(".label"));
  rows.forEach((row, i) => {
    const label = row.querySelector(".label").getBoundingClientRect(), own = row.querySelector("svg").getBoundingClientRect();
    const before = i > 0 && rows[i - 1].parentElement === row.parentElement && rows[i - 1].querySelector("svg");
    if (own.top < label.bottom - 1 || !before) return;
    const above = label.top - before.getBoundingClientRect().bottom, below = own.top - label.bottom;
    if (below >= above) faults.push(row.textContent.slice(0, 40) + " is " + below + " px from its drawing, " + above + " from another");
  });
  return faults;
})()
""".replace("LEAST_SMALL", str(LEAST_SMALL)).replace("LEAST_TEXT", str(LEAST_TEXT)).replace(
    "LEAST_CONTRAST", str(LEAST_CONTRAST))

# The same after using what the page offers; sentences about what does not work.
USE = r"""
(() => {
  const faults = [], fire = (element, type) => element.dispatchEvent(new Event(type, { bubbles: true }));
  for (const table of document.querySelectorAll("table.data")) {
    const finder = (table.closest(".scroll") || table).previousElementSibling;
    const isSmall = table.querySelectorAll("tbody tr:not(.group)").length <= 6;
    if (!finder.classList.contains("finder")) {
      if (!isSmall) faults.push("a table cannot be searched");
      continue;
    }
    const [search, order, count] = ["input", "select", "output"].map(tag => finder.querySelector(tag));
    const rows = () => [...table.querySelectorAll("tbody tr:not(.group)")].filter(row => !row.hidden);
    const before = rows().map(row => row.textContent), word = rows()[0].cells[0].textContent.trim().split(/\s/)[0].slice(0, 8);
    search.value = "no such name";
    fire(search, "input");
    if (rows().length !== 0) faults.push("a search for nothing leaves " + rows().length + " rows");
    search.value = word;
    fire(search, "input");
    const found = rows();
    if (found.length === 0 || !found.every(row => row.cells[0].textContent.includes(word))) faults.push("a search for " + word + " fails");
    if (!count.textContent.startsWith(found.length + " of ")) faults.push("the number of rows is not shown");
    search.value = "";
    fire(search, "input");
    const largest = [...order.options].find(option => option.value.startsWith("-"));
    order.value = largest.value;
    fire(order, "change");
    const values = rows().map(row => row.cells[+largest.value.slice(1)]).map(cell => cell && cell.dataset.v)
      .filter(value => value !== undefined).map(Number);
    if (values.some((value, i) => i > 0 && value > values[i - 1])) faults.push("rows are not sorted by " + largest.textContent);
    order.value = "";
    fire(order, "change");
    if (rows().map(row => row.textContent).join() !== before.join()) faults.push("rows do not return to their order");
  }
  const slider = document.querySelector(".smoothing input");
  if (document.querySelector("section[data-curve]")) {
    slider.value = 0.9;
    fire(slider, "input");
    for (const section of document.querySelectorAll("section[data-curve]")) {
      if (!section.querySelector(".smooth").getAttribute("d").startsWith("M")) faults.push("a curve is not smoothed");
    }
    slider.value = 0;
    fire(slider, "input");
    if (document.querySelector(".smooth")) faults.push("smoothing does not end");
  }
  const point = (element, out) => {
    const box = element.getBoundingClientRect();
    element.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, bubbles: true }));
    if (!out.textContent.startsWith("step ")) faults.push("pointing at a chart shows " + JSON.stringify(out.textContent));
  };
  for (const section of document.querySelectorAll("section[data-curve], section[data-map]")) {
    point(section.querySelector("svg.chart, svg.strip"), section.querySelector(".readout"));
  }
  return faults;
})()
"""


def use(page):
    try:
        return page.evaluate(USE)
    except RuntimeError as error:  # a part that a script of the page makes is not there
        return [str(error)]


def check(browser, path, screenshots=None):
    """Sentences about the faults of the page at `path`."""
    faults = []
    for device, (width, height) in SIZES.items():
        for dark in (False, True):
            page = browser.open(pathlib.Path(path).resolve().as_uri(), width, height, dark)
            place = f"{path}, {device}{', dark' if dark else ''}: "
            faults += [place + fault for fault in page.evaluate(LOOK)]
            if screenshots:
                length = min(6000, page.evaluate("document.documentElement.scrollHeight"))
                name = f"{pathlib.Path(path).stem}-{device}{'-dark' if dark else ''}.png"
                page.screenshot(screenshots / name, (0, 0, width, length))
            if not dark:
                faults += [place + fault for fault in use(page)]
            faults += [place + error for error in page.collect_errors()]
            page.close()
    return faults


# What is inserted into a page, and a part of the sentence that must follow.
BROKEN = [
    ("<div style='width: 2000px'>wide</div>", "px wide in a window"),
    ("<p style='font-size: 6px; color: inherit'>small</p>", "has 6.0 px"),
    ("<p style='position: absolute; left: -20px'>outside</p>", "goes from -20"),
    ("<p style='color: #888; background: #999'>pale</p>", "has a contrast of"),
    ("<script>alert(1)</script>", "Content Security Policy"),
    ("<img src='https://example.com/x.png'>", "Content Security Policy"),
    ("<div class='row'><span class='label'>a</span><svg height='9'></svg><span></span></div><div class='row' "
     "style='display: block'><span class='label'>b</span><svg style='margin-top: 50px' height='9'></svg></div>",
     "from its drawing"),
]


def check_that_faults_are_found(browser, path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    missed = []
    with tempfile.TemporaryDirectory() as directory:
        for i, (insertion, sentence) in enumerate(BROKEN):
            broken = pathlib.Path(directory) / f"{i}.html"
            broken.write_text(text.replace("</h1>", "</h1>" + insertion, 1), encoding="utf-8")
            if not any(sentence in fault for fault in check(browser, broken)):
                missed.append(f"{insertion}: no fault is found")
        broken.write_text(text.replace("const ", "let const ", 1), encoding="utf-8")
        if not check(browser, broken):
            missed.append("an altered script: no fault is found")
    return missed


def main():
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--screenshots=")]
    screenshots = [pathlib.Path(a.split("=", 1)[1]) for a in sys.argv[1:] if a.startswith("--screenshots=")]
    chromium, pages = arguments[0], arguments[1:]
    faults = []
    with Browser(chromium) as browser:
        for page in pages:
            found = check(browser, page, screenshots[0] if screenshots else None)
            print(f"{page}: {'no fault' if not found else f'{len(found)} faults'}")
            faults += found
        faults += check_that_faults_are_found(browser, pages[0])
    for fault in faults[:60]:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

// SPDX-License-Identifier: Apache-2.0
//
// The script of the page: a line at the step under the pointer, in all charts at the same time, and the values of the
// runs there. It reads the page's own JSON. For a repeated step it shows the later values. Values go into the page as
// text and never as markup.
#ifndef FSDP_TOOLS_CURVES_REPORT_SCRIPT_H_
#define FSDP_TOOLS_CURVES_REPORT_SCRIPT_H_

namespace fsdp {

inline constexpr char kReportScript[] = R"js(
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const units = { number: v => String(+v.toPrecision(5)), share: v => +(100 * v).toPrecision(4) + " %",
  bytes: v => { let i = 0; while (v >= 1000 && i < 5) { v /= 1000; ++i; }
    return +v.toPrecision(4) + " " + ["B", "kB", "MB", "GB", "TB", "PB"][i]; } };
const pointAt = (run, step) => {
  for (let p = run.parts.length; p-- > 0;) {
    const part = run.parts[p];
    let low = 0, high = part.first.length;
    while (low < high) { const m = (low + high) >> 1; if (part.last[m] < step) low = m + 1; else high = m; }
    if (low < part.first.length && part.first[low] <= step) return [part, low];
  }
  return null;
};
const textAt = (curve, part, i, unit) => {
  const values = part[curve];
  if (!values) return null;
  if (Array.isArray(values)) return values[i] === null ? "–" : unit(values[i]);
  if (values.mean[i] === null) return "–";
  const range = data.runs.length > 1 ? "" : " (" + unit(values.min[i]) + " to " + unit(values.max[i]) + ")";
  return unit(values.mean[i]) + range;
};
const charts = [...document.querySelectorAll("section[data-curve]")].map(section => {
  const svg = section.querySelector("svg.chart");
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  return { section, svg, cursor, geometry: data.charts[section.dataset.curve], out: section.querySelector(".readout"),
    bottom: svg.viewBox.baseVal.height - 26 };
});
const show = step => {
  for (const chart of charts) {
    const [x0, x1] = chart.geometry.x, [s0, s1] = chart.geometry.steps;
    chart.cursor.setAttribute("d", "M" + (x0 + (step - s0) / (s1 - s0) * (x1 - x0)) + " 14V" + chart.bottom);
    chart.out.textContent = "step " + step;
    for (const run of data.runs) {
      const found = pointAt(run, step);
      const text = found && textAt(chart.section.dataset.curve, ...found, units[chart.geometry.unit]);
      if (text === null) continue;
      const value = document.createElement("b");
      value.className = run.class;
      value.textContent = text;
      chart.out.append(" ", value);
    }
  }
};
const hide = () => { for (const chart of charts) { chart.cursor.removeAttribute("d"); chart.out.textContent = ""; } };
for (const chart of charts) {
  chart.svg.addEventListener("pointermove", event => {
    const box = chart.svg.getBoundingClientRect(), [x0, x1] = chart.geometry.x, [s0, s1] = chart.geometry.steps;
    const x = (event.clientX - box.left) * chart.svg.viewBox.baseVal.width / box.width;
    show(Math.round(Math.min(s1, Math.max(s0, s0 + (x - x0) / (x1 - x0) * (s1 - s0)))));
  });
  chart.svg.addEventListener("pointerleave", hide);
}
)js";

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_REPORT_SCRIPT_H_

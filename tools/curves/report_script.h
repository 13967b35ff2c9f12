// SPDX-License-Identifier: Apache-2.0
//
// ReportScript: a slider that smooths all curves, and a line at the step under the pointer, in all charts at the same
// time, with the values of the runs there. It reads the page's own JSON. For a repeated step it shows the later values;
// values at the pointer are never smoothed. Smoothing is TensorBoard's: the exponential moving average of the points,
// divided by the weight of those so far. Values go into the page as text and never as markup.
#ifndef FSDP_TOOLS_CURVES_REPORT_SCRIPT_H_
#define FSDP_TOOLS_CURVES_REPORT_SCRIPT_H_

#include "fsdp/tools/page/html.h"

namespace fsdp {

inline constexpr PageScript kReportScript = {R"js(
"use strict";
{
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
  const path = (parent, css) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    made.setAttribute("class", css);
    parent.append(made);
    return made;
  };
  const charts = [...document.querySelectorAll("section[data-curve]")].map(section => {
    const lines = section.querySelector("svg.lines"), curve = section.dataset.curve;
    return { section, lines, curve, svg: section.querySelector("svg.chart"), geometry: data.charts[curve],
      out: section.querySelector(".readout"), smooth: [], cursor: path(lines, "cursor") };
  });
  const placeOf = geometry => {
    const [s0, s1] = geometry.steps, [v0, v1] = geometry.values;
    return (step, value) => ((step - s0) / (s1 - s0) * 1000).toFixed(1) + " " +
      ((1 - ((geometry.log ? Math.log10(value) : value) - v0) / (v1 - v0)) * 1000).toFixed(1);
  };
  const smoothed = (part, values, weight, place) => {
    let mean = 0, seen = 0, d = "", pen = "M";
    for (let i = 0; i < values.length; ++i) {
      if (values[i] === null) { pen = "M"; continue; }
      mean = mean * weight + (1 - weight) * values[i];
      seen = seen * weight + (1 - weight);
      d += pen + place((part.first[i] + part.last[i]) / 2, mean / seen);
      pen = "L";
    }
    return d;
  };
  const smooth = weight => {
    for (const chart of charts) {
      for (const line of chart.smooth) line.remove();
      chart.smooth = [];
      chart.section.classList.toggle("smoothed", weight > 0);
      if (weight === 0) continue;
      const place = placeOf(chart.geometry);
      for (const run of data.runs) {
        for (const part of run.parts) {
          const values = part[chart.curve];
          if (!values) continue;
          const line = path(chart.lines, "smooth " + run.class);
          line.setAttribute("d", smoothed(part, Array.isArray(values) ? values : values.mean, weight, place));
          chart.smooth.push(line);
        }
      }
    }
  };
  const show = step => {
    for (const chart of charts) {
      const [s0, s1] = chart.geometry.steps;
      chart.cursor.setAttribute("d", "M" + (step - s0) / (s1 - s0) * 1000 + " 0V1000");
      chart.out.textContent = "step " + step;
      for (const run of data.runs) {
        const found = pointAt(run, step);
        const text = found && textAt(chart.curve, ...found, units[chart.geometry.unit]);
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
    const at = event => {
      const box = chart.svg.getBoundingClientRect(), [s0, s1] = chart.geometry.steps;
      const step = s0 + (event.clientX - box.left) / box.width * (s1 - s0);
      show(Math.round(Math.min(s1, Math.max(s0, step))));
    };
    chart.svg.addEventListener("pointermove", at);
    chart.svg.addEventListener("pointerdown", at);
    chart.svg.addEventListener("pointerleave", hide);
  }
  const label = document.createElement("label"), slider = document.createElement("input");
  const shown = document.createElement("output");
  Object.assign(slider, { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  label.className = "smoothing";
  shown.textContent = "0";
  slider.addEventListener("input", () => { shown.textContent = slider.value; smooth(+slider.value); });
  label.append("Smoothing ", slider, shown);
  if (charts.length > 0) document.querySelector(".marks").append(label);
}
)js",
                                             "kD75uX5MPt9gKI98P+ygOpMVbOVVeQFp3wRNUscAZpw="};

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_REPORT_SCRIPT_H_

// SPDX-License-Identifier: Apache-2.0
//
// RunScript: shows the step, the layer and the numbers under the pointer on a map of RunPage. It reads the page's own
// JSON, whose rows are the rows of the maps, and writes only text.
#ifndef FSDP_TOOLS_INSPECT_RUN_SCRIPT_H_
#define FSDP_TOOLS_INSPECT_RUN_SCRIPT_H_

#include "fsdp/tools/page/html.h"

namespace fsdp {

inline constexpr PageScript kRunScript = {R"js(
"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = (row, column) => {
    const { name, norm, change, nonfinite } = data.rows[row];
    const place = "step " + data.steps[column] + ", " + name;
    if (data.unread[column]) return place + ": not read";
    if (norm[column] === null) return place + ": not in this step";
    return place + ": norm " + norm[column] +
      (change[column] === null ? "" : ", changed by " + change[column] + " of it") +
      (nonfinite[column] === 0 ? "" : ", " + nonfinite[column] + " values not finite");
  };
  for (const map of document.querySelectorAll("[data-map]")) {
    const out = map.querySelector(".readout");
    [...map.querySelectorAll("svg.strip")].forEach((strip, row) => {
      const show = event => {
        const box = strip.getBoundingClientRect(), count = data.steps.length;
        const column = Math.floor((event.clientX - box.left) / box.width * count);
        out.textContent = text(row, Math.min(count - 1, Math.max(0, column)));
      };
      strip.addEventListener("pointermove", show);
      strip.addEventListener("pointerdown", show);
      strip.addEventListener("pointerleave", () => { out.textContent = ""; });
    });
  }
}
)js",
                                          "h1ouhf6BIhLyR6pv7k7stCAGChIBQs4GvoODAJ2R8u0="};

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_RUN_SCRIPT_H_

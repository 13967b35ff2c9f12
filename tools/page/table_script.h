// SPDX-License-Identifier: Apache-2.0
//
// TableScript: search and sort for the tables of class "data" of a page. Above a table of more than a few rows it
// places a field for words of the first column, a list of orders, and the number of rows that are shown; a click on a
// heading sorts any table. A row of class "group" is the heading of its tbody, and is shown while the rows are in their
// own order. Numbers come from data-v (NumberCell); rows without one come last. Without the script the tables are
// complete, in their own order.
#ifndef FSDP_TOOLS_PAGE_TABLE_SCRIPT_H_
#define FSDP_TOOLS_PAGE_TABLE_SCRIPT_H_

#include "fsdp/tools/page/html.h"

namespace fsdp {

inline constexpr PageScript kTableScript = {R"js(
"use strict";
const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
const compare = (a, b) => a.localeCompare(b, "en", { numeric: true });
for (const table of document.querySelectorAll("table.data")) {
  const heads = [...table.tHead.rows[0].cells], homes = [...table.tBodies], flat = make("tbody", {});
  const rows = homes.flatMap(home => [...home.rows].filter(row => row.className !== "group").map(row => ({ row, home })));
  const search = make("input", { type: "search", placeholder: "Search", ariaLabel: "Search names" });
  const order = make("select", { ariaLabel: "Order of the rows" });
  const count = make("output", {});
  order.append(make("option", { value: "", textContent: "in their own order" }));
  heads.forEach((head, i) => {
    if (head.classList.contains("unsorted")) return;
    const ways = head.classList.contains("number") ? [["-", "largest first"], ["+", "smallest first"]] : [["+", "a to z"]];
    for (const [sign, way] of ways) {
      order.append(make("option", { value: sign + i, textContent: head.textContent + ", " + way }));
    }
    head.classList.add("sorts");
    head.addEventListener("click", () => {
      const values = [...ways.map(way => way[0] + i), ""];
      order.value = values[(values.indexOf(order.value) + 1) % values.length];
      sort();
    });
  });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const { row } of rows) {
      const name = row.cells[0].textContent.toLowerCase();
      row.hidden = !words.every(word => name.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    for (const home of homes) home.hidden = order.value !== "" || ![...home.rows].some(r => r.className !== "group" && !r.hidden);
    count.textContent = shown + " of " + rows.length;
  };
  const sort = () => {
    const column = +order.value.slice(1), sign = order.value[0] === "-" ? -1 : 1;
    heads.forEach((head, i) => {
      if (order.value === "" || i !== column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
    });
    if (order.value === "") {
      flat.remove();
      for (const { row, home } of rows) home.append(row);
    } else {
      const key = row => heads[column].classList.contains("number") ? row.cells[column].dataset.v : row.cells[column].textContent;
      const by = (a, b) => {
        const [x, y] = [key(a.row), key(b.row)];
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        return sign * (heads[column].classList.contains("number") ? x - y || 0 : compare(x, y));
      };
      flat.append(...[...rows].sort(by).map(({ row }) => row));
      table.append(flat);
    }
    filter();
  };
  search.addEventListener("input", filter);
  order.addEventListener("change", sort);
  const bar = make("div", { className: "finder" });
  bar.append(search, order, count);
  if (rows.length > 6) (table.closest(".scroll") || table).before(bar);
  filter();
}
)js",
                                            "ViEsTl+VtCETVi2RUfrORsr6BU+tyqZ3cZirbLRPB8E="};

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_TABLE_SCRIPT_H_

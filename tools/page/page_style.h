// SPDX-License-Identifier: Apache-2.0
//
// The style sheet of all pages: light and dark, screen, phone and paper, no fonts or images from elsewhere, so that a
// page opens without a network and can be sent as one file.
//
// Colours are variables of :root, so the dark scheme replaces values and no rules. Classes that parts of charts and
// rows of tables have: model, optim and extra, the kinds of payload; odd, every second layer, so that neighbouring
// parts of a bar differ; second, a second series; bad and good, the result of checks; wide, what a phone has no room
// for. The sheet is part of every page, so its size counts.
#ifndef FSDP_TOOLS_PAGE_PAGE_STYLE_H_
#define FSDP_TOOLS_PAGE_PAGE_STYLE_H_

namespace fsdp {

inline constexpr char kPageStyle[] = R"css(
:root { color-scheme: light dark; --page: #fafaf8; --card: #fff; --ink: #1d2129; --soft: #5d6676; --line: #e4e6ea;
  --model: #2f6fde; --model2: #7fa8ee; --optim: #e08a2b; --optim2: #f1bd83; --extra: #9aa3af; --bad: #c62f2f;
  --good: #1d7c46; --second: #8b5cf6; --tint: #c62f2f14; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14161a; --card: #1d2026; --ink: #e8eaee; --soft: #9fa8b7; --line: #31363f; --model: #5b93f5;
    --model2: #32528e; --optim: #e9a04f; --optim2: #8a5f2f; --extra: #6c7686; --bad: #ff7b72; --good: #56c785;
    --second: #ab8bff; --tint: #ff7b721f; } }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; background: var(--page); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; line-height: 1.3; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
.found { margin: 8px 0 0; padding-left: 20px; } .found li { margin: 4px 0; overflow-wrap: anywhere; }
h3 { font-size: 13px; margin: 14px 0 2px; color: var(--soft); font-weight: 600; }
p { margin: 0 0 12px; color: var(--soft); overflow-wrap: anywhere; }
bdi { font-family: ui-monospace, monospace; font-size: 12.5px; overflow-wrap: anywhere; }
h1 bdi { font: inherit; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-top: 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; min-width: 0; }
.tile b { display: block; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.tile span { color: var(--soft); font-size: 12.5px; }
.bad, .tile b.bad { color: var(--bad); } .good, .tile b.good { color: var(--good); }
.row { display: grid; grid-template-columns: minmax(90px, 250px) minmax(0, 1fr) 110px; gap: 12px; align-items: center;
  padding: 2px 0; }
.row.high { border-top: 1px solid var(--line); padding: 4px 0 0; }
.label { text-align: right; line-height: 1.25; min-width: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; color: var(--soft); }
.number.bad { color: var(--bad); }
svg { display: block; width: 100%; }
.row > svg:first-of-type, .row > div > svg { border-radius: 3px; }
.model { fill: var(--model); } .model.odd { fill: var(--model2); }
.optim { fill: var(--optim); } .optim.odd { fill: var(--optim2); }
.extra { fill: var(--extra); } .second { fill: var(--second); }
.histogram { fill: var(--model); opacity: .85; }
.optimizer .histogram, .optim .histogram { fill: var(--optim); } .extra .histogram { fill: var(--extra); }
.axis { overflow: visible; } .axis text { font-size: 11.5px; fill: var(--soft); text-anchor: middle; }
.sup { font-size: 9.5px; baseline-shift: 4px; }
.dots { overflow: visible; } .dots line { stroke: var(--line); }
.legend { display: flex; gap: 4px 18px; flex-wrap: wrap; margin: 2px 0 10px; color: var(--soft); font-size: 13px; }
.legend svg { width: 11px; height: 11px; display: inline-block; margin-right: 6px; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(280px, 1fr)); gap: 0 28px; margin: 0; }
.facts div { display: flex; gap: 12px; border-bottom: 1px solid var(--line); padding: 3px 0; min-width: 0; }
.facts dt { color: var(--soft); flex: 0 1 auto; min-width: 40%; } .facts dd { margin: 0 0 0 auto; text-align: right;
  min-width: 0; }
.scroll { overflow-x: auto; }
.finder { display: flex; flex-wrap: wrap; gap: 10px; align-items: center; margin: 4px 0 10px; color: var(--soft);
  font-size: 13px; }
.finder input, .finder select { font: inherit; color: var(--ink); background: var(--page); max-width: 100%;
  border: 1px solid var(--line); border-radius: 6px; padding: 5px 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); padding: 4px 10px 4px 0; }
th.sorts { cursor: pointer; } th.sorts:hover { color: var(--ink); }
th[aria-sort="descending"]::after { content: " \2193"; } th[aria-sort="ascending"]::after { content: " \2191"; }
td { border-bottom: 1px solid var(--line); padding: 3px 10px 3px 0; white-space: nowrap; vertical-align: middle; }
td.number, th.number { text-align: right; }
.number + td:not(.number), .number + th:not(.number) { padding-left: 14px; }
td.name { min-width: 230px; max-width: 340px; white-space: normal; line-height: 1.3; } td.name small { color: var(--soft); font: inherit; }
td.chart, td.shards { width: 124px; min-width: 110px; } td.shards { padding-right: 0; }
td.problem { max-width: none; }
tr.bad td { background: var(--tint); } tr.bad td.name { color: var(--bad); }
.data .group th { padding-top: 14px; color: var(--ink); overflow-wrap: anywhere; } .group span { color: var(--soft);
  font-weight: 400; margin-left: 8px; }
.name svg, .swatch { width: 9px; height: 9px; display: inline-block; margin-right: 7px; }
footer { color: var(--soft); margin-top: 18px; font-size: 12.5px; }
@media (max-width: 640px) {
  main { padding: 18px 12px 40px; } section { padding: 14px 14px; }
  .wide { display: none; }
  .row { grid-template-columns: minmax(0, 1fr) auto; gap: 1px 12px; padding: 0; margin-top: 13px; }
  .row.high { padding: 4px 0 0; margin-top: 9px; } .row.foot { margin-top: 2px; }
  .row > :nth-child(2) { grid-column: 1 / -1; grid-row: 2; } .label { text-align: left; }
  .data thead { display: none; } .data, .data tbody { display: block; }
  .data tr { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 4px 10px; padding: 8px 0;
    border-bottom: 1px solid var(--line); }
  .data .group { display: block; padding: 0; } .data .group th { display: block; border: 0; }
  .data td { border: 0; padding: 0; white-space: normal; overflow-wrap: anywhere; min-width: 0; max-width: none; }
  .data td.number { text-align: left; } .data td::before { display: block; color: var(--soft); font-size: 11.5px; }
  .data td.name, .data td.chart, .data td.shards { grid-column: 1 / -1; }
  .data td.empty { display: none; } .data td.problem::before { content: none !important; } }
@media print { .finder { display: none; } section, tr { break-inside: avoid; } }
)css";

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_PAGE_STYLE_H_

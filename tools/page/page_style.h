// SPDX-License-Identifier: Apache-2.0
//
// The style sheet of all pages: light and dark, screen and paper, no fonts or images from elsewhere, so that a page
// opens without a network and can be sent as one file.
//
// Colours are variables of :root, so the dark scheme replaces values and no rules. Classes that tools/inspect/ gives to
// parts of charts: model, optim and extra, the kinds of payload; odd, every second layer, so that neighbouring parts of
// a bar differ; second, a second series; bad and good, the result of checks. The sheet is part of every page, so its
// size counts.
#ifndef FSDP_TOOLS_PAGE_PAGE_STYLE_H_
#define FSDP_TOOLS_PAGE_PAGE_STYLE_H_

namespace fsdp {

inline constexpr char kPageStyle[] = R"css(
:root { color-scheme: light dark; --page: #fafaf8; --card: #fff; --ink: #1d2129; --soft: #667085; --line: #e4e6ea;
  --model: #2f6fde; --model2: #7fa8ee; --optim: #e08a2b; --optim2: #f1bd83; --extra: #9aa3af; --bad: #c62f2f;
  --good: #218a4e; --second: #8b5cf6; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14161a; --card: #1d2026; --ink: #e8eaee; --soft: #98a1b0; --line: #31363f; --model: #5b93f5;
    --model2: #32528e; --optim: #e9a04f; --optim2: #8a5f2f; --extra: #6c7686; --bad: #ff7b72; --good: #56c785;
    --second: #ab8bff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; line-height: 1.3; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 12px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-top: 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 14px; }
.tile b { display: block; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 12.5px; }
.bad, .tile b.bad { color: var(--bad); } .good, .tile b.good { color: var(--good); }
.row { display: grid; grid-template-columns: minmax(90px, 230px) minmax(0, 1fr) 110px; gap: 12px; align-items: center;
  padding: 2px 0; }
.row.high { border-top: 1px solid var(--line); padding: 4px 0 0; }
.label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; direction: rtl; text-align: right; }
.label bdi, td bdi { font-family: ui-monospace, monospace; font-size: 12.5px; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; color: var(--soft); }
svg { display: block; width: 100%; }
.row > svg:first-of-type, .row > div > svg { border-radius: 3px; }
.model { fill: var(--model); } .model.odd { fill: var(--model2); }
.optim { fill: var(--optim); } .optim.odd { fill: var(--optim2); }
.extra { fill: var(--extra); } .second { fill: var(--second); }
.histogram { fill: var(--model); opacity: .85; }
.optimizer .histogram { fill: var(--optim); }
.axis { overflow: visible; } .axis text { font-size: 11px; fill: var(--soft); text-anchor: middle; }
.sup { font-size: 8px; baseline-shift: 4px; }
.dots { overflow: visible; } .dots line { stroke: var(--line); }
.legend { display: flex; gap: 18px; flex-wrap: wrap; margin: 2px 0 10px; color: var(--soft); font-size: 13px; }
.legend svg { width: 11px; height: 11px; display: inline-block; margin-right: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line); padding: 4px 10px 4px 0; }
td { border-bottom: 1px solid var(--line); padding: 3px 10px 3px 0; white-space: nowrap; vertical-align: middle; }
td.number, th.number { text-align: right; }
td.name { max-width: 300px; overflow: hidden; text-overflow: ellipsis; direction: rtl; }
td.chart { min-width: 110px; } td.shards { min-width: 110px; padding-right: 0; }
footer { color: var(--soft); margin-top: 18px; font-size: 12.5px; }
@media (max-width: 640px) { .row { grid-template-columns: 1fr 84px; } .row > :nth-child(2) { grid-column: 1 / -1;
  grid-row: 2; } .label { text-align: left; } }
)css";

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_PAGE_STYLE_H_

// SPDX-License-Identifier: Apache-2.0
//
// The additions of a page of charts over steps to the style of all pages (tools/page/page_style.h). The colours of runs
// are Okabe and Ito's, which colour-blind people can distinguish, brighter in dark mode. A chart is a box of a fixed
// height with labels outside of it; strokes are not scaled with the box.
#ifndef FSDP_TOOLS_CURVES_REPORT_STYLE_H_
#define FSDP_TOOLS_CURVES_REPORT_STYLE_H_

namespace fsdp {

inline constexpr char kReportStyle[] = R"css(
:root { --r0: #0072b2; --r1: #d55e00; --r2: #009e73; --r3: #aa4499; --r4: #b8860b; --r5: #3a9bd9; --r6: #882255;
  --r7: #555b66; }
@media (prefers-color-scheme: dark) { :root { --r0: #56a8ee; --r1: #ff9152; --r2: #2fd3a0; --r3: #e08ad2; --r4: #e8c34a;
  --r5: #9ad4ff; --r6: #e0709a; --r7: #b4bac4; } }
.r0 { --c: var(--r0); } .r1 { --c: var(--r1); } .r2 { --c: var(--r2); } .r3 { --c: var(--r3); } .r4 { --c: var(--r4); }
.r5 { --c: var(--r5); } .r6 { --c: var(--r6); } .r7 { --c: var(--r7); }
rect[class^="r"] { fill: var(--c); }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; margin-top: 10px; }
.charts section { margin: 0; padding: 14px 16px 12px; min-width: 0; } .charts .full { grid-column: 1 / -1; }
.charts h2 { display: inline; } .charts h2 + small { color: var(--soft); margin-left: 8px; font-size: 12.5px; }
.readout { display: block; height: 20px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; font-size: 12.5px;
  font-variant-numeric: tabular-nums; color: var(--soft); }
.readout b { color: var(--c); font-weight: 600; margin-left: 10px; }
.plot { height: 160px; margin: 22px 12px 40px 52px; } .plot.large { height: 270px; }
.chart, .lines { overflow: visible; height: 100%; } .chart { touch-action: pan-y; }
.chart text { font-size: 11.5px; fill: var(--soft); text-anchor: middle; } .chart .end { text-anchor: end; }
.chart .start { text-anchor: start; }
.lines path { fill: none; vector-effect: non-scaling-stroke; } .lines .grid { stroke: var(--line); }
.lines .base { stroke: var(--soft); opacity: .6; }
.lines .line, .lines .smooth { stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.lines .lost { opacity: .38; } .lines .dashed.line { stroke-dasharray: 6 4; }
.lines .twin.line { stroke-dasharray: 7 9; } .lines .twin2.line { stroke-dasharray: 3 13; }
.lines .twin.line, .lines .twin2.line { stroke-width: 2.4; stroke-linecap: butt; }
.smoothed .line { opacity: .22; } .lines .smooth { stroke-width: 2.2; }
.lines .band { fill: var(--c); opacity: .2; } .smoothed .band { opacity: .1; }
.lines .restart { stroke: var(--c); stroke-dasharray: 2 3; opacity: .8; }
.lines .save { stroke: var(--c); stroke-width: 3; }
.lines .nonfinite { stroke: var(--bad); stroke-width: 7; stroke-linecap: round; }
.lines .cursor { stroke: var(--soft); opacity: .7; }
.marks { margin-top: 18px; align-items: center; }
.legend .mark { width: 22px; height: 12px; } .legend .mark path { fill: none; stroke: var(--soft); }
.legend .mark .save { stroke-width: 3; } .legend .mark .nonfinite { stroke: var(--bad); stroke-width: 7;
  stroke-linecap: round; }
.legend .mark .band { fill: var(--soft); opacity: .3; stroke: none; } .legend .mark .lost { opacity: .45; stroke-width: 1.6; }
.smoothing { margin-left: auto; display: flex; gap: 8px; align-items: center; font-variant-numeric: tabular-nums; }
.smoothing input { width: 130px; accent-color: var(--soft); } .smoothing output { min-width: 30px; }
.same { margin: 0; font-size: 12.5px; } .below { margin: 14px 0 0; font-size: 12.5px; }
.notes { padding: 12px 20px; } .notes p { margin: 2px 0; }
@media (max-width: 820px) { .charts { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 640px) { .plot.large { height: 220px; } .plot { margin-right: 4px; } .smoothing { margin-left: 0; } }
@media print { .charts section { break-inside: avoid; } .smoothing { display: none; } }
)css";

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_REPORT_STYLE_H_

// SPDX-License-Identifier: Apache-2.0
//
// Rows of a chart: a name, a drawing and a number, and bars of several parts to draw in them, as inline SVG. Colours
// are classes of page_style.h. Names and titles are escaped here; classes are not, and come from constants. All
// functions are pure.
#ifndef FSDP_TOOLS_PAGE_BAR_CHART_H_
#define FSDP_TOOLS_PAGE_BAR_CHART_H_

#include <string>
#include <vector>

namespace fsdp {

// A part of a bar.
struct BarPart {
  // In the unit of BarSvg's `whole`.
  double value = 0;

  // Classes of the style sheet, separated by blanks.
  std::string css;

  // The browser shows it when the pointer is on the part.
  std::string title;
};

// Parts side by side, each as wide as its share of `whole`; parts too narrow to be seen are left out. The chart fills
// the width of its container and is `height` pixels high.
std::string BarSvg(const std::vector<BarPart>& parts, double whole, int height);

// A row; `number` is HTML. On a phone the name and the number are above the drawing.
std::string ChartRow(const std::string& name, const std::string& chart, const std::string& number,
                     const char* css = "");

// The axis below such rows.
std::string ChartAxisRow(const std::string& axis);

}  // namespace fsdp

#endif  // FSDP_TOOLS_PAGE_BAR_CHART_H_

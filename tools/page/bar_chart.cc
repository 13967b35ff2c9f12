// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tools/page/bar_chart.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {
namespace {

// The width of a drawing, in its own units: the browser stretches it.
constexpr double kWidth = 1000;

}  // namespace

std::string BarSvg(const std::vector<BarPart>& parts, double whole, int height) {
  std::string svg = absl::StrFormat("<svg viewBox=\"0 0 %.0f %d\" height=\"%d\" preserveAspectRatio=\"none\">", kWidth,
                                    height, height);
  double x = 0;
  for (const BarPart& part : parts) {
    const double width = whole > 0 ? kWidth * part.value / whole : 0;
    // Narrower parts would be invisible; together they could still be many.
    if (width >= 0.05) {
      absl::StrAppendFormat(&svg, "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=\"%d\">%s</rect>", part.css, x,
                            width, height,
                            part.title.empty() ? "" : absl::StrCat("<title>", EscapeHtml(part.title), "</title>"));
    }
    x += width;
  }
  return svg + "</svg>";
}

std::string ChartRow(const std::string& name, const std::string& chart, const std::string& number, const char* css) {
  return absl::StrCat("<div class=\"row", *css == '\0' ? "" : " ", css, "\"><span class=\"label\">", Name(name),
                      "</span>", chart, "<span class=\"number\">", number, "</span></div>\n");
}

// No label: on a phone the axis is directly below the last drawing.
std::string ChartAxisRow(const std::string& axis) {
  return absl::StrCat("<div class=\"row foot\"><span></span>", axis, "</div>\n");
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// All charts are drawn in a box kWidth units wide and stretched to the width of their container by the browser
// (preserveAspectRatio="none"), so one drawing fits a phone and a printer. Text must not be stretched: axes place their
// labels by percentages instead.
#include "fsdp/tools/inspect/page_charts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/tools/page/html.h"

namespace fsdp {
namespace {

// The width of every drawing, in its own units.
constexpr double kWidth = 1000;

std::string Title(const std::string& text) {
  return text.empty() ? "" : absl::StrCat("<title>", EscapeHtml(text), "</title>");
}

std::string Open(int height) {
  return absl::StrFormat("<svg viewBox=\"0 0 %.0f %d\" height=\"%d\" preserveAspectRatio=\"none\">", kWidth, height,
                         height);
}

// Labels closer than the first share of the width would touch on a wide screen, than the second on a phone.
constexpr double kLabelShare = 0.055;
constexpr double kPhoneLabelShare = 0.13;

// A label at `share` of the width, 0 to 1.
std::string AxisLabel(double share, const std::string& text, bool is_wide_only = false) {
  return absl::StrFormat("<text%s x=\"%.2f%%\" y=\"11\">%s</text>", is_wide_only ? " class=\"wide\"" : "", 100 * share,
                         text);
}

std::string PowerOfTen(int exponent) {
  if (exponent == 0) return "1";
  return absl::StrCat("10<tspan class=\"sup\">", exponent < 0 ? "−" : "", std::abs(exponent), "</tspan>");
}

// Bars of a histogram: [0, n) negative, n zero, (n, 2n] positive, for n octaves.
std::vector<int64_t> Columns(const ValueStatistics& statistics, const OctaveRange& range) {
  std::vector<int64_t> columns;
  for (int bin = range.last; bin >= range.first; --bin) columns.push_back(statistics.negative[bin]);
  columns.push_back(statistics.zeros);
  for (int bin = range.first; bin <= range.last; ++bin) columns.push_back(statistics.positive[bin]);
  return columns;
}

}  // namespace

void OctaveRange::Include(const ValueStatistics& statistics) {
  for (int bin = 0; bin < ValueStatistics::kBins; ++bin) {
    if (statistics.negative[bin] == 0 && statistics.positive[bin] == 0) continue;
    first = last < first ? bin : std::min(first, bin);
    last = std::max(last, bin);
  }
}

std::string HistogramSvg(const ValueStatistics& statistics, const OctaveRange& range, int height) {
  const std::vector<int64_t> columns = Columns(statistics, range);
  const auto most = static_cast<double>(std::max<int64_t>(1, *std::max_element(columns.begin(), columns.end())));
  const double width = kWidth / static_cast<double>(columns.size());
  std::string path = absl::StrFormat("M0 %d", height);
  for (size_t i = 0; i < columns.size(); ++i) {
    // Heights are square roots of counts, so that the tails of a distribution stay visible.
    const double top = height - height * std::sqrt(static_cast<double>(columns[i]) / most);
    absl::StrAppendFormat(&path, "V%.1fH%.1f", top, width * static_cast<double>(i + 1));
  }
  return absl::StrCat(Open(height), "<path class=\"histogram\" d=\"", path, absl::StrFormat("V%dZ", height),
                      "\"/></svg>");
}

// The axis mirrors Columns(): n octaves have 2n + 1 columns, with zero in the middle. The exponent of a power of ten,
// divided by log10(2), is its octave, and so its distance from the middle in columns, on both sides.
std::string HistogramAxisSvg(const OctaveRange& range) {
  const int octaves = range.last - range.first + 1;
  const double column = 1.0 / (2 * octaves + 1);
  std::string svg = "<svg class=\"axis\" height=\"16\">";
  absl::StrAppend(&svg, AxisLabel(0.5, "0"));
  const int lowest = ValueStatistics::kLowestExponent + range.first;
  // Distances of the last label from the middle, where the 0 is.
  double last = 0;
  double last_on_phone = 0;
  for (int exponent = -12; exponent <= 6; ++exponent) {
    const double octave = exponent / std::log10(2.0) - lowest;  // from the smallest magnitude shown
    const double distance = (octave + 0.5) * column;
    if (octave < 0 || octave > octaves || distance - last < kLabelShare) continue;
    const bool is_wide_only = distance - last_on_phone < kPhoneLabelShare;
    last = distance;
    if (!is_wide_only) last_on_phone = distance;
    absl::StrAppend(&svg, AxisLabel(0.5 + distance, PowerOfTen(exponent), is_wide_only));
    absl::StrAppend(&svg, AxisLabel(0.5 - distance, absl::StrCat("−", PowerOfTen(exponent)), is_wide_only));
  }
  return svg + "</svg>";
}

// Values beyond the axis are drawn at its ends.
std::string DotsSvg(const std::vector<Dot>& dots, int low, int high, int height) {
  std::string svg = absl::StrFormat("<svg class=\"dots\" height=\"%d\">", height);
  for (int exponent = low; exponent <= high; ++exponent) {
    const double x = 100.0 * (exponent - low) / (high - low);
    absl::StrAppendFormat(&svg, "<line x1=\"%.2f%%\" x2=\"%.2f%%\" y2=\"%d\"/>", x, x, height);
  }
  for (const Dot& dot : dots) {
    if (!(dot.value > 0) || std::isinf(dot.value)) continue;
    const double x = 100 * std::clamp((std::log10(dot.value) - low) / (high - low), 0.0, 1.0);
    absl::StrAppendFormat(&svg, "<circle class=\"%s\" cx=\"%.2f%%\" cy=\"%.1f\" r=\"4\">%s</circle>", dot.css, x,
                          height / 2.0, Title(dot.title));
  }
  return svg + "</svg>";
}

std::string DotsAxisSvg(int low, int high) {
  std::string svg = "<svg class=\"axis\" height=\"16\">";
  const int phone_step = static_cast<int>(std::ceil(kPhoneLabelShare * (high - low)));
  for (int exponent = low; exponent <= high; ++exponent) {
    absl::StrAppend(&svg, AxisLabel(static_cast<double>(exponent - low) / (high - low), PowerOfTen(exponent),
                                    (exponent - low) % phone_step != 0));
  }
  return svg + "</svg>";
}

}  // namespace fsdp

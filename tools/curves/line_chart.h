// SPDX-License-Identifier: Apache-2.0
//
// LineChart: curves of runs over steps as inline SVG, complete without a script. Colours are classes that
// report_style.h defines: r0 to r7, `dashed` for further runs, and `twin` for a run whose curve is on an earlier one's,
// which its gaps show.
#ifndef FSDP_TOOLS_CURVES_LINE_CHART_H_
#define FSDP_TOOLS_CURVES_LINE_CHART_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/tools/curves/run_curves.h"

namespace fsdp {

// The notation of a curve's values.
enum class ValueUnit : uint8_t { kNumber, kBytes, kShare };

// "3e-4", "12.5k", "1.2 GB", "97 %": for an axis or a table; a dash for a value that is not finite. Pure.
std::string ValueText(double value, ValueUnit unit);

struct ChartOptions {
  Curve curve = Curve::kLoss;
  ValueUnit unit = ValueUnit::kNumber;

  // True if 0 is meaningful, so that the axis begins there.
  bool from_zero = false;

  // True if the axis may be logarithmic; it then is if all values are positive and the largest is at least 50 times the
  // smallest.
  bool may_be_log = false;

  // Of the values, above their axis; HTML.
  const char* axis_title = "";

  // True for a chart that has a row of its own.
  bool is_large = false;
};

struct LineChart {
  // Empty when no run has a finite value of the curve.
  std::string svg;

  // The left edge is step0, the right one step1; the lower one value0, the upper one value1. On a logarithmic axis the
  // values are powers of ten.
  double step0 = 0, step1 = 0, value0 = 0, value1 = 0;
  bool is_log = false;

  // Runs, by index, of which the second is mostly on the first.
  std::vector<std::pair<size_t, size_t>> coincident = {};
};

// The classes of the run that has `index` in the order of the command line.
std::string RunClass(size_t index);

// A part of a run is one line; if a later part repeats steps, the earlier line is pale there. A point of several lines
// is drawn as their mean, with a band from the smallest to the largest value. A value that is not finite is a gap with
// a dot above it. Vertical lines are restarts, short ones on the axis checkpoints. The size is bounded by the number of
// points. Pure.
LineChart DrawLineChart(const std::vector<RunCurves>& runs, const ChartOptions& options);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_LINE_CHART_H_

// SPDX-License-Identifier: Apache-2.0
//
// LineChart: curves of runs over steps as inline SVG, complete without a script. Colours are classes that
// report_style.h defines: r0 to r7, and `dashed` for further runs.
#ifndef FSDP_TOOLS_CURVES_LINE_CHART_H_
#define FSDP_TOOLS_CURVES_LINE_CHART_H_

#include <cstdint>
#include <string>
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

  // In units of the drawing, which fills the width of its container.
  int width = 600;
  int height = 210;
};

struct LineChart {
  // Empty when no run has a finite value of the curve.
  std::string svg;

  // The position of the data: pixel x0 is step0, x1 is step1, y0 is value0 (below), y1 is value1; on a logarithmic axis
  // the values are powers of ten.
  double x0 = 0, x1 = 0, y0 = 0, y1 = 0;
  double step0 = 0, step1 = 0, value0 = 0, value1 = 0;
  bool is_log = false;
};

// The classes of the run that has `index` in the order of the command line.
std::string RunClass(size_t index);

// A part of a run is one line; if a later part repeats steps, the earlier line is pale there. A point of several lines
// is drawn as their mean, with a band from the smallest to the largest value. A value that is not finite is a gap with
// a cross above it. Vertical lines are restarts, triangles on the axis checkpoints. The size is bounded by the number
// of points. Pure.
LineChart DrawLineChart(const std::vector<RunCurves>& runs, const ChartOptions& options);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_LINE_CHART_H_

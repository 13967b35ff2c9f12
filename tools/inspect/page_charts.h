// SPDX-License-Identifier: Apache-2.0
//
// The charts of a page about a checkpoint, as inline SVG without scripts or styles of their own: colours are classes
// that tools/page/page_style.h defines. Titles are escaped here; classes are not, and come from constants. All
// functions are pure.
#ifndef FSDP_TOOLS_INSPECT_PAGE_CHARTS_H_
#define FSDP_TOOLS_INSPECT_PAGE_CHARTS_H_

#include <string>
#include <vector>

#include "fsdp/checkpoint/source/value_statistics.h"

namespace fsdp {

// The octaves that a histogram shows: from the first to the last in which any of several tensors has elements.
struct OctaveRange {
  // Octave k has the magnitudes from 2^(kLowestExponent + k) to twice that (ValueStatistics).
  int first = 0;

  // Before `first`: nothing to show.
  int last = -1;

  // Extends the range by the octaves in which `statistics` has elements.
  void Include(const ValueStatistics& statistics);
};

// The share of elements in each octave: negative ones on the left, the largest magnitudes outermost, zeros in the
// middle, positive ones on the right. Heights are relative to the highest.
std::string HistogramSvg(const ValueStatistics& statistics, const OctaveRange& range, int height);

// The axis below such histograms: powers of ten, and 0.
std::string HistogramAxisSvg(const OctaveRange& range);

// Dots on a logarithmic axis from 10^low to 10^high, `height` pixels high; values that are not positive are left out.
// DotsAxisSvg is the axis below such charts. Precondition: low < high.
struct Dot {
  double value = 0;

  // As in BarPart (tools/page/bar_chart.h).
  std::string css;
  std::string title;
};

std::string DotsSvg(const std::vector<Dot>& dots, int low, int high, int height);
std::string DotsAxisSvg(int low, int high);

}  // namespace fsdp

#endif  // FSDP_TOOLS_INSPECT_PAGE_CHARTS_H_

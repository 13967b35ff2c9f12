// SPDX-License-Identifier: Apache-2.0
//
// ReportPage: one self-contained HTML page about training runs: a table, and curves of loss, gradient norm, learning
// rate, tokens per second, peak memory and hidden share of communication, all runs in one chart. It loads nothing, and
// its policy for content forbids the browser to. It is whole without its one script, which shows the values of the step
// under the pointer. The page holds the points that it draws as JSON (report_data.h), so it can be read by programs.
#ifndef FSDP_TOOLS_CURVES_REPORT_PAGE_H_
#define FSDP_TOOLS_CURVES_REPORT_PAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/tools/curves/run_curves.h"

namespace fsdp {

// Runs that a page may have: colours that can be told apart.
inline constexpr int kMaxRuns = 16;

// The argument of ReadRunCurves for a page of `runs` runs, which bounds its size by 10 MiB, and that of a single run by
// 2 MiB, whatever is in the files.
int64_t PointsOfRun(size_t runs);

// The page, UTF-8. Pure. Precondition: 1 to kMaxRuns runs.
std::string ReportPage(const std::vector<RunCurves>& runs);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_REPORT_PAGE_H_

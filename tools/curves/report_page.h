// SPDX-License-Identifier: Apache-2.0
//
// ReportPage: one self-contained HTML page about training runs: a table, and curves of loss, gradient norm, learning
// rate, tokens per second, peak memory and hidden share of communication, all runs in one chart. It loads nothing, and
// its content security policy forbids it. It is complete without its one script, which shows the values of the step
// under the pointer. The page contains its points as JSON (report_data.h) for programs.
#ifndef FSDP_TOOLS_CURVES_REPORT_PAGE_H_
#define FSDP_TOOLS_CURVES_REPORT_PAGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/tools/curves/run_curves.h"

namespace fsdp {

// The most runs of a page: as many as there are distinguishable colours.
inline constexpr int kMaxRuns = 16;

// The argument of ReadRunCurves for a page of `runs` runs. It bounds the page's size by 10 MiB, and by 2 MiB for a
// single run, for any files.
int64_t PointsOfRun(size_t runs);

// The page, UTF-8. Pure. Precondition: 1 to kMaxRuns runs.
std::string ReportPage(const std::vector<RunCurves>& runs);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_REPORT_PAGE_H_

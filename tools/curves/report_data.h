// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_TOOLS_CURVES_REPORT_DATA_H_
#define FSDP_TOOLS_CURVES_REPORT_DATA_H_

#include <string>
#include <vector>

#include "fsdp/tools/curves/line_chart.h"
#include "fsdp/tools/curves/run_curves.h"

namespace fsdp {

// "loss", "grad_norm", ...: the member of a line of metrics.
const char* CurveName(Curve curve);

// The page's own data, for its script and for other programs, as one JSON object that may be inside a <script> element:
//
//   {"charts": {"loss": {"x": [x0, x1], "steps": [step0, step1], "unit": "number"}, ...},
//    "runs": [{"path": "...", "class": "r0", "lines": 240, "stride": 1, "unfinished_bytes": 0, "saves": [119, 239],
//              "parts": [{"first": [0, 1, ...], "last": [0, 1, ...],
//                         "loss": {"min": [...], "max": [...], "mean": [...]}, ...}, ...]}, ...]}
//
// A point covers the lines of the steps from `first` to `last`. With a stride of 1 a curve is the list of its values in
// place of the three. Null: no finite value. Curves without a value in a run are left out. Doubles read back as the
// same doubles. `charts` are in the order of Curve.
std::string ReportData(const std::vector<RunCurves>& runs, const std::vector<LineChart>& charts);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CURVES_REPORT_DATA_H_

// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_inspect.h"

#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/ckpt_flags.h"
#include "tools/ckpt_report.h"
#include "tools/ckpt_summary.h"

namespace fsdp {

int RunInspect(const CommandLine& line) {
  const absl::StatusOr<CheckpointSummary> summary = Summarise(line.operands[0]);
  if (!summary.ok()) {
    if (absl::GetFlag(FLAGS_json)) std::fputs(ProblemJson(line.operands[0], summary.status()).c_str(), stdout);
    return ReportFailure("ckpt inspect", summary.status());
  }
  const bool tensors = absl::GetFlag(FLAGS_tensors);
  const std::string text = absl::GetFlag(FLAGS_json) ? SummaryJson(*summary, tensors) : SummaryText(*summary, tensors);
  std::fputs(text.c_str(), stdout);
  if (summary->problem.empty()) return kExitDone;
  return ReportFailure("ckpt inspect", absl::DataLossError(absl::StrCat(summary->path, ": ", summary->problem)));
}

}  // namespace fsdp

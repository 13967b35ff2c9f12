// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/step_progress.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace fsdp {

StepProgress::StepProgress(int64_t steps) : steps_(steps), is_terminal_(isatty(STDOUT_FILENO) == 1) {}

StepProgress::~StepProgress() {
  if (line_open_) std::printf("\n");
}

void StepProgress::Update(const StepMetrics& metrics) {
  const absl::Time now = absl::Now();
  if (now - shown_ < (is_terminal_ ? absl::Milliseconds(100) : absl::Seconds(5))) return;
  shown_ = now;
  const std::string line = StepProgressLine(metrics, steps_);
  std::printf(is_terminal_ ? "\r\033[K   %s" : "   %s\n", line.c_str());
  std::fflush(stdout);
  line_open_ = is_terminal_;
}

std::string StepProgressLine(const StepMetrics& metrics, int64_t steps) {
  constexpr int64_t kColumns = 16;  // the line then fits a terminal of 80
  const int64_t done = metrics.step + 1;
  const int64_t filled = steps > 0 ? kColumns * done / steps : 0;
  const absl::Duration left = absl::Seconds(metrics.step_seconds) * (steps - done);
  return absl::StrFormat("[%s%s] step %d of %d, loss %.3f, %.0f tokens/s, %s left", std::string(filled, '#'),
                         std::string(kColumns - filled, '-'), done, steps, metrics.loss, metrics.tokens_per_second,
                         absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))));
}

}  // namespace fsdp

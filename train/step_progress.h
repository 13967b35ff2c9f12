// SPDX-License-Identifier: Apache-2.0
//
// StepProgress: how far a training run is, on stdout: a bar that is redrawn on a terminal, a line now and then
// elsewhere.
#ifndef FSDP_TRAIN_STEP_PROGRESS_H_
#define FSDP_TRAIN_STEP_PROGRESS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "fsdp/train/metrics_writer.h"

namespace fsdp {

class StepProgress {
 public:
  explicit StepProgress(int64_t steps);

  // Ends the line that is being redrawn.
  ~StepProgress();
  StepProgress(const StepProgress&) = delete;
  StepProgress& operator=(const StepProgress&) = delete;

  // Shows the step that was done last, unless one was shown a moment ago.
  void Update(const StepMetrics& metrics);

 private:
  const int64_t steps_;
  const bool is_terminal_;
  absl::Time shown_ = absl::InfinitePast();
  bool line_open_ = false;
};

// "[########--------] step 120 of 240, loss 2.613, 1834 tokens/s, 12s left".
std::string StepProgressLine(const StepMetrics& metrics, int64_t steps);

}  // namespace fsdp

#endif  // FSDP_TRAIN_STEP_PROGRESS_H_

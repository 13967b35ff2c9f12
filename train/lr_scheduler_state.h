// SPDX-License-Identifier: Apache-2.0
//
// The state of a learning-rate schedule in checkpoints, with the names of PyTorch's schedulers: last_epoch, _last_lr,
// base_lrs. The rate is a function of the step (learning_rate.h), so the state restores nothing: it shows other
// programs the schedule, and a resume whether it continues on the same curve.
#ifndef FSDP_TRAIN_LR_SCHEDULER_STATE_H_
#define FSDP_TRAIN_LR_SCHEDULER_STATE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/train/learning_rate.h"

namespace fsdp {

// The state after `steps_done` steps, as a JSON object; `groups` is the number of param groups, each of which has the
// same rate.
std::string LrSchedulerState(const LearningRateOptions& options, int64_t steps_done, size_t groups);

// Sentences about how a run with `options` that continues at `step` differs from `state`, which PyTorch may have
// written; none if its next step has the learning rate that it would have had.
std::vector<std::string> DescribeSchedulerChange(const LearningRateOptions& options, int64_t step,
                                                 const std::string& state);

}  // namespace fsdp

#endif  // FSDP_TRAIN_LR_SCHEDULER_STATE_H_

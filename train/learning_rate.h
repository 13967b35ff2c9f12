// SPDX-License-Identifier: Apache-2.0
//
// LearningRate: linear warm-up over warmup_steps to `lr`, then a schedule, which may end at `min_lr`. A pure function
// of the step, so a resumed run continues the same curve.
#ifndef FSDP_TRAIN_LEARNING_RATE_H_
#define FSDP_TRAIN_LEARNING_RATE_H_

#include <cstdint>
#include <string_view>

namespace fsdp {

// The curve after the warm-up, by the names of Hugging Face's schedulers.
enum class LrSchedule : uint8_t {
  kConstant,  // lr
  kCosine,    // half a cosine down to min_lr, which begins at the end of the warm-up
  kLinear,    // a line down to min_lr, likewise
  kWsd,       // warm-up, stable, decay: lr, then a line down to min_lr, which ends with the run
};

struct LearningRateOptions {
  // The highest rate, at the end of the warm-up, and the final rate of the decay.
  double lr = 1e-3;
  double min_lr = 1e-3;

  // Steps of the warm-up; 0: none.
  int64_t warmup_steps = 0;

  // Steps of the whole run, including those before a resume.
  int64_t steps = 1;

  LrSchedule schedule = LrSchedule::kCosine;

  // Steps of the decay; after them the rate is min_lr. 0: all that are left after the warm-up, or with kWsd a tenth of
  // `steps`.
  int64_t decay_steps = 0;

  // The schedule was chosen by name: checkpoints have its state (lr_scheduler_state.h).
  bool is_named = false;
};

// "constant", "cosine", "linear" or "wsd"; a cosine whose ends are equal is constant.
std::string_view LrScheduleName(const LearningRateOptions& options);

// The schedule of a name; kConstant for other names.
LrSchedule LrScheduleOf(std::string_view name);

// The steps of the decay, at least 1, whether they are given or follow from the others.
int64_t DecaySteps(const LearningRateOptions& options);

// The learning rate of step `step`, counted from 0. The first step of a warm-up has lr / warmup_steps, not 0.
double LearningRate(const LearningRateOptions& options, int64_t step);

}  // namespace fsdp

#endif  // FSDP_TRAIN_LEARNING_RATE_H_

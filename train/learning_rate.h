// SPDX-License-Identifier: Apache-2.0
//
// LearningRate: linear warm-up over warmup_steps to `lr`, then half a cosine down to `min_lr`, which it would reach at
// step `steps`; constant after the warm-up if the two are equal. A pure function of the step, so a resumed run
// continues the same curve.
#ifndef FSDP_TRAIN_LEARNING_RATE_H_
#define FSDP_TRAIN_LEARNING_RATE_H_

#include <cstdint>

namespace fsdp {

struct LearningRateOptions {
  // The highest rate, at the end of the warm-up, and the final rate of the cosine.
  double lr = 1e-3;
  double min_lr = 1e-3;

  // Steps of the warm-up; 0: none.
  int64_t warmup_steps = 0;

  // Steps of the whole run, including those before a resume.
  int64_t steps = 1;
};

// The learning rate of step `step`, counted from 0. The first step of a warm-up has lr / warmup_steps, not 0.
double LearningRate(const LearningRateOptions& options, int64_t step);

}  // namespace fsdp

#endif  // FSDP_TRAIN_LEARNING_RATE_H_

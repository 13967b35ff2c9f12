// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace fsdp {

// In a warm-up of w steps, step s has lr * (s + 1) / w. After it the argument of the cosine is pi * (s - w) / (steps -
// w): 0 at the first step, and one step short of pi, and so of min_lr, at the last one.
double LearningRate(const LearningRateOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const double decay_steps = static_cast<double>(std::max<int64_t>(1, options.steps - options.warmup_steps));
  const double progress = static_cast<double>(step - options.warmup_steps) / decay_steps;
  return options.min_lr + 0.5 * (options.lr - options.min_lr) * (1 + std::cos(M_PI * progress));
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fsdp {
namespace {

constexpr std::pair<LrSchedule, std::string_view> kNames[] = {{LrSchedule::kConstant, "constant"},
                                                              {LrSchedule::kCosine, "cosine"},
                                                              {LrSchedule::kLinear, "linear"},
                                                              {LrSchedule::kWsd, "wsd"}};

}  // namespace

std::string_view LrScheduleName(const LearningRateOptions& options) {
  const bool is_level = options.schedule == LrSchedule::kCosine && options.min_lr == options.lr;
  for (const auto& [schedule, name] : kNames) {
    if (schedule == options.schedule && !is_level) return name;
  }
  return "constant";
}

LrSchedule LrScheduleOf(std::string_view name) {
  for (const auto& [schedule, known] : kNames) {
    if (known == name) return schedule;
  }
  return LrSchedule::kConstant;
}

int64_t DecaySteps(const LearningRateOptions& options) {
  const bool is_wsd = options.schedule == LrSchedule::kWsd;
  const int64_t left = options.steps - options.warmup_steps;
  const int64_t otherwise = is_wsd ? std::min(options.steps / 10, left) : left;
  return std::max<int64_t>(1, options.decay_steps > 0 ? options.decay_steps : otherwise);
}

// In a warm-up of w steps, step s has lr * (s + 1) / w. A decay of d steps that begins at step b has the progress
// (s - b) / d: 0 at its first step, and one step short of 1, and so of min_lr, at its last one.
double LearningRate(const LearningRateOptions& options, int64_t step) {
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  if (options.schedule == LrSchedule::kConstant) return options.lr;
  const int64_t decay = DecaySteps(options);
  const int64_t begin = options.schedule == LrSchedule::kWsd ? options.steps - decay : options.warmup_steps;
  const double progress = std::clamp(static_cast<double>(step - begin) / static_cast<double>(decay), 0.0, 1.0);
  const double above = options.lr - options.min_lr;
  if (options.schedule == LrSchedule::kCosine) return options.min_lr + 0.5 * above * (1 + std::cos(M_PI * progress));
  // Exact at both ends.
  return progress == 0 ? options.lr : options.min_lr + above * (1 - progress);
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/lr_scheduler_state.h"

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace fsdp {

std::string LrSchedulerState(const LearningRateOptions& options, int64_t steps_done, size_t groups) {
  // PyTorch counts epochs, which are steps in a schedule of steps, and _last_lr is the rate of the next one.
  const nlohmann::ordered_json state = {
      {"schedule", std::string(LrScheduleName(options))},
      {"base_lrs", std::vector<double>(groups, options.lr)},
      {"last_epoch", steps_done},
      {"_step_count", steps_done + 1},
      {"_last_lr", std::vector<double>(groups, LearningRate(options, steps_done))},
      {"min_lr", options.min_lr},
      {"warmup_steps", options.warmup_steps},
      {"lr_decay_steps", options.schedule == LrSchedule::kConstant ? 0 : DecaySteps(options)},
      {"steps", options.steps}};
  return state.dump();
}

std::vector<std::string> DescribeSchedulerChange(const LearningRateOptions& options, int64_t step,
                                                 const std::string& state) {
  const nlohmann::json saved = nlohmann::json::parse(state, nullptr, /*allow_exceptions=*/false);
  // PyTorch's schedulers have both; a scheduler of a user's own may have neither.
  const nlohmann::json nothing;
  const nlohmann::json epoch = saved.is_object() ? saved.value("last_epoch", nothing) : nothing;
  const nlohmann::json rates = saved.is_object() ? saved.value("_last_lr", nothing) : nothing;
  if (!epoch.is_number() || !rates.is_array() || rates.empty() || !rates[0].is_number()) {
    return {
        "its lr_scheduler has no last_epoch and _last_lr as PyTorch's have: whether the learning rate continues on "
        "the same curve is not known"};
  }
  std::vector<std::string> sentences;
  if (epoch.get<int64_t>() != step) {
    sentences.push_back(absl::StrFormat("its lr_scheduler was at step %d; the schedule continues at step %d of the run",
                                        epoch.get<int64_t>(), step));
  }
  const double last = rates[0].get<double>(), next = LearningRate(options, step);
  if (last != next) {
    sentences.push_back(absl::StrFormat(
        "step %d has the learning rate %g, and would have had %g: --lr_schedule, --lr, --min_lr, --warmup_steps, "
        "--lr_decay_steps or --steps differ",
        step, next, last));
  }
  return sentences;
}

}  // namespace fsdp

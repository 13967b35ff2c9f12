// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/gradient_use.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {

void GradientUse::MarkUsed(int index) {
  Unit& unit = units_.unit(index);
  std::vector<bool>& used = unit.state.gradients.used;
  used.resize(unit.parameters.size(), false);
  for (size_t i = 0; i < used.size(); ++i) used[i] = used[i] || unit.parameters[i]->grad_used;
}

// A unit that runs twice in a forward is stored twice in a backward; the second time adds to the first.
void GradientUse::MarkStored(int index) {
  Unit& unit = units_.unit(index);
  const bool is_known = std::find(stored_.begin(), stored_.end(), index) != stored_.end();
  if (unit.settings.gradient_rules == GradientRules::kFsdp2 && !is_known) {
    stored_.push_back(index);
    std::vector<bool>& had_grad = unit.state.gradients.had_grad;
    had_grad.clear();
    for (const auto& parameter : unit.sharded_parameters) had_grad.push_back(parameter->has_grad);
  }
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    unit.sharded_parameters[i]->has_grad |= unit.parameters[i]->requires_grad;  // one that was frozen keeps its own
  }
}

// All ranks reduced the same units, so all make this exchange or no rank does. A rank that used everything cannot leave
// it out: others may not have. The first byte distinguishes the message from a blob of any other call.
absl::Status GradientUse::Agree() {
  if (stored_.empty()) return absl::OkStatus();
  const std::vector<int> stored = std::exchange(stored_, {});
  std::string mine = "\x01";
  for (const int index : stored) {
    std::vector<bool> used = std::exchange(units_.unit(index).state.gradients.used, {});
    used.resize(units_.unit(index).parameters.size(), false);
    for (const bool one : used) mine += one ? '1' : '0';
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllRanks(units_.groups()).AllGatherObjectUnordered(mine));
  for (const std::string& theirs : all) {
    if (theirs.size() != mine.size() || theirs[0] != mine[0]) {
      return absl::FailedPreconditionError("ranks reduced the gradients of different units in one backward");
    }
  }
  size_t at = 1;
  for (const int index : stored) {
    const Unit& unit = units_.unit(index);
    for (size_t i = 0; i < unit.parameters.size(); ++i, ++at) {
      const bool used =
          std::any_of(all.begin(), all.end(), [&](const std::string& theirs) { return theirs[at] == '1'; });
      const bool is_new = used && unit.parameters[i]->requires_grad;
      unit.sharded_parameters[i]->has_grad = is_new || unit.state.gradients.had_grad[i];
    }
  }
  return absl::OkStatus();
}

bool GradientUse::Discard() {
  bool any = false;
  for (int index = 0; index < units_.size(); ++index) {
    Unit& unit = units_.unit(index);
    unit.state.gradients.used.clear();
    unit.state.gradients.had_grad.clear();
    for (const auto& parameter : unit.sharded_parameters) {
      any |= std::exchange(parameter->has_grad, false);
    }
  }
  stored_.clear();
  return any;
}

}  // namespace fsdp

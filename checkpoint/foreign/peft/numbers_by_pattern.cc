// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/peft/numbers_by_pattern.h"

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<NumbersByPattern> NumbersByPattern::Create(const std::vector<std::pair<std::string, double>>& patterns) {
  NumbersByPattern numbers;
  for (const auto& [text, number] : patterns) {
    FSDP_ASSIGN_OR_RETURN(NamePattern pattern, NamePattern::Create(text));
    numbers.patterns_.emplace_back(std::move(pattern), number);
  }
  return numbers;
}

double NumbersByPattern::Work(double names, double bytes) const {
  double work = 0;
  for (const auto& [pattern, number] : patterns_) work += 16 * names + static_cast<double>(pattern.states()) * bytes;
  return work;
}

double NumbersByPattern::Of(const std::string& module, double by_default) const {
  for (const auto& [pattern, number] : patterns_) {
    if (pattern.MatchesEndOf(module)) return number;
  }
  return by_default;
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// NumbersByPattern: rank_pattern or alpha_pattern of an adapter's config: a number for the modules whose names match.
#ifndef FSDP_CHECKPOINT_FOREIGN_PEFT_NUMBERS_BY_PATTERN_H_
#define FSDP_CHECKPOINT_FOREIGN_PEFT_NUMBERS_BY_PATTERN_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/peft/name_pattern.h"

namespace fsdp {

class NumbersByPattern {
 public:
  // Errors of NamePattern::Create.
  static absl::StatusOr<NumbersByPattern> Create(const std::vector<std::pair<std::string, double>>& patterns);

  // Of matching all patterns with `names` names of `bytes` bytes in all, at most, in states and bytes.
  double Work(double names, double bytes) const;

  // The number of the first pattern that matches the end of `module`.
  double Of(const std::string& module, double by_default) const;

 private:
  std::vector<std::pair<NamePattern, double>> patterns_;
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_PEFT_NUMBERS_BY_PATTERN_H_

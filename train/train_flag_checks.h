// SPDX-License-Identifier: Apache-2.0
//
// CheckTrainFlags: what can be said of train_gpt's flags before anything is built: choices, numbers, and flags that
// have a meaning only together.
#ifndef FSDP_TRAIN_TRAIN_FLAG_CHECKS_H_
#define FSDP_TRAIN_TRAIN_FLAG_CHECKS_H_

#include <string_view>

#include "absl/status/status.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"

namespace fsdp {

// kInvalidArgument: "--FLAG=VALUE: expected EXPECTED".
absl::Status BadFlagValue(std::string_view flag, std::string_view value, std::string_view expected);

// OK, or kInvalidArgument that names the flag, its value and what was expected, for the first flag that is wrong.
absl::Status CheckTrainFlags();

// Whether losses are scaled, and how, as the flags are.
bool ScalesGradients();
GradScalerOptions GradScalerFromFlags();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_FLAG_CHECKS_H_

// SPDX-License-Identifier: Apache-2.0
//
// CheckTrainFlags: the checks of train_gpt's flags that are possible before anything is built: choices, numbers, and
// flags that have a meaning only together.
#ifndef FSDP_TRAIN_TRAIN_FLAG_CHECKS_H_
#define FSDP_TRAIN_TRAIN_FLAG_CHECKS_H_

#include <string_view>

#include "absl/status/status.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"

namespace fsdp {

// kInvalidArgument: "--FLAG=VALUE: expected EXPECTED".
absl::Status BadFlagValue(std::string_view flag, std::string_view value, std::string_view expected);

// OK, or kInvalidArgument for the first wrong flag, naming the flag, its value and what was expected.
absl::Status CheckTrainFlags();

// True if the flags ask for scaled losses.
bool ScalesGradients();
GradScalerOptions GradScalerFromFlags();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_FLAG_CHECKS_H_

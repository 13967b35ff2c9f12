// SPDX-License-Identifier: Apache-2.0
//
// The flags of train_gpt, as TrainOptions. Every flag that exists does something; a value that names something which
// this program cannot do yet is refused by name.
#ifndef FSDP_TRAIN_TRAIN_FLAGS_H_
#define FSDP_TRAIN_TRAIN_FLAGS_H_

#include "absl/status/statusor.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The flags as they are now, once the command line was parsed. kInvalidArgument or kUnimplemented names the flag, its
// value and what was expected; the program then exits with status 2.
absl::StatusOr<TrainOptions> TrainOptionsFromFlags();

}  // namespace fsdp

#endif  // FSDP_TRAIN_TRAIN_FLAGS_H_

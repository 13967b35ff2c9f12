// SPDX-License-Identifier: Apache-2.0
//
// CompareModels: whether two checkpoints, of whatever formats, kinds and world sizes, hold the same model, byte for
// byte.
#ifndef FSDP_TRAIN_MODEL_COMPARE_H_
#define FSDP_TRAIN_MODEL_COMPARE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// The number of model tensors, when both hold the same ones; kDataLoss names the first that differs and how.
absl::StatusOr<int64_t> CompareModels(const std::string& path, const std::string& other_path);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODEL_COMPARE_H_

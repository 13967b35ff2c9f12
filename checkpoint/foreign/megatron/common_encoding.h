// SPDX-License-Identifier: Apache-2.0
//
// EncodeCommon: the pickle of common.pt, the inverse of common_values.h: all that is no tensor of the model or of the
// optimizer. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_COMMON_ENCODING_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_COMMON_ENCODING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct CommonOfRun {
  int64_t iteration = 0;
  bool has_optimizer = false;       // its state is in the checkpoint
  std::optional<double> step = {};  // that the optimizer has made
};

// Of the texts of `contents`, which refer to no tensors. With an optimizer, its groups: those of "optimizer.common", as
// a checkpoint of Megatron-Core has them, otherwise param_groups with the four members by which Megatron-Core finds
// them. It decides itself which parameters decay (wd_mult 1) and which do not (wd_mult 0), so there are both.
// kInvalidArgument for groups that differ and that it could not tell apart, and for several optimizers.
absl::StatusOr<std::string> EncodeCommon(const StateDict& contents, const CommonOfRun& run);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_COMMON_ENCODING_H_

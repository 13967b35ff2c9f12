// SPDX-License-Identifier: Apache-2.0
//
// ReadWholeOptimizer: the optimizer of ZeRO 0, which the model file has whole, in three forms:
//
//   {"state": ..., "param_groups": ...}                                  torch's own, with float32 parameters
//   {"optimizer_state_dict": torch's own, "fp32_groups": [[tensor]]}     with low precision: its parameters in float32
//   {"optimizer_state_dict": ..., "fp32_groups_flat": [tensor]}          the same with fused optimizers, in flat
//   tensors
//
// Parameters go by id. The float32 ones become the state "fp32" of their parameter, since ids are resolved only with
// the state (torch_optimizer.h). The third form has neither names nor shapes, and is left out. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_WHOLE_OPTIMIZER_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_WHOLE_OPTIMIZER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

struct WholeOptimizer {
  TorchNode optimizer;  // {"state": ..., "param_groups": ...}, or empty
  TorchNode others;     // such as the loss scale
  std::vector<std::string> left_out;
  std::string note;  // where the float32 parameters are; empty without them
};

// kDataLoss for float32 parameters that do not fit the groups.
absl::StatusOr<WholeOptimizer> ReadWholeOptimizer(TorchNode node);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_WHOLE_OPTIMIZER_H_

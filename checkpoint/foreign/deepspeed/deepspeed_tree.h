// SPDX-License-Identifier: Apache-2.0
//
// TreeOfDeepSpeed: the values of all files as one tree, as if torch.save had written them whole:
//
//   {"module": {NAME: tensor}, "optimizer": {"state": {NAME: ...}, "param_groups": [...]}, and all other entries}
//
// Tied parameters are one tensor under two names. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_TREE_H_
#define FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_TREE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "fsdp/checkpoint/foreign/deepspeed/model_states.h"
#include "fsdp/checkpoint/foreign/deepspeed/trained_states.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

struct DeepSpeedTree {
  TorchNode root;
  std::vector<TensorRole> roles;  // of "module" and "optimizer", unless the caller's options say others
  std::vector<std::string> notes;
  std::vector<std::string> left_out;
};

// `trained` is empty for ZeRO 0. kDataLoss for a parameter whose elements are in no file, and for a name of a tied
// parameter that is not there.
absl::StatusOr<DeepSpeedTree> TreeOfDeepSpeed(ModelStates model, TrainedStates trained, const DeepSpeedFiles& files,
                                              const TensorSourceOptions& options, const TorchLeafTypes& types);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_DEEPSPEED_DEEPSPEED_TREE_H_

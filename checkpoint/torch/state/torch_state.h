// SPDX-License-Identifier: Apache-2.0
//
// StateOfTree: which of the things that people save are the model, the optimizer and the rest. Recognised: a plain
// state dict; {"model", "optim", "step", ...} under the usual spellings (model, state_dict, module, model_state_dict;
// optim, optimizer, optimizer_state_dict, optim_state_dict); an optimizer's state dict by itself. Whatever is neither
// model nor optimizer is an extra value. Pure.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_TORCH_STATE_H_
#define FSDP_CHECKPOINT_TORCH_STATE_TORCH_STATE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/state/torch_optimizer.h"
#include "fsdp/checkpoint/torch/state/torch_tree.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Where a tensor of the state comes from.
struct TorchLeaf {
  int tensor = -1;     // index into the tensors; -1: not a tensor there
  std::string bytes;   // then, its elements: a Python number, such as an old optimizer's step
  int64_t offset = 0;  // elements of the tensor before it: it may be a part of a flat one of FSDP1
};

struct TorchState {
  StateDict contents;  // tensors have no shards
  std::map<StateKey, TorchLeaf> leaves;
  int64_t step = -1;  // "step" of the file; -1 where there is none
};

// Tensors in param_groups become a part of that text; flat parameters of FSDP1 are taken apart where it is known how.
// kInvalidArgument, with the reason, for what is no state dict, and for optimizer state whose parameters cannot be told
// (ids without an order, flat parameters without a layout); kDataLoss for names that are there twice.
absl::StatusOr<TorchState> StateOfTree(const TorchNode& root, const std::vector<TorchLeafType>& tensors,
                                       const TorchStateOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_TORCH_STATE_H_

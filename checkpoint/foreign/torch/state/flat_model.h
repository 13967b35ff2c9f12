// SPDX-License-Identifier: Apache-2.0
//
// ReplaceFlatParameters: the flat parameters of FSDP1's LOCAL state dicts as the parameters inside them. Nothing is
// copied: a parameter's leaf is the flat tensor and an offset. Pure, except for options.read.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_FLAT_MODEL_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_FLAT_MODEL_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/state/read_torch_optimizer.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// The name and the tensor of a flat parameter.
using FlatTensor = std::pair<std::string, int>;

// Adds the parameters of `flats` to `state`, which has the rest of the model. kInvalidArgument if their layout is not
// known, or does not fit.
absl::Status ReplaceFlatParameters(const std::vector<FlatTensor>& flats, const TorchLeafTypes& tensors,
                                   const TorchStateOptions& options, TorchState& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_FLAT_MODEL_H_

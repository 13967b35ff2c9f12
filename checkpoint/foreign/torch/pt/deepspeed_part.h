// SPDX-License-Identifier: Apache-2.0
//
// WordOnDeepSpeed: one file of a DeepSpeed checkpoint, which torch.save has written, read without the others. A file
// with parts of ranks looks like a model or an optimizer, but is not one. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_DEEPSPEED_PART_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_DEEPSPEED_PART_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

// kInvalidArgument if the dict `root`, whose tensors have `types`, has parts of ranks: an optimizer of ZeRO, or ZeRO
// 3's model, whose parameters have no elements. Otherwise what is not in it, for TensorSource::left_out; empty for the
// file of any other program, and for ZeRO 0's, which has everything.
absl::StatusOr<std::string> WordOnDeepSpeed(const TorchNode& root, const TorchLeafTypes& types);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_DEEPSPEED_PART_H_

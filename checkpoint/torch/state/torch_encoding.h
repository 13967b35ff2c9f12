// SPDX-License-Identifier: Apache-2.0
//
// State dicts as the pickles of torch.save: what torch_state.h reads, written so that torch.load(weights_only=True)
// takes it. Pure; equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_TORCH_ENCODING_H_
#define FSDP_CHECKPOINT_TORCH_STATE_TORCH_ENCODING_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/torch/state/pickle_writer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// A whole, row-major tensor whose bytes are storage `key`.
void EncodeTorchTensor(PickleWriter& pickle, const std::string& key, DType dtype, const Shape& shape);

// The contents of a storage: a tensor of the state dict, or a small tensor of param_groups with its bytes.
using EncodedStorage = std::variant<StateKey, LiteralTensor>;

struct EncodedTorchState {
  std::string pickle;
  std::vector<EncodedStorage> storages;  // storage i has the key "i"
};

// The model alone as a plain state dict; with anything beside it {"model": ..., "optim": {"state", "param_groups"}, and
// the extra values under their own names}. Aliases share the storage of their tensor. kInvalidArgument names an extra
// value that would take the place of "model" or "optim"; kDataLoss param_groups that are no JSON.
absl::StatusOr<EncodedTorchState> EncodeTorchState(const StateDict& contents);

// param_groups as PyTorch wants them: a group that our optimizers made gets the options that only PyTorch's have, with
// their defaults; one of PyTorch's stays as it is. betas are a tuple.
absl::StatusOr<PythonJson> TorchParamGroups(const std::string& json);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_TORCH_ENCODING_H_

// SPDX-License-Identifier: Apache-2.0
//
// State dicts as the pickles of torch.save: the inverse of torch_state.h, in a form that torch.load(weights_only=True)
// accepts. Only the pickle is created here; the storages' bytes follow it in an archive (pt/torch_writer.h). Pure;
// equal input gives equal bytes.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_ENCODING_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_ENCODING_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// The keys of the model and of the optimizer in PyTorch's formats: "model" and "optim", or, if a plain extra value has
// that name ("model": "resnet18"), another by which they are known.
struct BranchKeys {
  std::string model;
  std::string optim;
};
BranchKeys BranchKeysOf(const StateDict& contents);

// True if `contents` has a tensor or a value of a model; state or groups of an optimizer.
bool HoldsModel(const StateDict& contents);
bool HoldsOptimizer(const StateDict& contents);

// True for an extra value with the key that the model of `contents`, or its optimizer, if there is one, has: a reader
// would take it for them.
bool IsNameOfBranch(const StateKey& key, const BranchKeys& keys, const StateDict& contents);

// Pushes a whole, row-major tensor whose bytes are the storage `key`.
void EncodeTorchTensor(PickleWriter& pickle, const std::string& key, DType dtype, const Shape& shape);

struct EncodedTorchState {
  // The contents of a storage: an entry of the state dict, or a small tensor of param_groups. Four bytes, because a
  // model may have a million storages.
  struct Storage {
    bool is_literal : 1;
    uint32_t number : 31;  // into the entries of the state dict, or into `literals`
  };

  std::string pickle;
  std::vector<Storage> storages;  // storage i has the key "i"
  std::vector<LiteralTensor> literals;
};

// A model without other values becomes a plain state dict; a model with an optimizer or extra values becomes {"model":
// ..., "optim": {"state": ..., "param_groups": ...}, and each extra value under its own name}. Aliases share the
// storage of their tensor; parts of an extra value are inside it (extra_parts.h), and values of the model inside the
// model (model_value.h). "model" and "optim" are BranchKeysOf. kInvalidArgument names an extra value that would replace
// one (IsNameOfBranch), and is an error of PartsOfExtras; kDataLoss for param_groups that are not JSON.
absl::StatusOr<EncodedTorchState> EncodeTorchState(const StateDict& contents);

// param_groups as PyTorch's optimizers expect them: a group from an optimizer of this project gets the options that
// only PyTorch's have, with their defaults; a group that came from PyTorch keeps its own. betas become a tuple, and
// numbers that were tensors become tensors again (literal_tensor.h). Errors as EncodeTorchState; kInvalidArgument also
// for a global that no state dict needs.
absl::StatusOr<PythonJson> TorchParamGroups(const std::string& json);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_TORCH_ENCODING_H_

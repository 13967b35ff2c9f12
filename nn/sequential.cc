// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/sequential.h"

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<TensorList> Sequential::DoForwardList(const TensorList& inputs, Tape& tape) {
  TensorList tensors = inputs;
  for (const auto& [name, child] : children()) {
    FSDP_ASSIGN_OR_RETURN(tensors, child->Forward(std::move(tensors), tape));
  }
  return tensors;
}

absl::StatusOr<TensorList> Sequential::DoBackwardList(const TensorList& grad_outputs, Tape& tape) {
  TensorList tensors = grad_outputs;
  for (auto child = children().rbegin(); child != children().rend(); ++child) {
    FSDP_ASSIGN_OR_RETURN(tensors, child->second->Backward(std::move(tensors), tape));
  }
  return tensors;
}

}  // namespace fsdp

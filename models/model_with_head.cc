// SPDX-License-Identifier: Apache-2.0
#include "fsdp/models/model_with_head.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"

namespace fsdp {

// The distance between the rows of logits is for products only, so it is the same for the loss.
void ModelWithHead::SetParts(Module* base, Linear* head) {
  base_ = base;
  head_ = head;
  head_->PadOutputRows();
}

absl::StatusOr<TensorList> ModelWithHead::DoForwardList(const TensorList& inputs, Tape& tape) {
  if (inputs.empty() || inputs.size() > 2) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(type_name()), ": forward was given ", inputs.size(),
                                                   " tensors, expected tokens, or tokens and targets"));
  }
  FSDP_ASSIGN_OR_RETURN(const Tensor hidden, base_->Forward(inputs[0], tape));
  if (inputs.size() == 2) {
    FSDP_ASSIGN_OR_RETURN(Tensor loss, loss_.Forward(*head_, hidden, inputs[1], tape));
    return TensorList{std::move(loss)};
  }
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, head_->Forward(hidden, tape));
  return TensorList{AsRows(logits)};
}

// A loss has no gradient to be given, so an undefined one means that forward computed the loss.
absl::StatusOr<TensorList> ModelWithHead::DoBackwardList(const TensorList& grad_outputs, Tape& tape) {
  if (grad_outputs.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(type_name()), ": backward was given ",
                                                   grad_outputs.size(),
                                                   " tensors, expected the gradient of the logits, "
                                                   "or an undefined tensor for a loss"));
  }
  const bool is_loss = !grad_outputs[0].defined();
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_hidden,
                        is_loss ? loss_.Backward(*head_, tape) : head_->Backward(grad_outputs[0], tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_tokens, base_->Backward(grad_hidden, tape));
  if (is_loss) return TensorList{std::move(grad_tokens), Tensor()};
  return TensorList{std::move(grad_tokens)};
}

}  // namespace fsdp

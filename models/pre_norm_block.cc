// SPDX-License-Identifier: Apache-2.0
//
// Each half reads its input twice, through the norm and around it, so its gradient is the sum of both paths. Sums are
// written to the memory of the branch, which is no longer needed.
#include "fsdp/models/pre_norm_block.h"

#include "fsdp/base/status_macros.h"

namespace fsdp {

absl::StatusOr<Tensor> PreNormBlock::DoForward(const Tensor& x, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor normed, attention_norm_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor attended, attention_->Forward(normed, tape));
  const Tensor middle = AddResidual(attended, x, tape);
  FSDP_ASSIGN_OR_RETURN(Tensor normed_middle, mlp_norm_->Forward(middle, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor out, mlp_->Forward(normed_middle, tape));
  return AddResidual(out, middle, tape);
}

absl::StatusOr<Tensor> PreNormBlock::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_normed_middle, mlp_->Backward(grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_through_mlp, mlp_norm_->Backward(grad_normed_middle, tape));
  const Tensor grad_middle = AddResidual(grad_through_mlp, grad_output, tape);
  FSDP_ASSIGN_OR_RETURN(Tensor grad_normed, attention_->Backward(grad_middle, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_through_attention, attention_norm_->Backward(grad_normed, tape));
  return AddResidual(grad_through_attention, grad_middle, tape);
}

}  // namespace fsdp

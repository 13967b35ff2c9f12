// SPDX-License-Identifier: Apache-2.0
//
// Each half reads its input twice, through the norm and around it, so its gradient is the sum of both paths. The norms
// do these additions in their own kernels if they can (Norm), with the same bits.
//
// A norm with hooks, such as a separate FSDP unit, is called only with its own tensors: its hooks may cast them, and
// must not cast the tensor that bypasses it.
#include "fsdp/models/pre_norm_block.h"

#include <utility>

#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

struct NormedSum {
  Tensor normed, sum;
};

// norm(branch + trunk), and the sum. Consumes `branch`.
absl::StatusOr<NormedSum> NormOfSum(Norm& norm, Tensor branch, const Tensor& trunk, Tape& tape) {
  if (norm.hooks() != nullptr) {
    const Tensor sum = AddResidual(branch, trunk, tape);
    FSDP_ASSIGN_OR_RETURN(Tensor normed, norm.Forward(sum, tape));
    return NormedSum{std::move(normed), sum};
  }
  FSDP_ASSIGN_OR_RETURN(TensorList outputs, norm.Forward(TensorList{std::move(branch), trunk}, tape));
  return NormedSum{std::move(outputs[0]), std::move(outputs[1])};
}

// The gradient of the norm's input, from the gradient of its output and the gradient that bypassed it.
absl::StatusOr<Tensor> GradOfSum(Norm& norm, Tensor grad_normed, const Tensor& grad_around, Tape& tape) {
  if (norm.hooks() != nullptr) {
    FSDP_ASSIGN_OR_RETURN(Tensor grad_through, norm.Backward(grad_normed, tape));
    return AddResidual(grad_through, grad_around, tape);
  }
  FSDP_ASSIGN_OR_RETURN(TensorList grads, norm.Backward(TensorList{std::move(grad_normed), grad_around}, tape));
  return std::move(grads[0]);
}

}  // namespace

absl::StatusOr<Tensor> PreNormBlock::DoForward(const Tensor& x, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor normed, attention_norm_->Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor attended, attention_->Forward(normed, tape));
  FSDP_ASSIGN_OR_RETURN(NormedSum middle, NormOfSum(*mlp_norm_, std::move(attended), x, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor out, mlp_->Forward(middle.normed, tape));
  return AddResidual(out, middle.sum, tape);
}

absl::StatusOr<Tensor> PreNormBlock::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor grad_normed_middle, mlp_->Backward(grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_middle, GradOfSum(*mlp_norm_, std::move(grad_normed_middle), grad_output, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_normed, attention_->Backward(grad_middle, tape));
  return GradOfSum(*attention_norm_, std::move(grad_normed), grad_middle, tape);
}

}  // namespace fsdp
